"""What a planned run comes to."""

import numpy as np

from mixer.analysis.simulate.findings import warnings_of
from mixer.analysis.simulate.planned_run import PlannedRun
from mixer.analysis.simulate.simulated import Simulated, StreamPlan
from mixer.analysis.simulate.sizes import array_bytes, state_bytes
from mixer.utils.arrays import FloatArray, Int64Array


def summed_up(run: PlannedRun, num_ranks: int, seconds: float) -> Simulated:
    """Sums a planned run up.

    Args:
        run: The run, planned to its end.
        num_ranks: Number of processes that it was planned for.
        seconds: Time that planning took.

    Returns:
        What it comes to.
    """
    mixing, columns = run.mixing, run.columns
    clock, positions = mixing.clock, np.array(columns.positions)
    counts = np.array(columns.counts).reshape(-1, len(mixing.names))
    streams = [_stream_plan(run, number, counts[:, number], positions) for number in range(len(mixing.names))]
    estimated = [*run.tokens.estimated, *run.parts.stand_ins]
    iterable = [stream.name for stream in run.parts.streams if stream.is_iterable]
    warnings = list(warnings_of(streams, clock.step, clock.progress))
    if iterable:
        warnings.append(f"Nobody knows how many rows {', '.join(iterable)} has: assumed never to run out.")
    if run.parts.stand_ins:
        names = ", ".join(run.parts.stand_ins)
        warnings.append(f"What the buffers {names} choose, no plan tells: planned with entries chosen by nothing.")
    if estimated:
        warnings.append(f"Tokens of {', '.join(estimated)} are estimated by some of the samples.")
    if not run.learning_rate.is_known:
        warnings.append("The learning rate follows a metric, so that nobody knows it before the run.")
    return Simulated(
        num_ranks=num_ranks,
        streams=streams,
        steps=clock.step,
        samples=clock.num_samples,
        tokens=clock.num_tokens,
        epochs=clock.epoch,
        progress=clock.progress,
        counts=counts,
        weights=np.array(columns.weights).reshape(-1, len(mixing.names)),
        batch_sizes=np.array(columns.batch_sizes, dtype=np.int64),
        positions=positions,
        learning_rates=np.array(columns.learning_rates),
        planned_steps=clock.planned_steps,
        estimated_tokens=estimated,
        state_bytes=state_bytes(mixing),
        array_bytes=array_bytes(mixing),
        buffer_bytes={one.name: array_bytes(vars(one.dataset)) for one in run.parts.streams if one.is_memory},
        source=run.source.note,
        warnings=warnings,
        seconds=seconds,
    )


def _stream_plan(run: PlannedRun, number: int, counts: Int64Array, positions: FloatArray) -> StreamPlan:
    mixing, stream = run.mixing, run.parts.streams[number]
    clock, samples = mixing.clock, int(mixing.seen[number])
    given = np.flatnonzero(counts)
    is_present = stream.leaves_at == 1.0 or clock.progress < stream.leaves_at
    is_active = bool(mixing.planner.active(clock.progress)[number])
    passes = float(mixing.stream_epochs[number])
    has_given = len(given) > 0
    before = float(positions[given[0] - 1]) if has_given and given[0] else 0.0
    return StreamPlan(
        name=stream.name,
        samples=samples,
        share=samples / max(int(mixing.seen.sum()), 1),
        num_samples=stream.num_samples,
        coverage=min(1.0, passes),
        passes=passes,
        tokens=int(mixing.num_tokens[number]),
        first_step=int(given[0]) + 1 if has_given else 0,
        first_progress=before if has_given else np.nan,
        last_step=int(given[-1]) + 1 if has_given else 0,
        last_progress=float(positions[given[-1]]) if has_given else np.nan,
        runs_out=is_present and not is_active and not stream.is_memory and has_given and given[-1] + 1 < clock.step,
    )
