"""What of a sample is tokens, labels and length."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from mixer.models.labels import LABEL_COLUMNS
from mixer.recipe.data.formats.tokens import IGNORED
from mixer.utils.arrays import Int64Array

# What a sample with tokens is known again by, and the only columns that are read of it.
TOKEN_COLUMNS = ("input_ids", *LABEL_COLUMNS)


def tokens_of(sample: Any) -> Int64Array | None:
    """Gives the tokens of a sample.

    Args:
        sample: A sample of any kind.

    Returns:
        int64 `[num_tokens]`; `None` where it has none.
    """
    return _whole_numbers(sample["input_ids"]) if isinstance(sample, Mapping) and "input_ids" in sample else None


def labels_of(sample: Any) -> Any:
    """Gives the labels of a sample.

    Args:
        sample: A sample of any kind.

    Returns:
        What stands in its column of labels; `None` where it has none.
    """
    if not isinstance(sample, Mapping):
        return None
    return next((sample[name] for name in LABEL_COLUMNS if sample.get(name) is not None), None)


def labels_by_token(labels: Any, tokens: Int64Array | None, task: str) -> Int64Array | None:
    """Gives labels that are one for each token.

    Args:
        labels: What `labels_of` gave.
        tokens: The sample's tokens.
        task: The model's task; what a model with an encoder writes has a length of its own.

    Returns:
        int64 `[num_labels]`; `None` where they are something else, such as a class.
    """
    if tokens is None or labels is None:
        return None
    numbers = _whole_numbers(labels)
    return numbers if numbers is not None and (task == "seq2seq-lm" or len(numbers) == len(tokens)) else None


def class_of(labels: Any) -> int | None:
    """Gives the class that is the label of a whole sample.

    Args:
        labels: What `labels_of` gave.

    Returns:
        Its number; `None` where it is something else, such as a fraction.
    """
    if isinstance(labels, torch.Tensor | np.ndarray | np.generic):
        labels = labels.item() if math.prod(labels.shape) == 1 else None
    return int(labels) if isinstance(labels, int) else None


def num_learned(tokens: Int64Array | None, labels: Any, task: str) -> int:
    """Counts what is learned of a sample.

    Args:
        tokens: Its tokens.
        labels: What `labels_of` gave.
        task: The model's task: the first token of a causal model is told by none before it.

    Returns:
        Tokens with a label, 1 for a label of the whole sample; -1 where nobody can tell before it is collated.
    """
    first = 1 if task == "causal-lm" else 0
    by_token = labels_by_token(labels, tokens, task)
    if by_token is not None:
        return int((by_token[first:] != IGNORED).sum())
    if labels is not None:
        return int(class_of(labels) != IGNORED)
    if tokens is not None and task in ("causal-lm", "masked-lm"):  # the collator makes labels of the tokens
        return max(0, len(tokens) - first)
    return -1


def length_of(sample: Any, tokens: Int64Array | None) -> tuple[int, str]:
    """Measures how long a sample is.

    Args:
        sample: The sample.
        tokens: Its tokens.

    Returns:
        How long, and in what: tokens, or else the characters of its texts; -1 and nothing where it has neither.
    """
    if tokens is not None:
        return len(tokens), "tokens"
    texts = [sample] if isinstance(sample, str) else list(sample.values()) if isinstance(sample, Mapping) else []
    lengths = [len(text) for text in texts if isinstance(text, str)]
    return (sum(lengths), "characters") if lengths else (-1, "")


def _whole_numbers(values: Any) -> Int64Array | None:
    """Gives whole numbers in a row, or `None` for anything else."""
    try:
        array = np.asarray(values)
    except (ValueError, TypeError):
        return None
    if array.ndim != 1 or not (array.dtype.kind in "biu" or array.size == 0):
        return None
    return array.astype(np.int64)
