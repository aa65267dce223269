"""A short look at the streams of a run before it is trained: `mixer train --dry_run`."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from mixer.analysis.inspect.examples import Decoding, example_of
from mixer.analysis.inspect.measures import Limits
from mixer.analysis.inspect.measuring import measure
from mixer.analysis.inspect.printable import text_of
from mixer.analysis.inspect.reading import readable
from mixer.mixture.stream import Stream
from mixer.utils.text import printable

_LOOKED_AT = 1000


def preview(
    streams: Sequence[Stream], evaluation: Mapping[str, Any], weights: Mapping[str, float], decoding: Decoding
) -> Group:
    """Shows how many samples the streams have, how long they are, and the first one of each.

    Args:
        streams: The streams.
        evaluation: Data sets for evaluation, by stream.
        weights: The weights that the run begins with.
        decoding: How samples are made readable.

    Returns:
        What can be printed.
    """
    table = Table(title="Streams")
    for column in ("stream", "samples", "for evaluation", "tokens a sample", "weight", "max_epochs"):
        table.add_column(column)
    samples = []
    for stream in streams:
        table.add_row(
            Text(printable(stream.name)),
            _count(stream.dataset),
            _count(evaluation[stream.name]) if stream.name in evaluation else "none",
            _mean_length(stream, decoding.task),
            f"{weights[stream.name]:.3f}",
            "no limit" if stream.max_epochs is None else f"{stream.max_epochs:g}",
        )
        samples.append(Text.assemble(f"\n{printable(stream.name)}, first sample: ", _first(stream, decoding)))
    return Group(table, *samples, Text("\nmixer inspect shows more: duplicates, the first step, what will hurt."))


def _first(stream: Stream, decoding: Decoding) -> Text:
    dataset = readable(stream)
    sample = next(iter(dataset), None) if stream.is_iterable or stream.is_memory else dataset[0]
    return Text("none yet") if sample is None else text_of(example_of(0, sample, decoding))


def _mean_length(stream: Stream, task: str) -> str:
    measures = measure(readable(stream), 1 if stream.is_iterable else _LOOKED_AT, seed=0, limits=Limits(task))
    if measures.unit != "tokens":
        return "not known"
    return f"{measures.known_lengths.mean():,.1f}" + (" (of the first)" if measures.num_read == 1 else "")


def _count(dataset: Any) -> str:
    return f"{len(dataset):,}" if hasattr(dataset, "__len__") else "not known"
