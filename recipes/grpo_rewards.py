"""Prompts and rewards of `grpo.yaml`: a reward function gets the completions and the columns of their rows."""

from collections.abc import Sequence
from typing import Any

import datasets

NAMES = ("numpy.mean", "numpy.sort", "pandas.concat", "pandas.merge", "torch.stack", "torch.where")


def sums() -> datasets.Dataset:
    """Prompts with a sum."""
    return datasets.Dataset.from_list([{"prompt": f"What is {a} + {b}?"} for a in range(10) for b in range(10)])


def names() -> datasets.Dataset:
    """Prompts with the name of a function."""
    return datasets.Dataset.from_list([{"prompt": f"What does {name} do?"} for name in NAMES * 4])


def without_letters(completions: Sequence[str], **_columns: Any) -> list[float]:
    """The share of characters that are no letters."""
    return [sum(not own.isalpha() for own in text) / max(len(text), 1) for text in completions]


def full_stop(completions: Sequence[str], **_columns: Any) -> list[float]:
    """1 for an answer that has a full stop."""
    return [float("." in text) for text in completions]
