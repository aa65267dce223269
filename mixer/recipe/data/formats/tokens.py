"""What formats have in common: the text of a column, the longest sample, the token that ends a document."""

from collections.abc import Sequence
from typing import Any

from mixer.recipe.data.formats.base import Row

IGNORED = -100  # the label of a token that no loss is computed for

# Tokenizers that know no limit give a number beyond any.
_NO_LIMIT = 1_000_000


def texts_of(rows: Sequence[Row], column: str) -> list[str]:
    """Reads a column of texts.

    Args:
        rows: The rows.
        column: Name of the column.

    Returns:
        The texts; empty where there is none.

    Raises:
        ValueError: If one is no text.
    """
    values = [row[column] for row in rows]
    wrong = [value for value in values if not (value is None or isinstance(value, str))]
    if wrong:
        raise ValueError(f"column {column!r} has {wrong[0]!r}, a {type(wrong[0]).__name__}, where a text is expected.")
    return ["" if value is None else value for value in values]


def length_limit(max_length: int | None, tokenizer: Any) -> int | None:
    """Gives the most tokens of a sample.

    Args:
        max_length: What the user says.
        tokenizer: The tokenizer, whose own limit holds otherwise.

    Returns:
        The number; `None` for no limit.
    """
    if max_length is not None:
        return max_length
    own = int(tokenizer.model_max_length)
    return own if own < _NO_LIMIT else None


def check_max_length(max_length: int | None, called: str) -> None:
    """Refuses a length that leaves nothing to learn.

    Args:
        max_length: What the user says.
        called: The format's name.

    Raises:
        ValueError: If it is below 2.
    """
    if max_length is not None and max_length < 2:
        raise ValueError(f"{called}: max_length must be at least 2 tokens, got {max_length}.")


def end_of_text(tokenizer: Any) -> int:
    """Gives the token that ends a document.

    Args:
        tokenizer: The tokenizer.

    Returns:
        Its `eos_token`; the `sep_token` of one that has none.

    Raises:
        ValueError: If it has neither.
    """
    end: int | None = tokenizer.eos_token_id if tokenizer.eos_token_id is not None else tokenizer.sep_token_id
    if end is None:
        raise ValueError(
            f"{type(tokenizer).__name__} has neither an eos_token nor a sep_token to end a text with: set one, as in "
            "tokenizer: {factory: transformers.AutoTokenizer.from_pretrained, arguments: "
            "{pretrained_model_name_or_path: NAME, eos_token: '<|endoftext|>'}}."
        )
    return end


def without_end(tokens: Sequence[int], end: int) -> list[int]:
    """Takes the last token of a text away if it is the one that ends it.

    Args:
        tokens: The text's tokens.
        end: The token that ends a document.

    Returns:
        The tokens before.
    """
    return list(tokens[:-1] if tokens and tokens[-1] == end else tokens)
