"""Lengths, labels and faults of the samples of one data set, and truncation by a format."""

import math
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from os.path import commonprefix
from typing import Any

import numpy as np
import torch

from mixer.loading.row_digest import digest
from mixer.models.labels import IGNORED, LABEL_COLUMNS
from mixer.tools.analysis.inspect.sample_reader import Faults, SampleReading
from mixer.tools.console import Result
from mixer.tools.recipe.data.formats import Chat, Dialogue
from mixer.tools.recipe.data.formats.tokens import IS_PARSED, length_limit
from mixer.tools.recipe.data.formatting import readable
from mixer.tools.recipe.streams import BuiltStream
from mixer.utils.arrays import Int64Array, UInt64Array

_QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
_MOST_REFORMATTED = 1000  # rows
_NO_LIMIT = 1_000_000_000  # tokens: longer than any sample
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
class Truncation:
    """The rows of a stream that its format truncates.

    Args:
        max_length: Maximum number of tokens of a sample.
        num_rows: Number of rows that were formatted again, without the limit.
        num_cut: Number of these that are longer.
        share_cut: Share of these that are longer.
        share_lost: Share of their tokens beyond the limit.
        num_unlearned: Number of rows of which all that would be learned is cut off, so that they are left out.
        num_learned_partly: Number of other rows of which a part of what would be learned is cut off.
    """

    max_length: int
    num_rows: int
    num_cut: int
    share_cut: float
    share_lost: float
    num_unlearned: int = 0
    num_learned_partly: int = 0


class Measures(Result):
    """Lengths, labels and faults of samples of a data set: of all, or of `most` that are drawn by the seed.

    Attributes:
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
    """

    def __init__(self, dataset: Any, most: int, seed: int, limits: Limits):
        self.columns: list[str] | None = getattr(dataset, "column_names", None) or None
        self.unit, self.num_with_end = "", None if limits.end is None else 0
        self.unknown_tokens, self.unknown_labels = Faults(), Faults()
        self._limits, self._learns_tokens, self._classes = limits, False, Counter[int]()
        self._lengths, self._learned, self._digests = array("q"), array("q"), array("Q")  # 24 bytes per sample
        reading = SampleReading(dataset, most, seed, ("input_ids", *LABEL_COLUMNS))
        for index, sample in reading:
            self._add(index, sample)
        lengths, learned = np.array(self._lengths, np.int64), np.array(self._learned, np.int64)
        is_known = (learned >= 0) & (lengths >= 0)
        num_tokens = int(lengths[is_known].sum()) if self._learns_tokens else 0
        is_beyond = lengths > (limits.positions or np.inf) if self.unit == "tokens" else np.zeros(0)
        self.classes = dict(sorted(self._classes.items()))
        self.size, self.is_whole, self.broken = reading.size, reading.is_whole, reading.broken
        self.num_read = len(lengths)
        self.lengths = distribution_of(lengths[lengths >= 0])
        self.share_learned = float(learned[is_known].sum() / num_tokens) if num_tokens else None
        self.num_empty = int((lengths == 0).sum())
        self.nothing_learned = int(((learned == 0) & (lengths != 0)).sum())
        self.beyond_positions = int(is_beyond.sum())

    @property
    def digests(self) -> UInt64Array:
        """uint64 `[num_read]`: a digest of each sample."""
        return np.array(self._digests, np.uint64)

    def _add(self, index: int, sample: Any) -> None:
        tokens, labels = tokens_of(sample), labels_of(sample)
        length, unit = length_of(sample, tokens)
        if self.columns is None and isinstance(sample, Mapping):
            self.columns = [str(name) for name in sample]
        self.unit = self.unit or unit
        self._lengths.append(length if unit == self.unit else -1)
        self._learned.append(-1 if pair_in(sample) else num_learned(tokens, labels, self._limits.task))
        has_tokens = isinstance(sample, Mapping) and "input_ids" in sample
        self._digests.append(digest({"input_ids": sample["input_ids"], "labels": labels} if has_tokens else sample))
        if tokens is not None:
            _check(self.unknown_tokens, index, tokens, self._limits.vocabulary)
        self._add_labels(index, tokens, labels)

    def _add_labels(self, index: int, tokens: Int64Array | None, labels: Any) -> None:
        limits, single = self._limits, class_of(labels)
        by_token = labels_by_token(tokens if labels is None else labels, tokens, limits.task)
        self._learns_tokens |= by_token is not None and limits.task != "seq2seq-lm"
        if limits.task in _PREDICTS_TOKENS and by_token is not None:
            counted = by_token[by_token != IGNORED]
            if self.num_with_end is not None:
                self.num_with_end += bool((counted == limits.end).any())
            _check(self.unknown_labels, index, counted, limits.vocabulary if labels is not None else None)
        elif limits.num_classes is not None and labels is not None:
            numbers = by_token if by_token is not None else np.array([] if single is None else [single], np.int64)
            counted = numbers[numbers != IGNORED]
            _check(self.unknown_labels, index, counted, limits.num_classes)
            self._classes.update(counted[(counted >= 0) & (counted < limits.num_classes)].tolist())


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


