"""Shared by formats: texts of a column, the length limit of samples and the end-of-text token."""

import datetime
import decimal
from collections.abc import Sequence
from typing import Any

from mixer.models.labels import IGNORED
from mixer.tools.recipe.data.formats.base import Row, Sample
from mixer.tools.recipe.places import retold
from mixer.utils.errors import InvalidValueError, require, wrong_value

NUM_CUT = "num_cut"  # field of a sample: how many of its labels max_length cuts off; removed before training
IS_PARSED = "is_parsed"  # field of a sample: whether a text in JSON was parsed; removed before training
WEIGHTS = ("weight", "weights", "sample_weight")  # columns of data sets with weighted rows

# Tokenizers without a limit have a huge number as their limit.
_NO_LIMIT = 1_000_000


def texts_of(rows: Sequence[Row], column: str) -> list[str]:
    """Reads a column of texts; a missing one is empty.

    Raises:
        ValueError: If a value is no text, and is not written in one way only.
    """
    try:
        return [text_of(row[column]) for row in rows]
    except ValueError as error:
        raise retold(error, f"column {column!r} has {error}: store texts.", option=column) from None


def text_of(value: Any) -> str:
    """Returns the characters of a value: nothing for `None`.

    Whole numbers, decimals of a fixed scale and dates are written in one way only. Fractions (3.1 or 3.10?), moments
    and truth values are not.

    Raises:
        ValueError: If it is neither a text nor written in one way only.
    """
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, decimal.Decimal):
        return f"{value:f}"
    if type(value) in (int, datetime.date):
        return str(value)
    raise InvalidValueError(f"{value!r}, a {type(value).__name__}, where a text is expected", found=value)


def length_limit(max_length: int | None, tokenizer: Any) -> int | None:
    """Returns the most tokens of a sample: `max_length`, else the tokenizer's limit; `None` for no limit."""
    if max_length is not None:
        return max_length
    own = int(tokenizer.model_max_length)
    return own if own < _NO_LIMIT else None


def within(length: int | None, tokens: Sequence[int], labels: Sequence[int]) -> Sample:
    """Makes a sample that is cut off after `length` tokens; `NUM_CUT` counts the labels that this loses, if any."""
    sample: Sample = {"input_ids": list(tokens[:length]), "labels": list(labels[:length])}
    lost = 0 if length is None else sum(label != IGNORED for label in labels[length:])
    return {**sample, NUM_CUT: lost} if lost else sample


def check_max_length(max_length: int | None, called: str) -> None:
    """Refuses a `max_length` that leaves nothing to learn.

    Args:
        max_length: The user's value.
        called: The format's name.

    Raises:
        ValueError: If it is below 2.
    """
    require(max_length is None or max_length >= 2, "max_length", f"at least 2 tokens for {called}", max_length)


def end_of_text(tokenizer: Any) -> int:
    """Returns the token that ends a document: the `eos_token`, else the `sep_token`.

    Raises:
        ValueError: If the tokenizer has neither.
    """
    end: int | None = tokenizer.eos_token_id if tokenizer.eos_token_id is not None else tokenizer.sep_token_id
    if end is None:
        raise wrong_value(
            "eos_token",
            f"is needed, or a sep_token, to end a text with, and {type(tokenizer).__name__} has none: set it, as in "
            "tokenizer: {factory: transformers.AutoTokenizer.from_pretrained, arguments: "
            "{pretrained_model_name_or_path: NAME, eos_token: '<|endoftext|>'}}.",
        )
    return end


def without_end(tokens: Sequence[int], end: int) -> list[int]:
    """Removes the end-of-text token from the end of a text, if it is there."""
    return list(tokens[:-1] if tokens and tokens[-1] == end else tokens)
