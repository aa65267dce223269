"""Measures samples one after the other."""

from array import array
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from mixer.analysis.inspect.digests import digest
from mixer.analysis.inspect.measures import Limits, Measures, Outside
from mixer.analysis.inspect.reading import SampleReading
from mixer.analysis.inspect.tokens import (
    TOKEN_COLUMNS,
    class_of,
    labels_by_token,
    labels_of,
    length_of,
    num_learned,
    tokens_of,
)
from mixer.recipe.data.formats.tokens import IGNORED
from mixer.utils.arrays import Int64Array

_OF_VOCABULARY = ("causal-lm", "masked-lm", "seq2seq-lm")  # tasks whose labels are tokens


def measure(dataset: Any, most: int, seed: int, limits: Limits) -> Measures:
    """Measures samples of a data set.

    Args:
        dataset: The data set.
        most: The most samples that are looked at.
        seed: Seed of which those are.
        limits: What the model knows.

    Returns:
        What was measured.
    """
    reading, measuring = SampleReading(dataset, most, seed, TOKEN_COLUMNS), _Measuring(limits)
    for index, sample in reading:
        measuring.add(index, sample)
    columns = getattr(dataset, "column_names", None) or measuring.columns
    return measuring.result(reading, columns)


class _Measuring:
    """Takes samples one after the other."""

    def __init__(self, limits: Limits):
        self.columns: list[str] | None = None
        self._limits, self._unit, self._num_with_end, self._learns_tokens = limits, "", 0, False
        self._lengths, self._learned, self._digests = array("q"), array("q"), array("Q")
        self._classes: Counter[int] = Counter()
        self._unknown_tokens, self._unknown_labels = Outside(), Outside()

    def add(self, index: int, sample: Any) -> None:
        """Measures a sample."""
        tokens, labels = tokens_of(sample), labels_of(sample)
        length, unit = length_of(sample, tokens)
        if self.columns is None and isinstance(sample, Mapping):
            self.columns = [str(name) for name in sample]
        self._unit = self._unit or unit
        self._lengths.append(length if unit == self._unit else -1)
        self._learned.append(num_learned(tokens, labels, self._limits.task))
        self._digests.append(digest(_known_by(sample)))
        if tokens is not None:
            self._unknown_tokens.note(index, tokens, self._limits.vocabulary)
        self._add_labels(index, tokens, labels)

    def _add_labels(self, index: int, tokens: Int64Array | None, labels: Any) -> None:
        limits, single = self._limits, class_of(labels)
        by_token = labels_by_token(tokens if labels is None else labels, tokens, limits.task)
        self._learns_tokens |= by_token is not None and limits.task != "seq2seq-lm"
        if limits.task in _OF_VOCABULARY and by_token is not None:
            counted = by_token[by_token != IGNORED]
            self._num_with_end += limits.end is not None and bool((counted == limits.end).any())
            self._unknown_labels.note(index, counted, limits.vocabulary if labels is not None else None)
        elif limits.num_classes is not None and labels is not None:
            given = by_token if by_token is not None else np.array([] if single is None else [single], np.int64)
            counted = given[given != IGNORED]
            self._unknown_labels.note(index, counted, limits.num_classes)
            self._classes.update(counted[(counted >= 0) & (counted < limits.num_classes)].tolist())

    def result(self, reading: SampleReading, columns: list[str] | None) -> Measures:
        """Gives what was measured."""
        return Measures(
            reading.size,
            len(self._lengths),
            reading.is_whole,
            columns,
            self._unit,
            self._learns_tokens,
            np.array(self._lengths, np.int64),
            np.array(self._learned, np.int64),
            np.array(self._digests, np.uint64),
            None if self._limits.end is None else self._num_with_end,
            dict(sorted(self._classes.items())),
            self._unknown_tokens,
            self._unknown_labels,
            reading.num_broken,
            reading.broken,
        )


def _known_by(sample: Any) -> Any:
    """Gives that of a sample by which it is known again: tokens and labels, or else all of it."""
    if not isinstance(sample, Mapping) or "input_ids" not in sample:
        return sample
    labels = labels_of(sample)
    return {"input_ids": sample["input_ids"], **({} if labels is None else {"labels": labels})}
