"""How many samples a format cuts off."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mixer.analysis.inspect.reading import SampleReading
from mixer.recipe.data.formats.tokens import length_limit
from mixer.recipe.streams import BuiltStream

MOST_ROWS = 1000
_BEYOND = 1_000_000_000  # tokens: longer than any sample


@dataclass(frozen=True)
class Truncation:
    """What of a stream's rows a format cuts off, by rows that were made into samples once more without a limit.

    Args:
        max_length: The most tokens of a sample.
        num_rows: How many rows were looked at.
        num_cut: How many of them are longer.
        share_lost: The share of all their tokens that is cut off.
    """

    max_length: int
    num_rows: int
    num_cut: int
    share_lost: float

    @property
    def share_cut(self) -> float:
        """The share of rows that are cut off."""
        return self.num_cut / self.num_rows if self.num_rows else 0.0


def truncation_of(built: BuiltStream, tokenizer: Any, task: str, most_rows: int, seed: int) -> Truncation | None:
    """Finds out how many rows of a stream its format cuts off.

    Args:
        built: The stream.
        tokenizer: The tokenizer.
        task: The model's task.
        most_rows: The most rows that are looked at.
        seed: Seed of which those are.

    Returns:
        What is cut off; `None` without a format, or for one that packs or knows no `max_length`.
    """
    chosen: Any = built.format
    if chosen is None or chosen.packs or not hasattr(chosen, "max_length"):
        return None
    limit = length_limit(chosen.max_length, tokenizer)
    if limit is None:
        return None
    unlimited = replace(chosen, max_length=_BEYOND)
    lengths = []
    for _, row in SampleReading(built.rows, min(most_rows, MOST_ROWS), seed):
        try:
            (sample,) = unlimited.encode([row], tokenizer, task)
        except Exception:  # noqa: S112  # of a source that is streamed; what cannot be read is told elsewhere
            continue
        lengths.append(_lengths(sample, task))
    whole = np.array(lengths, np.int64).reshape(-1, 2)
    total, kept = whole.sum(), np.minimum(whole, limit).sum()
    num_cut = int((whole > limit).any(axis=1).sum())
    return Truncation(limit, len(whole), num_cut, float((total - kept) / total) if total else 0.0)


def _lengths(sample: Any, task: str) -> tuple[int, int]:
    """Gives how many tokens are read, and how many a model with an encoder writes."""
    return len(sample["input_ids"]), len(sample["labels"]) if task == "seq2seq-lm" else 0
