"""Lengths, labels and faults of the samples of one data set."""

from array import array
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from mixer.analysis.inspect.duplicates import digest
from mixer.analysis.inspect.reading import Faults, SampleReading
from mixer.analysis.inspect.tokens import class_of, labels_by_token, labels_of, length_of, num_learned, tokens_of
from mixer.models.labels import LABEL_COLUMNS
from mixer.recipe.data.formats.tokens import IGNORED
from mixer.utils.arrays import Int64Array, UInt64Array

_QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
_PREDICTS_TOKENS = ("causal-lm", "masked-lm", "seq2seq-lm")


@dataclass(frozen=True)
class Limits:
    """The inputs and labels that a model can take.

    Args:
        task: The model's task.
        vocabulary: Size of the vocabulary; `None` if unknown.
        num_classes: Number of classes of the head; `None` for another head.
        end: The end-of-text token of a causal model; `None` without one.
        positions: Maximum number of tokens; `None` for no limit.
    """

    task: str
    vocabulary: int | None = None
    num_classes: int | None = None
    end: int | None = None
    positions: int | None = None


@dataclass(frozen=True)
class Lengths:
    """The distribution of lengths.

    Args:
        mean: The mean.
        quantiles: By share of the samples, from 0 (the minimum) to 1 (the maximum); each is the length of a sample.
    """

    mean: float
    quantiles: dict[float, int]


@dataclass(frozen=True)
class Measures:
    """Lengths, labels and faults of samples.

    Args:
        size: Number of samples of the data set; `None` if unknown.
        num_read: Number of samples that were read.
        is_whole: Whether all were read.
        columns: Columns of the data set; `None` if its samples are no mappings.
        unit: Unit of the lengths: tokens or characters; empty for neither.
        lengths: Their distribution; `None` without any.
        share_learned: Share of the tokens that have a label; `None` if unknown.
        num_empty: Number of samples of length 0.
        nothing_learned: Number of other samples without any label.
        num_with_end: Number of samples that have the end-of-text token as a label; `None` without such a token.
        beyond_positions: Number of samples that are longer than the model's positions.
        classes: How often each class is a label, by class.
        unknown_tokens: Samples with a token beyond the vocabulary.
        unknown_labels: Samples with a label beyond the vocabulary or the classes.
        broken: Samples that cannot be read.
        digests: uint64 `[num_read]`: a digest of each sample.
    """

    size: int | None
    num_read: int
    is_whole: bool
    columns: list[str] | None
    unit: str
    lengths: Lengths | None
    share_learned: float | None
    num_empty: int
    nothing_learned: int
    num_with_end: int | None
    beyond_positions: int
    classes: dict[int, int]
    unknown_tokens: Faults
    unknown_labels: Faults
    broken: Faults
    digests: UInt64Array


def measure(dataset: Any, most: int, seed: int, limits: Limits) -> Measures:
    """Measures samples of a data set: all, or `most` that are drawn by the seed."""
    reading, samples = SampleReading(dataset, most, seed, ("input_ids", *LABEL_COLUMNS)), _Samples(limits)
    for index, sample in reading:
        samples.add(index, sample)
    lengths, learned = np.array(samples.lengths, np.int64), np.array(samples.learned, np.int64)
    is_known = (learned >= 0) & (lengths >= 0)
    num_tokens = int(lengths[is_known].sum()) if samples.learns_tokens else 0
    is_beyond = lengths > (limits.positions or np.inf) if samples.unit == "tokens" else np.zeros(0)
    return Measures(
        size=reading.size,
        num_read=len(lengths),
        is_whole=reading.is_whole,
        columns=getattr(dataset, "column_names", None) or samples.columns,
        unit=samples.unit,
        lengths=distribution_of(lengths[lengths >= 0]),
        share_learned=float(learned[is_known].sum() / num_tokens) if num_tokens else None,
        num_empty=int((lengths == 0).sum()),
        nothing_learned=int(((learned == 0) & (lengths != 0)).sum()),
        num_with_end=None if limits.end is None else samples.num_with_end,
        beyond_positions=int(is_beyond.sum()),
        classes=dict(sorted(samples.classes.items())),
        unknown_tokens=samples.unknown_tokens,
        unknown_labels=samples.unknown_labels,
        broken=reading.broken,
        digests=np.array(samples.digests, np.uint64),
    )


def distribution_of(numbers: Int64Array) -> Lengths | None:
    """Returns the distribution of lengths; `None` for none.

    Example:
        >>> distribution_of(np.array([1, 2, 3, 30])).quantiles[0.5]
        2
    """
    if not len(numbers):
        return None
    values: Any = np.quantile(numbers, _QUANTILES, method="inverted_cdf")
    quantiles = dict(zip(_QUANTILES, map(int, values), strict=True))
    return Lengths(float(numbers.mean()), quantiles)


class _Samples:
    """Collects the measures of samples, one sample after the other: 24 bytes each."""

    def __init__(self, limits: Limits):
        self.columns: list[str] | None = None
        self.unit, self.learns_tokens, self.num_with_end = "", False, 0
        self.lengths, self.learned, self.digests = array("q"), array("q"), array("Q")
        self.classes: Counter[int] = Counter()
        self.unknown_tokens, self.unknown_labels = Faults(), Faults()
        self._limits = limits

    def add(self, index: int, sample: Any) -> None:
        tokens, labels = tokens_of(sample), labels_of(sample)
        length, unit = length_of(sample, tokens)
        if self.columns is None and isinstance(sample, Mapping):
            self.columns = [str(name) for name in sample]
        self.unit = self.unit or unit
        self.lengths.append(length if unit == self.unit else -1)
        self.learned.append(num_learned(tokens, labels, self._limits.task))
        has_tokens = isinstance(sample, Mapping) and "input_ids" in sample
        self.digests.append(digest({"input_ids": sample["input_ids"], "labels": labels} if has_tokens else sample))
        if tokens is not None:
            _check(self.unknown_tokens, index, tokens, self._limits.vocabulary)
        self._add_labels(index, tokens, labels)

    def _add_labels(self, index: int, tokens: Int64Array | None, labels: Any) -> None:
        limits, single = self._limits, class_of(labels)
        by_token = labels_by_token(tokens if labels is None else labels, tokens, limits.task)
        self.learns_tokens |= by_token is not None and limits.task != "seq2seq-lm"
        if limits.task in _PREDICTS_TOKENS and by_token is not None:
            counted = by_token[by_token != IGNORED]
            self.num_with_end += limits.end is not None and bool((counted == limits.end).any())
            _check(self.unknown_labels, index, counted, limits.vocabulary if labels is not None else None)
        elif limits.num_classes is not None and labels is not None:
            numbers = by_token if by_token is not None else np.array([] if single is None else [single], np.int64)
            counted = numbers[numbers != IGNORED]
            _check(self.unknown_labels, index, counted, limits.num_classes)
            self.classes.update(counted[(counted >= 0) & (counted < limits.num_classes)].tolist())


def _check(faults: Faults, index: int, numbers: Int64Array, limit: int | None) -> None:
    unknown = numbers[:0] if limit is None else numbers[(numbers < 0) | (numbers >= limit)]
    if len(unknown):
        faults.add(index, int(unknown[0]))
