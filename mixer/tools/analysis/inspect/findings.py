"""Findings: problems in a run's data, one sentence each."""

from collections.abc import Iterator
from dataclasses import dataclass

from mixer.tools.analysis.inspect.duplicates import Overlap
from mixer.tools.analysis.inspect.inspection import InspectedStream, Inspection
from mixer.tools.analysis.inspect.measures import Measures
from mixer.tools.recipe.data.file_list import unlike
from mixer.utils.text import first_of, listed

_MOST_CUT = 0.05  # share of the rows
_MOST_LEFT_OUT = 0.01  # share of the rows
_MOST_DUPLICATES = 0.01  # share of the samples
_MOST_PADDING = 0.3  # share of the token positions of the first step
_MOST_TIMES_FREQUENT = 20.0  # the most frequent class by the rarest
_MOST_TIMES_LONGER = 4.0  # the greatest mean length of a stream by the least
_LEAST_WITHOUT_END = 10  # samples


@dataclass(frozen=True)
class Finding:
    """A problem.

    Args:
        kind: The kind of problem, the same in every run.
        streams: The streams that have it; empty for the run as a whole.
        figure: The number that shows it.
        sentence: The problem in words, with the figure.
    """

    kind: str
    streams: list[str]
    figure: float
    sentence: str


def count(number: int, noun: str, plural: str = "") -> str:
    """Writes a number of things.

    Example:
        >>> count(1200, "sample")
        '1,200 samples'
    """
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def findings_of(inspection: Inspection) -> list[Finding]:
    """Finds the problems: of each stream, duplicates, and of the run as a whole."""
    findings = []
    for stream in inspection.streams:
        for problems in (_of_files(stream), _of_samples(stream), _of_format(stream), _of_classes(stream)):
            findings += [Finding(kind, [stream.name], figure, sentence) for kind, figure, sentence in problems]
    return [*findings, *_duplicates(inspection.overlaps), *_of_the_run(inspection)]


def _of_files(stream: InspectedStream) -> Iterator[tuple[str, float, str]]:
    if others := unlike(stream.files):
        reasons = listed(first_of([f"{name} ({why})" for name, why in others.items()]))
        yield "unlike_files", len(others), f"files of {stream.name!r} are very different from its others: {reasons}."


def _of_samples(stream: InspectedStream) -> Iterator[tuple[str, float, str]]:
    training = stream.training
    if not training.num_read and not stream.is_memory:
        yield "no_samples", 0, f"{stream.name!r} has no sample to train on."
    for noun, part in (("sample", training), ("validation sample", stream.validation)):
        if part is not None:
            yield from _faults(stream, noun, part)
    if number := training.num_empty:
        yield "empty_samples", number, f"{_of_all(number, stream)} are empty."
    if number := training.nothing_learned:
        sentence = f"{_of_all(number, stream)} have nothing to learn: all labels are -100."
        yield "nothing_learned", number, sentence
    if (number := training.beyond_positions) and training.lengths is not None:
        sentence = (
            f"{_of_all(number, stream)} are longer than the model's {stream.limits.positions:,} positions (the longest "
            f"has {training.lengths.quantiles[1.0]:,} tokens): truncate them (max_length)."
        )
        yield "beyond_positions", number, sentence


def _faults(stream: InspectedStream, noun: str, part: Measures) -> Iterator[tuple[str, float, str]]:
    if broken := part.broken.number:
        sentence = (
            f"{count(broken, noun)} of {stream.name!r} cannot be read, the first at index {part.broken.index} "
            f"({part.broken.example}): drawing one ends the run."
        )
        yield "broken_samples", broken, sentence
    vocabulary, num_classes = f"vocabulary of {stream.limits.vocabulary or 0:,}", stream.limits.num_classes
    classes = vocabulary if num_classes is None else f"{num_classes} classes"
    unknown = (("tokens", part.unknown_tokens, vocabulary), ("labels", part.unknown_labels, classes))
    for kind, faults, limit in unknown:
        if faults.number:
            sentence = (
                f"{count(faults.number, noun)} of {stream.name!r} with {kind} beyond the model's {limit}, such as "
                f"{faults.example} at index {faults.index}: drawing one ends the run or teaches something else."
            )
            yield f"unknown_{kind}", faults.number, sentence


def _of_format(stream: InspectedStream) -> Iterator[tuple[str, float, str]]:
    training, cut = stream.training, stream.truncation
    if stream.format is None:
        return
    num_left_out = 0 if stream.packs else (stream.num_rows or 0) - (training.size or 0)
    if stream.num_rows and training.size is not None and num_left_out > _MOST_LEFT_OUT * stream.num_rows:
        sentence = (
            f"{num_left_out:,} of {stream.num_rows:,} rows of {stream.name!r} ({num_left_out / stream.num_rows:.1%}) "
            f"are left out: {stream.format['name']} has nothing to learn from them within max_length."
        )
        yield "rows_left_out", num_left_out / stream.num_rows, sentence
    if cut is not None and cut.share_cut > _MOST_CUT:
        sentence = (
            f"{cut.num_cut:,} of the {cut.num_rows:,} rows read of {stream.name!r} ({cut.share_cut:.1%}) are truncated "
            f"at {cut.max_length:,} tokens, which loses {cut.share_lost:.1%} of all tokens: raise max_length, or split "
            "long rows."
        )
        yield "truncated", cut.share_cut, sentence
    if training.num_with_end == 0 and training.num_read >= _LEAST_WITHOUT_END:
        sentence = (
            f"None of the {training.num_read:,} samples read of {stream.name!r} has the end-of-text token as a label: "
            "the model will not learn to stop."
        )
        yield "never_ends", 0, sentence