def _check(faults: Faults, index: int, numbers: Int64Array, limit: int | None) -> None:
    unknown = numbers[:0] if limit is None else numbers[(numbers < 0) | (numbers >= limit)]
    if len(unknown):
        faults.add(index, int(unknown[0]))


def tokens_of(sample: Any) -> Int64Array | None:
    """Returns the tokens of a sample, or of a pair of answers, int64 `[num_tokens]`; `None` without any."""
    if (pair := pair_in(sample)) is not None:
        prompt, *answers = pair
        return np.array([token for answer in answers for token in (*prompt, *answer)], np.int64)
    return _integers(sample["input_ids"]) if isinstance(sample, Mapping) and "input_ids" in sample else None


def pair_in(sample: Any) -> tuple[list[int], list[int], list[int]] | None:
    """Returns prompt, chosen and rejected answer of a sample that TRL has tokenized; `None` for another sample."""
    if not isinstance(sample, Mapping) or not {"chosen_ids", "rejected_ids"} <= sample.keys():
        return None
    chosen, rejected = list(sample["chosen_ids"]), list(sample["rejected_ids"])
    if "prompt_ids" in sample:
        return list(sample["prompt_ids"]), chosen, rejected
    length = len(commonprefix([chosen, rejected]))  # noqa: RUF071 of lists, not paths
    return chosen[:length], chosen[length:], rejected[length:]


def labels_of(sample: Any) -> Any:
    """Returns the content of a sample's label column; `None` without one."""
    if not isinstance(sample, Mapping):
        return None
    return next((sample[name] for name in LABEL_COLUMNS if sample.get(name) is not None), None)


def labels_by_token(labels: Any, tokens: Int64Array | None, task: str) -> Int64Array | None:
    """Returns labels that are a sequence of tokens.

    Args:
        labels: The sample's labels.
        tokens: The sample's tokens.
        task: The model's task; the labels of `seq2seq-lm` have a length of their own.

    Returns:
        int64 `[num_labels]`; `None` for other labels, such as a class.
    """
    if tokens is None or labels is None:
        return None
    numbers = _integers(labels)
    return numbers if numbers is not None and (task == "seq2seq-lm" or len(numbers) == len(tokens)) else None


def class_of(labels: Any) -> int | None:
    """Returns the class of a whole sample; `None` for other labels, such as a fraction."""
    if isinstance(labels, torch.Tensor | np.ndarray | np.generic):
        labels = labels.item() if math.prod(labels.shape) == 1 else None
    return int(labels) if isinstance(labels, int) else None


