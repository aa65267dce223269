"""What of a single stream will hurt."""

from collections.abc import Callable, Iterator
from typing import Any

from mixer.analysis.inspect.finding import Finding, count
from mixer.analysis.inspect.inspection import InspectedStream, Inspection
from mixer.analysis.inspect.measures import Measures, Outside

MOST_CUT = 0.05  # share of a stream's samples
MOST_LEFT_OUT = 0.01  # share of a stream's rows
MOST_PASSES = 8.0
MOST_TIMES_FREQUENT = 20.0  # the most frequent class over the rarest
LEAST_SAMPLES_FOR_END = 10  # before it is said that none ends with an end-of-text token


def _broken(inspection: Inspection, one: InspectedStream) -> Iterator[Finding]:
    for words, part in _measured(one):
        if not part.num_broken:
            continue
        first = part.broken[0]
        yield _of(
            one,
            "broken_samples",
            part.num_broken,
            f"{count(part.num_broken, words + 'sample')} of {one.stream.name!r} cannot be read, the first at index "
            f"{first.index} ({first.error}): the run ends when it draws one.",
        )


def _without_samples(inspection: Inspection, one: InspectedStream) -> Iterator[Finding]:
    if not one.measures.num_read and not one.stream.is_memory:
        yield _of(one, "no_samples", 0, f"{one.stream.name!r} gives no sample that can be trained on.")


def _empty(inspection: Inspection, one: InspectedStream) -> Iterator[Finding]:
    number = int((one.measures.lengths == 0).sum())
    if number:
        yield _of(one, "empty_samples", number, f"{_of_all(number, one)} are empty.")


def _nothing_learned(inspection: Inspection, one: InspectedStream) -> Iterator[Finding]:
    number = one.measures.num_nothing_learned
    if number:
        yield _of(
            one,
            "nothing_learned",
            number,
            f"{_of_all(number, one)} have nothing to learn (all labels are -100): they take time and teach nothing.",
        )


def _left_out(inspection: Inspection, one: InspectedStream) -> Iterator[Finding]:
    if one.num_rows is None or one.measures.size is None or one.format is None or one.format.packs:
        return
    share = 1.0 - one.measures.size / one.num_rows
    if share > MOST_LEFT_OUT:
        yield _of(
            one,
            "rows_left_out",
            share,
            f"{one.num_rows - one.measures.size:,} of {one.num_rows:,} rows of {one.stream.name!r} ({share:.1%}) are "
            f"left out: {type(one.format).__name__} finds nothing in them to learn within max_length.",
        )


def _truncated(inspection: Inspection, one: InspectedStream) -> Iterator[Finding]:
    cut = one.truncation
    if cut is not None and cut.share_cut > MOST_CUT:
        yield _of(
            one,
            "truncated",
            cut.share_cut,
            f"{cut.num_cut:,} of {cut.num_rows:,} rows of {one.stream.name!r} that were looked at "
            f"({cut.share_cut:.1%}) are cut off at {cut.max_length:,} tokens, and with them {cut.share_lost:.1%} of "
            "all tokens: raise max_length, or divide long rows before.",
        )


def _beyond_positions(inspection: Inspection, one: InspectedStream) -> Iterator[Finding]:
    if one.beyond_positions:
        yield _of(
            one,
            "beyond_positions",
            one.beyond_positions,
            f"{_of_all(one.beyond_positions, one)} are longer than the {inspection.positions:,} positions of the model "
            f"(the longest has {one.measures.lengths.max():,} tokens): give the format a max_length.",
        )


def _outside(inspection: Inspection, one: InspectedStream) -> Iterator[Finding]:
    vocabulary = f"vocabulary of {inspection.vocabulary or 0:,}"
    of_labels = vocabulary if one.num_classes is None else f"{one.num_classes} classes"
    for words, part in _measured(one):
        yield from _unknown(one, "unknown_tokens", f"{words}sample", "tokens", part.unknown_tokens, vocabulary)
        yield from _unknown(one, "unknown_labels", f"{words}sample", "labels", part.unknown_labels, of_labels)


