"""What a simulated run shows that its user may not want."""

from collections.abc import Iterator, Sequence

from mixer.analysis.simulate.simulated import StreamPlan

MOST_PASSES = 4.0
LEAST_COVERAGE = 0.1


def warnings_of(streams: Sequence[StreamPlan], steps: int, progress: float) -> Iterator[str]:
    """Looks for streams that are repeated much, hardly seen, or run out, and a budget that is not reached.

    Args:
        streams: What each stream gives.
        steps: Number of steps.
        progress: Share of the budget that is done at the end.

    Yields:
        A sentence for each, with its figure.
    """
    if progress < 1.0:
        yield f"The budget is not reached: no stream has a sample left after step {steps}, at {progress:.1%} of it."
    for stream in streams:
        if not stream.samples:
            yield f"{stream.name} gives no sample at all."
        elif stream.passes > MOST_PASSES:
            yield f"{stream.name} is passed over {stream.passes:.1f} times, more than {MOST_PASSES:g}."
        elif stream.coverage < LEAST_COVERAGE:
            yield f"Of {stream.name} no more than {stream.coverage:.2%} of the samples are seen."
        if stream.runs_out:
            yield f"{stream.name} runs out in step {stream.last_step}, at {stream.last_progress:.1%} of the run."
