"""A stream on a terminal: size, lengths, what is cut off, examples."""

from rich.table import Table
from rich.text import Text

from mixer.analysis.inspect.distribution import Distribution
from mixer.analysis.inspect.inspection import InspectedStream, Inspection
from mixer.analysis.inspect.measures import Measures
from mixer.analysis.inspect.printable import text_of
from mixer.utils.text import printable

_BAR = 30  # columns of the longest bar of a histogram
_MOST_CLASSES = 12


def stream_view(one: InspectedStream, inspection: Inspection) -> Table:
    """Shows a stream.

    Args:
        one: The stream.
        inspection: What it is a part of.

    Returns:
        What can be printed.
    """
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for label, value in _lines(one, inspection):
        table.add_row(label, value if isinstance(value, Text) else Text(printable(value)))
    for number, example in enumerate(one.examples):
        table.add_row("examples" if not number else "", Text.assemble((f"{example.index}  ", "dim"), text_of(example)))
    return table


def _lines(one: InspectedStream, inspection: Inspection) -> list[tuple[str, str | Text]]:
    stream, measures = one.stream, one.measures
    if stream.is_memory:
        return [("samples", "none yet: a memory, which the run fills"), ("weight", _weight(one))]
    lines: list[tuple[str, str | Text]] = [
        ("samples", _size(measures)),
        ("validation", "none" if one.evaluation is None else _size(one.evaluation)),
        ("columns", "none: samples are no mappings" if measures.columns is None else ", ".join(measures.columns)),
        ("format", _format(one)),
        ("weight", _weight(one)),
    ]
    if one.lengths is not None:
        lines.append((measures.unit, _quantiles(one.lengths)))
        lines += [("", _histogram(one.lengths))] if len(one.lengths.bins) > 1 else []
    if measures.share_learned is not None:
        lines.append(("learned", f"{measures.share_learned:.1%} of the tokens"))
    elif one.num_classes is None and measures.mean_learned is not None:
        lines.append(("learned", f"{measures.mean_learned:.1f} tokens or labels beside each sample, on average"))
    if cut := _cut(one, inspection):
        lines.append(("cut off", cut))
    if one.num_classes is not None:
        lines.append(("classes", _classes(one)))
    return lines


def _size(measures: Measures) -> str:
    if measures.is_whole:
        size = f"{measures.num_read + measures.num_broken:,}, all looked at"
    elif measures.size is None:
        size = f"not known; the first {measures.num_read:,} looked at"
    else:
        size = f"{measures.size:,}, of which {measures.num_read:,} looked at"
    return size if not measures.num_broken else f"{size}; {measures.num_broken:,} cannot be read"


def _format(one: InspectedStream) -> str:
    if one.format is None:
        return "none: samples as they are"
    length = getattr(one.format, "max_length", None)
    rows = "" if one.num_rows is None else f", of {one.num_rows:,} rows"
    return f"{type(one.format).__name__}{'' if length is None else f', max_length {length:,}'}{rows}"


def _weight(one: InspectedStream) -> str:
    limit = "no limit" if one.stream.max_epochs is None else f"{one.stream.max_epochs:g}"
    passes = "" if one.passes is None else f"; about {one.passes:.2g} passes if that stays"
    return f"{one.weight:.3f} at the start, max_epochs {limit}{passes}"


def _quantiles(lengths: Distribution) -> str:
    if lengths.least == lengths.most:
        return f"{lengths.most:,} each"
    shares = ", ".join(f"{share:.0%} up to {value:,}" for share, value in lengths.quantiles.items())
    return f"from {lengths.least:,} to {lengths.most:,}, mean {lengths.mean:,.1f}; {shares}"


def _histogram(lengths: Distribution) -> Text:
    most = max(one.count for one in lengths.bins)
    names = [f"{one.least:,}" if one.least == one.most else f"{one.least:,} to {one.most:,}" for one in lengths.bins]
    width = max(map(len, names))
    rows = [
        f"{name:>{width}}  {'█' * (-(-_BAR * one.count // most)):<{_BAR}} {one.count:,}"
        for name, one in zip(names, lengths.bins, strict=True)
    ]
    return Text("\n".join(rows))


def _cut(one: InspectedStream, inspection: Inspection) -> str:
    parts = []
    if (cut := one.truncation) is not None:
        parts.append(
            f"{cut.num_cut:,} of {cut.num_rows:,} rows at {cut.max_length:,} tokens ({cut.share_cut:.1%}; "
            f"{cut.share_lost:.1%} of the tokens)"
        )
    if inspection.positions is not None and one.measures.unit == "tokens":
        parts.append(f"{one.beyond_positions:,} samples are longer than the model's {inspection.positions:,} positions")
    return "; ".join(parts)


def _classes(one: InspectedStream) -> str:
    classes = one.measures.classes
    names = {number: one.class_names[number] if number < len(one.class_names) else str(number) for number in classes}
    ordered = sorted(classes, key=lambda number: -classes[number])
    shown = ", ".join(f"{names[number]} {classes[number]:,}" for number in ordered[:_MOST_CLASSES])
    more = f" and {len(ordered) - _MOST_CLASSES} more" if len(ordered) > _MOST_CLASSES else ""
    return f"{len(classes)} of {one.num_classes} seen: {shown}{more}"