def _of_classes(stream: InspectedStream) -> Iterator[tuple[str, float, str]]:
    classes, num_classes = stream.training.classes, stream.limits.num_classes
    if num_classes is None or not classes:
        return
    names = [*map(repr, stream.class_names), *map(str, range(len(stream.class_names), num_classes))]
    missing = [names[number] for number in range(num_classes) if number not in classes]
    if missing:
        words = ", ".join(missing[:5]) + (", …" if len(missing) > 5 else "")
        which = f"{len(missing)} of {num_classes} classes of {stream.name!r}"
        sentence = f"{which} have no sample among those read: {words}."
        yield "classes_without_samples", len(missing), sentence
    most, rarest = max(classes, key=classes.__getitem__), min(classes, key=classes.__getitem__)
    ratio = classes[most] / classes[rarest]
    # Classes of tokens are always unbalanced: most tokens of a text belong to no entity.
    if ratio > _MOST_TIMES_FREQUENT and stream.training.share_learned is None:
        sentence = (
            f"Class {names[most]} of {stream.name!r} is {ratio:.0f} times as frequent as {names[rarest]} "
            f"({classes[most]:,} and {classes[rarest]:,} samples): accuracy will say little."
        )
        yield "unbalanced_classes", ratio, sentence


def _of_all(number: int, stream: InspectedStream) -> str:
    read = stream.training.num_read
    return f"{number:,} of the {read:,} samples read of {stream.name!r} ({number / read:.1%})"


def _duplicates(overlaps: list[Overlap]) -> Iterator[Finding]:
    """Yields each overlap that matters; one of the two directions between streams, the greater one."""
    shares = {(overlap.stream, overlap.other): overlap.share for overlap in overlaps if not overlap.is_validation}
    for overlap in overlaps:
        least = "" if overlap.is_whole else "At least "
        read = count(overlap.num_read, overlap.kind.removesuffix("s"))
        words = f"{least}{overlap.num_samples:,} of {read} ({overlap.share:.1%}) of {overlap.stream!r}"
        streams = list(dict.fromkeys((overlap.stream, overlap.other)))
        if overlap.is_validation:
            own = "its own training" if overlap.stream == overlap.other else f"the training of {overlap.other!r}"
            sentence = f"{words} for validation are in {own} data too: the validation loss will be too low."
            yield Finding("validation_in_training", streams, overlap.share, sentence)
        elif overlap.share <= _MOST_DUPLICATES:
            continue
        elif overlap.is_within:
            sentence = f"{words} repeat an earlier one: they count more often than others."
            yield Finding("repeated_samples", streams, overlap.share, sentence)
        elif (overlap.share, overlap.other) > (shares.get((overlap.other, overlap.stream), 0.0), overlap.stream):
            sentence = f"{words} are in {overlap.other!r} too: the two weights do not give the true proportions."
            yield Finding("shared_samples", streams, overlap.share, sentence)


def _of_the_run(inspection: Inspection) -> Iterator[Finding]:
    batch, streams = inspection.batch, inspection.streams
    if batch.error:
        yield Finding("failed_batch", [], 1, f"The first step cannot be formed: {batch.error}")
    if batch.padding is not None and batch.padding > _MOST_PADDING:
        sentence = (
            f"{batch.padding:.0%} of the first step is padding: group samples by length "
            "(train_sampling_strategy: group_by_length), limit max_tokens_per_micro_batch, or pack texts "
            "(Text packs by default)."
        )
        yield Finding("padding", [], batch.padding, sentence)
    yield from _unequal_lengths(inspection)
    without = [stream.name for stream in streams if stream.validation is None and not stream.is_memory]
    if inspection.evaluates and without:
        sentence = (
            f"{len(without)} of {count(len(streams), 'stream')} have no data for evaluation: "
            f"{', '.join(map(repr, without))}. Name them in eval_dataset; in a recipe, set validation or "
            "data.validation_split."
        )
        yield Finding("no_evaluation", without, len(without), sentence)


def _unequal_lengths(inspection: Inspection) -> Iterator[Finding]:
    """A loss that is a mean over tokens gives long samples more weight than weights by samples say."""
    tokens = {
        stream.name: stream.training.lengths.mean
        for stream in inspection.streams
        if stream.training.lengths is not None and stream.training.unit == "tokens" and stream.weight > 0
    }
    is_per_token = inspection.task in ("causal-lm", "masked-lm", "seq2seq-lm")
    if not tokens or not is_per_token or inspection.weight_unit != "samples":
        return
    longest, shortest = max(tokens, key=tokens.__getitem__), min(tokens, key=tokens.__getitem__)
    ratio = tokens[longest] / tokens[shortest] if tokens[shortest] else float("inf")
    if ratio > _MOST_TIMES_LONGER:
        weights = {stream.name: stream.weight for stream in inspection.streams}
        share = weights[longest] * tokens[longest] / sum(weights[name] * mean for name, mean in tokens.items())
        sentence = (
            f"Samples of {longest!r} are {ratio:.1f} times as long as samples of {shortest!r} ({tokens[longest]:,.0f} "
            f"and {tokens[shortest]:,.0f} tokens), and weights are shares of samples: with a weight of "
            f"{weights[longest]:.2f} it has {share:.0%} of the tokens. A policy with unit: tokens mixes by tokens."
        )
        yield Finding("unequal_lengths", [longest, shortest], ratio, sentence)