def num_learned(tokens: Int64Array | None, labels: Any, task: str) -> int:
    """Counts the labels of a sample that contribute to the loss.

    Args:
        tokens: The sample's tokens.
        labels: The sample's labels.
        task: The model's task; a causal model does not predict the first token.

    Returns:
        Number of tokens with a label, or 1 for a label of the whole sample; -1 if only the collator can tell.
    """
    first = 1 if task == "causal-lm" else 0
    by_token = labels_by_token(labels, tokens, task)
    if by_token is not None:
        return int((by_token[first:] != IGNORED).sum())
    if labels is not None:
        return int(class_of(labels) != IGNORED)
    if tokens is not None and task in ("causal-lm", "masked-lm"):  # the collator copies the tokens to the labels
        return max(0, len(tokens) - first)
    return -1


def length_of(sample: Any, tokens: Int64Array | None) -> tuple[int, str]:
    """Returns the length of a sample and its unit: tokens, else characters; `(-1, "")` if it has neither."""
    if tokens is not None:
        return len(tokens), "tokens"
    values = sample.values() if isinstance(sample, Mapping) else [sample]
    lengths = [len(value) for value in values if isinstance(value, str)]
    return (sum(lengths), "characters") if lengths else (-1, "")


def _integers(values: Any) -> Int64Array | None:
    """Returns a sequence of integers as an array; `None` for anything else."""
    try:
        array = np.asarray(values)
    except (ValueError, TypeError):
        return None
    return array.astype(np.int64) if array.ndim == 1 and (array.dtype.kind in "biu" or array.size == 0) else None


def truncation_of(built: BuiltStream, tokenizer: Any, task: str, most_rows: int, seed: int) -> Truncation | None:
    """Formats some rows of a stream again without a limit, and counts those that are longer than it.

    Returns:
        The truncated rows; `None` if there is no format, or it packs or has no limit.
    """
    chosen: Any = built.format
    if chosen is None or chosen.packs or built.rows is None or not hasattr(chosen, "max_length"):
        return None
    limit = length_limit(chosen.max_length, tokenizer)
    if limit is None:
        return None
    lengths = []  # of the input and, for a model with a decoder of its own, of the target
    learned = []  # labels within the limit, and beyond it
    for sample in _reformatted(built, replace(chosen, max_length=_NO_LIMIT), tokenizer, task, most_rows, seed):
        labels = labels_by_token(sample.get("labels"), tokens_of(sample), task)
        lengths.append((len(sample["input_ids"]), len(sample["labels"]) if task == "seq2seq-lm" else 0))
        if labels is not None:
            is_learned = labels != IGNORED
            learned.append((is_learned[task == "causal-lm" : limit].sum(), is_learned[limit:].sum()))
    whole, (within, beyond) = np.array(lengths, np.int64).reshape(-1, 2), np.array(learned, np.int64).reshape(-1, 2).T
    num_cut, total = int((whole > limit).any(axis=1).sum()), whole.sum()
    lost = (total - np.minimum(whole, limit).sum()) / max(1, total)
    answers = [int(((beyond > 0) & is_rest).sum()) for is_rest in (within == 0, within > 0)]
    return Truncation(limit, len(whole), num_cut, num_cut / max(1, len(whole)), float(lost), *answers)


def parsed_of(built: BuiltStream, tokenizer: Any, task: str, most_rows: int, seed: int) -> int | None:
    """Formats some rows of a stream again, and counts those in which a text in JSON was parsed.

    Returns:
        The number; `None` if the format is not of chats.
    """
    if not isinstance(built.format, Chat | Dialogue) or built.rows is None:
        return None
    samples = _reformatted(built, built.format, tokenizer, task, most_rows, seed)
    return sum(bool(sample.get(IS_PARSED)) for sample in samples)


def _reformatted(
    built: BuiltStream, chosen: Any, tokenizer: Any, task: str, most_rows: int, seed: int
) -> Iterator[dict[str, Any]]:
    """Formats rows again, each by itself."""
    for _, row in SampleReading(built.rows, min(most_rows, _MOST_REFORMATTED), seed):
        try:
            (sample,) = chosen.encode([readable(row, chosen, built.rows.features)], tokenizer, task)
        except Exception:  # noqa: S112  # a row of an iterable source; broken samples are counted elsewhere
            continue
        yield sample
