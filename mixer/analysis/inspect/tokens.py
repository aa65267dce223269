"""Tokens, labels and length of a sample, and truncation by a format."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from mixer.analysis.inspect.reading import SampleReading
from mixer.models.labels import LABEL_COLUMNS
from mixer.recipe.data.formats.tokens import IGNORED, length_limit
from mixer.recipe.streams import BuiltStream
from mixer.utils.arrays import Int64Array

_MOST_REFORMATTED = 1000  # rows
_NO_LIMIT = 1_000_000_000  # tokens: longer than any sample


def tokens_of(sample: Any) -> Int64Array | None:
    """Returns the tokens of a sample, int64 `[num_tokens]`; `None` without `input_ids`."""
    return _integers(sample["input_ids"]) if isinstance(sample, Mapping) and "input_ids" in sample else None


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
    values = [sample] if isinstance(sample, str) else sample.values() if isinstance(sample, Mapping) else []
    lengths = [len(value) for value in values if isinstance(value, str)]
    return (sum(lengths), "characters") if lengths else (-1, "")


def _integers(values: Any) -> Int64Array | None:
    """Returns a sequence of integers as an array; `None` for anything else."""
    try:
        array = np.asarray(values)
    except (ValueError, TypeError):
        return None
    return array.astype(np.int64) if array.ndim == 1 and (array.dtype.kind in "biu" or array.size == 0) else None


@dataclass(frozen=True)
class Truncation:
    """The rows of a stream that its format truncates.

    Args:
        max_length: Maximum number of tokens of a sample.
        num_rows: Number of rows that were formatted again, without the limit.
        num_cut: Number of these that are longer.
        share_cut: Share of these that are longer.
        share_lost: Share of their tokens beyond the limit.
    """

    max_length: int
    num_rows: int
    num_cut: int
    share_cut: float
    share_lost: float


def truncation_of(built: BuiltStream, tokenizer: Any, task: str, most_rows: int, seed: int) -> Truncation | None:
    """Formats some rows of a stream again without a limit, and counts those that are longer than it.

    Returns:
        The truncated rows; `None` if there is no format, or it packs or has no limit.
    """
    chosen: Any = built.format
    if chosen is None or chosen.packs or not hasattr(chosen, "max_length"):
        return None
    limit = length_limit(chosen.max_length, tokenizer)
    if limit is None:
        return None
    unlimited = replace(chosen, max_length=_NO_LIMIT)
    lengths = []  # of the input and, for a model with a decoder of its own, of the target
    for _, row in SampleReading(built.rows, min(most_rows, _MOST_REFORMATTED), seed):
        try:
            (sample,) = unlimited.encode([row], tokenizer, task)
        except Exception:  # noqa: S112  # a row of an iterable source; broken samples are counted elsewhere
            continue
        lengths.append((len(sample["input_ids"]), len(sample["labels"]) if task == "seq2seq-lm" else 0))
    whole = np.array(lengths, np.int64).reshape(-1, 2)
    num_cut, total = int((whole > limit).any(axis=1).sum()), whole.sum()
    lost = (total - np.minimum(whole, limit).sum()) / max(1, total)
    return Truncation(limit, len(whole), num_cut, num_cut / max(1, len(whole)), float(lost))