def _unknown(
    one: InspectedStream, kind: str, noun: str, called: str, outside: Outside, limit: str
) -> Iterator[Finding]:
    if outside.example is not None:
        index, number = outside.example
        yield _of(
            one,
            kind,
            outside.num_samples,
            f"{count(outside.num_samples, noun)} of {one.stream.name!r} with {called} beyond the model's {limit}, such "
            f"as {number} at index {index}: the run ends, or learns something else, when it draws one.",
        )


def _unbalanced(inspection: Inspection, one: InspectedStream) -> Iterator[Finding]:
    classes = one.measures.classes
    if one.num_classes is None or not classes:
        return
    missing = [number for number in range(one.num_classes) if number not in classes]
    if missing:
        words = ", ".join(_class_name(one, number) for number in missing[:5]) + (", …" if len(missing) > 5 else "")
        yield _of(
            one,
            "classes_without_samples",
            len(missing),
            f"{len(missing)} of {one.num_classes} classes of {one.stream.name!r} have no sample among those looked at: "
            f"{words}.",
        )
    most, rarest = max(classes, key=classes.__getitem__), min(classes, key=classes.__getitem__)
    ratio = classes[most] / classes[rarest]
    if ratio > MOST_TIMES_FREQUENT and not one.measures.learns_tokens:  # of tokens most are of no name, say
        yield _of(
            one,
            "unbalanced_classes",
            ratio,
            f"The class {_class_name(one, most)} of {one.stream.name!r} comes {ratio:.0f} times as often as "
            f"{_class_name(one, rarest)} ({classes[most]:,} and {classes[rarest]:,} times): accuracy will say little.",
        )


def _passed_over(inspection: Inspection, one: InspectedStream) -> Iterator[Finding]:
    if one.passes is not None and one.passes > MOST_PASSES:
        yield _of(
            one,
            "many_passes",
            one.passes,
            f"The run passes over the {one.measures.size:,} samples of {one.stream.name!r} about {one.passes:.1f} "
            "times, if its weight stays what it is at the start: give it max_epochs or less weight.",
        )


def _never_ends(inspection: Inspection, one: InspectedStream) -> Iterator[Finding]:
    tokenizer: Any = inspection.trainer.processing_class
    part = one.measures
    if one.format is not None and part.num_with_end == 0 and part.num_read >= LEAST_SAMPLES_FOR_END:
        end = tokenizer.decode([tokenizer.eos_token_id])
        yield _of(
            one,
            "never_ends",
            0,
            f"None of the {part.num_read:,} samples of {one.stream.name!r} that were looked at has the end-of-text "
            f"token {end!r} among what is learned: the model does not learn to stop.",
        )


LOOKS: tuple[Callable[[Inspection, InspectedStream], Iterator[Finding]], ...] = (
    *(_broken, _without_samples, _empty, _nothing_learned, _left_out, _truncated, _beyond_positions, _outside),
    *(_unbalanced, _passed_over, _never_ends),
)


def _of(one: InspectedStream, kind: str, figure: float, sentence: str) -> Finding:
    return Finding(kind, [one.stream.name], figure, sentence)


def _measured(one: InspectedStream) -> list[tuple[str, Measures]]:
    """Gives what was measured, and the word for it before `samples`."""
    parts = (("", one.measures), ("validation ", one.evaluation))
    return [(words, part) for words, part in parts if part is not None]


def _of_all(number: int, one: InspectedStream) -> str:
    read = one.measures.num_read
    return f"{number:,} of the {read:,} samples of {one.stream.name!r} that were looked at ({number / read:.1%})"


def _class_name(one: InspectedStream, number: int) -> str:
    return repr(one.class_names[number]) if number < len(one.class_names) else str(number)
