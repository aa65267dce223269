"""The inspection, and the preview of `mixer train --dry_run`, on a terminal. Data cannot format or control it."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from mixer.mixture.stream import Stream
from mixer.tools.analysis.inspect.duplicates import Overlap
from mixer.tools.analysis.inspect.examples import Decoder
from mixer.tools.analysis.inspect.findings import Finding, count
from mixer.tools.analysis.inspect.inspection import Batch, InspectedObjective, InspectedStream, Inspection
from mixer.tools.analysis.inspect.measures import Lengths, Limits, Measures, Parsed, Truncation
from mixer.tools.analysis.inspect.model_losses import QUANTILES, SourceLosses
from mixer.tools.analysis.inspect.sample_reader import readable
from mixer.tools.recipe.data.file_list import in_words
from mixer.utils.text import listed, printable

_MOST_CLASSES = 12
_MOST_MICRO_BATCHES = 8
_MOST_OVERLAPS = 30
_MOST_PREVIEWED = 1000  # samples of a stream whose length is measured


def view_of(inspection: Inspection, findings: Sequence[Finding]) -> Group:
    """Shows an inspection and its findings."""
    parts: list[RenderableType] = []
    for one in inspection.streams:
        parts += [_title(one.name), _stream(one)]
    if inspection.objective is not None:
        parts += [_title("objective"), *_objective(inspection.objective)]
    parts += [_title("first step"), *_batch(inspection.batch)]
    parts += [_title("duplicates"), _overlaps(inspection.overlaps)]
    if inspection.losses is not None:
        parts += [_title("losses of the model"), _losses(inspection.losses)]
    parts.append(_title(count(len(findings), "warning")))
    parts += [Text.assemble(("! ", "bold yellow"), printable(finding.sentence)) for finding in findings]
    parts.append(Text(f"\n{count(inspection.samples_read, 'sample')} read in {inspection.seconds:.1f} s.", "dim"))
    return Group(*parts)


def preview(
    streams: Sequence[Stream], evaluation: Mapping[str, Any], weights: Mapping[str, float], decoder: Decoder
) -> Group:
    """Shows the number of samples, the mean length and the first sample of each stream.

    Args:
        streams: The streams.
        evaluation: Data sets for evaluation, by stream.
        weights: Initial weights, by stream.
        decoder: Decodes the samples.
    """
    table = _table("stream", "samples", "for evaluation", "tokens a sample", "weight", "at most", title="Streams")
    samples = []
    for stream in streams:
        dataset = readable(stream)
        first = next(iter(dataset), None) if stream.is_iterable or stream.is_memory else dataset[0]
        table.add_row(
            Text(printable(stream.name)),
            _size(stream.dataset),
            _size(evaluation[stream.name]) if stream.name in evaluation else "none",
            _mean_length(Measures(dataset, 1 if stream.is_iterable else _MOST_PREVIEWED, 0, Limits(decoder.task))),
            f"{weights[stream.name]:.3f}",
            _limits(stream),
        )
        text = Text("none yet") if first is None else marked(decoder.decode(first))
        samples.append(Text.assemble(f"\n{printable(stream.name)}, first sample: ", text))
    return Group(table, *samples, Text("\nmixer inspect shows more: duplicates, the first step, problems in the data."))


def marked(example: str) -> Text:
    """Shows an example on one line, its learned parts (between ⟦ and ⟧) in colour."""
    text = Text(printable(example))
    text.highlight_regex("⟦.*?⟧", "bold green")
    return text


def _limits(stream: Stream) -> str:
    limits = {"epoch": stream.max_epochs, "sample": stream.max_samples, "token": stream.max_tokens}
    given = [f"{limit:,.12g} {unit}{'' if limit == 1 else 's'}" for unit, limit in limits.items() if limit]
    return listed(given) if given else "no limit"


def _size(dataset: Any) -> str:
    return f"{len(dataset):,}" if hasattr(dataset, "__len__") else "not known"


def _mean_length(measures: Measures) -> str:
    if measures.lengths is None or measures.unit != "tokens":
        return "not known"
    return f"{measures.lengths.mean:,.1f}" + (" (of the first)" if measures.num_read == 1 else "")


def _title(text: str) -> Rule:
    return Rule(Text(printable(text), "bold"), style="dim")


def _table(*columns: str, numbers: Sequence[str] = (), title: str | None = None) -> Table:
    table = Table(title=title) if title else Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in numbers else "left")
    return table


def _stream(one: InspectedStream) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for label, value in _facts(one).items():
        if value:
            table.add_row(label, Text(printable(value)))
    for index, example in one.examples.items():
        table.add_row(f"example {index}", marked(example))
    return table


def _facts(one: InspectedStream) -> dict[str, str]:
    weight = f"{one.weight:.3f} at the start"
    if one.is_memory:
        return {"samples": "none yet: a replay buffer, which the run fills", "weight": weight}
    measures, rows = one.training, "" if one.num_rows is None else f", from {one.num_rows:,} rows"
    return {
        "samples": _read(measures),
        "validation": "none" if one.validation is None else _read(one.validation),
        "columns": "none: samples are no mappings" if measures.columns is None else ", ".join(measures.columns),
        "format": "none" if one.format is None else one.format["name"] + rows,
        "files": in_words(one.files) if one.files else "",
        "weight": weight,
        measures.unit: "" if measures.lengths is None else _lengths(measures.lengths),
        "learned": "" if measures.share_learned is None else f"{measures.share_learned:.1%} of the tokens",
        "truncated": "" if one.truncation is None else _truncated(one.truncation),
        "parsed": "" if one.parsed is None else _parsed(one.parsed),
        "classes": "" if one.limits.num_classes is None else _classes(one),
    }


def _read(measures: Measures) -> str:
    if measures.is_whole:
        return f"{measures.size:,}, all read"
    if measures.size is None:
        return f"unknown, the first {measures.num_read:,} read"
    return f"{measures.size:,}, {measures.num_read:,} read"


def _lengths(lengths: Lengths) -> str:
    (_, least), *quantiles, (_, most) = lengths.quantiles.items()
    if least == most:
        return f"{most:,} each"
    shares = ", ".join(f"{share:.0%} up to {value:,}" for share, value in quantiles)
    return f"{least:,} to {most:,}, mean {lengths.mean:,.1f}; {shares}"


def _truncated(cut: Truncation) -> str:
    rows = f"{cut.num_cut:,} of {cut.num_rows:,} rows at {cut.max_length:,} tokens"
    answers = {"the whole answer": cut.num_unlearned, "the end of the answer": cut.num_learned_partly}
    words = ", ".join(f"{part} of {number:,}" for part, number in answers.items() if number)
    return f"{rows} ({cut.share_cut:.1%}; {cut.share_lost:.1%} of the tokens){words and f', {words}'}"


def _parsed(parsed: Parsed) -> str:
    shown = f"{parsed.num_parsed:,} of {parsed.num_rows:,} rows: their calls or tools are texts in JSON"
    return shown if parsed.num_parsed else ""


def _classes(one: InspectedStream) -> str:
    ordered = sorted(one.training.classes.items(), key=lambda pair: -pair[1])
    names = dict(enumerate(one.class_names))
    shown = ", ".join(f"{names.get(number, number)} {times:,}" for number, times in ordered[:_MOST_CLASSES])
    more = f" and {len(ordered) - _MOST_CLASSES} more" if len(ordered) > _MOST_CLASSES else ""
    return f"{len(ordered)} of {one.limits.num_classes} seen: {shown}{more}"


def _objective(one: InspectedObjective) -> list[RenderableType]:
    rows = listed([f"{count(number, 'row')} of {name}" for name, number in one.test_rows.items()])
    return [Text(printable(f"{one.in_words[:1].upper()}{one.in_words[1:]}; evaluated on {rows}."))]


def _batch(batch: Batch) -> list[RenderableType]:
    if batch.error:
        return [Text(f"It cannot be formed: {printable(batch.error)}")]
    micro_batches = count(len(batch.micro_batches), "micro-batch", "micro-batches")
    share = f", {batch.padding:.1%} of the token positions are padding" if batch.padding else ""
    table = _table("micro-batch", "shape", "stream", "rows", "padding", numbers=("micro-batch", "rows", "padding"))
    for number, micro in enumerate(batch.micro_batches[:_MOST_MICRO_BATCHES]):
        shape = micro.shapes.get("input_ids") or next(iter(micro.shapes.values()), [])
        labels = [str(number), " x ".join(map(str, shape))]
        for stream in dict.fromkeys(micro.streams):
            rows = np.array(micro.streams) == stream
            padding = f"{np.array(micro.padding)[rows].mean():.0%}" if micro.padding else "-"
            table.add_row(*labels, Text(printable(stream)), str(rows.sum()), padding)
            labels = ["", ""]
    size = Text(f"{count(sum(batch.counts.values()), 'sample')} in {micro_batches}{share}")
    return [size, table, *_more(len(batch.micro_batches) - _MOST_MICRO_BATCHES, " micro-batches")]


def _overlaps(overlaps: Sequence[Overlap]) -> RenderableType:
    if not overlaps:
        return Text("None among the samples read.")
    table = _table("samples of", "are in", "number", "share", numbers=("number", "share"))
    for one in sorted(overlaps, key=lambda one: (not one.is_validation, -one.share))[:_MOST_OVERLAPS]:
        own = f"{printable(one.stream)}{' (validation)' if one.is_validation else ''}"
        other = "itself, again" if one.is_within else printable(one.other)
        least = "" if one.is_whole else "≥ "
        number = f"{least}{one.num_samples:,} of {one.num_read:,} {one.kind}"
        table.add_row(Text(own), Text(other), number, f"{least}{one.share:.1%}")
    return Group(table, *_more(len(overlaps) - _MOST_OVERLAPS))


def _losses(losses: Sequence[SourceLosses]) -> Table:
    figures = ("rows", "labels", "loss", "entropy", *(f"{share:.0%} of rows up to" for share in QUANTILES))
    table = _table("source", *figures, numbers=figures)
    for one in losses:
        values = (one.loss, one.entropy, *(one.row_losses.get(share) for share in QUANTILES))
        shown = ("-" if value is None else f"{value:.4f}" for value in values)
        name = f"{printable(one.source)}{' (validation)' if one.is_validation else ''}"
        table.add_row(Text(name), f"{one.num_rows:,}", f"{one.num_labels:,}", *shown)
    return table


def _more(number: int, noun: str = "") -> list[Text]:
    return [Text(f"and {number} more{noun}", "dim")] if number > 0 else []
