"""An inspection on a terminal."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from mixer.analysis.inspect.duplicates import Overlap
from mixer.analysis.inspect.finding import Finding, count
from mixer.analysis.inspect.first_batch import Batch, BatchRow, mean_padding
from mixer.analysis.inspect.inspection import Inspection
from mixer.analysis.inspect.stream_view import stream_view
from mixer.utils.text import printable

_MOST_MICRO_BATCHES = 8
_MOST_ROWS = 12
_MOST_OVERLAPS = 30


def view_of(inspection: Inspection, findings: Sequence[Finding]) -> Group:
    """Shows an inspection.

    Args:
        inspection: The inspection.
        findings: What of it will hurt.

    Returns:
        What can be printed; nothing that stands in the data is taken for a command to the terminal.
    """
    parts: list[RenderableType] = []
    for one in inspection.streams:
        parts += [_title(one.stream.name), stream_view(one, inspection)]
    parts += [_title("first step"), *_batch(inspection.batch)]
    parts += [_title("samples that come more than once"), _overlaps(inspection.overlaps)]
    parts += [_title(count(len(findings), "warning")), *map(_finding, findings)]
    read, seconds = inspection.num_read, inspection.seconds
    parts.append(Text(f"\n{count(read, 'sample')} looked at in {seconds:.1f} s.", "dim"))
    return Group(*parts)


def _title(text: str) -> Rule:
    return Rule(Text(printable(text), "bold"), style="dim")


def _batch(batch: Batch) -> list[RenderableType]:
    if batch.error:
        return [Text(f"It cannot be made: {printable(batch.error)}")]
    total = sum(batch.counts.values())
    padding = f", {batch.padding:.1%} of the places for tokens padding" if batch.padding else ""
    micro_batches = count(len(batch.micro_batches), "micro-batch", "micro-batches")
    size = f"{count(total, 'sample')} in {micro_batches}{padding}"
    table = Table(box=None, pad_edge=False)
    for column, justify in (("micro-batch", "right"), ("shape", "left"), ("source", "left"), ("rows", "right")):
        table.add_column(column, justify=justify)  # type: ignore[arg-type]
    table.add_column("padding of each row")
    for number, micro in enumerate(batch.micro_batches[:_MOST_MICRO_BATCHES]):
        first = " x ".join(map(str, micro.shapes.get("input_ids") or next(iter(micro.shapes.values()), [])))
        labels = [str(number), first]
        for stream in dict.fromkeys(row.stream for row in micro.rows):
            rows = [row for row in micro.rows if row.stream == stream]
            table.add_row(*labels, Text(printable(stream)), str(len(rows)), _padding(rows))
            labels = ["", ""]
    left_out = len(batch.micro_batches) - _MOST_MICRO_BATCHES
    more = [Text(f"and {left_out} more micro-batches", "dim")] if left_out > 0 else []
    return [Text(size), table, *more]


def _padding(rows: Sequence[BatchRow]) -> str:
    if not any(row.num_tokens for row in rows):
        return "no tokens"
    shares = " ".join(f"{row.padding:.0%}" for row in rows[:_MOST_ROWS]) + (" …" if len(rows) > _MOST_ROWS else "")
    return "none" if not any(row.padding for row in rows) else f"{shares}, mean {mean_padding(rows):.0%}"


def _overlaps(overlaps: Sequence[Overlap]) -> RenderableType:
    if not overlaps:
        return Text("None among those that were looked at.")
    table = Table(box=None, pad_edge=False)
    for column, justify in (("samples of", "left"), ("are in", "left"), ("number", "right"), ("share", "right")):
        table.add_column(column, justify=justify)  # type: ignore[arg-type]
    for one in sorted(overlaps, key=lambda one: (not one.is_validation, -one.share))[:_MOST_OVERLAPS]:
        own = f"{printable(one.stream)}{' (validation)' if one.is_validation else ''}"
        other = "itself, again" if one.is_within else printable(one.other)
        least = "" if one.is_whole else "≥ "
        number = f"{least}{one.num_samples:,} of {one.num_looked_at:,} {one.kind}"
        table.add_row(Text(own), Text(other), number, f"{least}{one.share:.1%}")
    left_out = len(overlaps) - _MOST_OVERLAPS
    return Group(table, Text(f"and {left_out} more", "dim")) if left_out > 0 else table


def _finding(finding: Finding) -> Text:
    return Text.assemble(("! ", "bold yellow"), printable(finding.sentence))
