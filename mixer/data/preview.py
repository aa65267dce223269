"""A look at the streams of a run before it is trained."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from mixer.preprocessed import preprocessed
from mixer.shortened import shortened
from mixer.stream import Stream

_LOOKED_AT = 1000
_MOST_CHARACTERS = 600


def preview(
    streams: Sequence[Stream], evaluation: Mapping[str, Any], weights: Mapping[str, float], tokenizer: Any
) -> Group:
    """Shows how many samples the streams have, how long they are, and the first one of each.

    Args:
        streams: The streams.
        evaluation: Data sets for evaluation, by stream.
        weights: The weights that the run begins with.
        tokenizer: What decodes samples; `None` shows them as they are.

    Returns:
        What can be printed.
    """
    table = Table(title="Streams")
    for column in ("stream", "samples", "for evaluation", "tokens a sample", "weight", "max_epochs"):
        table.add_column(column)
    samples = []
    for stream in streams:
        first = _first_samples(stream)
        table.add_row(
            stream.name,
            _count(stream.dataset),
            _count(evaluation[stream.name]) if stream.name in evaluation else "none",
            _mean_length(first),
            f"{weights[stream.name]:.3f}",
            "no limit" if stream.max_epochs is None else f"{stream.max_epochs:g}",
        )
        samples.append(Text(f"\n{stream.name}, first sample: {_shown(first, tokenizer)}"))
    return Group(table, *samples)


def _first_samples(stream: Stream) -> list[Any]:
    dataset = preprocessed(stream.dataset, stream.preprocess)
    if stream.is_memory:
        return []
    if stream.is_iterable:
        first = next(iter(dataset), None)
        return [] if first is None else [first]
    return [dataset[index] for index in range(min(len(dataset), _LOOKED_AT))]


def _count(dataset: Any) -> str:
    return f"{len(dataset):,}" if hasattr(dataset, "__len__") else "not known"


def _mean_length(samples: Sequence[Any]) -> str:
    lengths = [len(sample["input_ids"]) for sample in samples if isinstance(sample, Mapping) and "input_ids" in sample]
    if not lengths:
        return "not known"
    return f"{sum(lengths) / len(lengths):,.1f}" + (" (of the first)" if len(lengths) == 1 else "")


def _shown(samples: Sequence[Any], tokenizer: Any) -> str:
    if not samples:
        return "none yet"
    sample = samples[0]
    if tokenizer is None or not (isinstance(sample, Mapping) and "input_ids" in sample):
        return _cut(repr(sample))
    lines = [_cut(repr(tokenizer.decode(sample["input_ids"])))]
    labels = sample.get("labels")
    if isinstance(labels, list):
        lines.append(f"  learned: {_cut(repr(tokenizer.decode([label for label in labels if label >= 0])))}")
    elif labels is not None:
        lines.append(f"  label: {labels}")
    return "\n".join(lines)


def _cut(text: str) -> str:
    return shortened(text, _MOST_CHARACTERS)
