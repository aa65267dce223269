"""Plain text: documents packed into blocks, or one sample per row."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, ClassVar

from mixer.tools.recipe.data.formats.base import Format, Row, Sample
from mixer.tools.recipe.data.formats.tokens import (
    WEIGHTS,
    check_max_length,
    end_of_text,
    length_limit,
    texts_of,
    within,
    without_end,
)
from mixer.utils.errors import wrong_value


@dataclass(frozen=True)
class Text(Format):
    """Plain text; every token is learned.

    Each row is a document. A text file has one document per line unless `DataSource(rows=...)` says otherwise: each
    line then ends with an end-of-text token, and the model learns to stop after it.

    Packing concatenates the documents of 1,000 rows at a time and cuts them into blocks; the last block of each 1,000
    rows is shorter. A document begins with the tokenizer's own first token, if it has one, and ends with an end-of-text
    token. No token is lost, except a last one that would be alone in its block. Blocks of streamed data are the same,
    and a run can resume at any of them. Documents in a block attend to each other.

    Args:
        column: The column of texts.
        max_length: Tokens of a block, or most tokens of a row. Default: the tokenizer's limit, if it has one.
        pack: Whether to pack texts into blocks. Otherwise each row is a sample, cut off after `max_length` tokens.
        ignored_columns: Columns to leave unread that would be refused by their names, such as `weight`.

    Raises:
        ValueError: If `max_length` is below 2.
    """

    tasks: ClassVar[Sequence[str]] = ("causal-lm", "masked-lm")
    telling_columns: ClassVar[Sequence[str]] = WEIGHTS

    column: str = "text"
    max_length: int | None = None
    pack: bool = True
    ignored_columns: Sequence[str] = ()

    def __post_init__(self) -> None:
        check_max_length(self.max_length, "Text")

    @property
    def packs(self) -> bool:
        """See `Format.packs`."""
        return self.pack

    @property
    def columns(self) -> Sequence[str]:
        """See `Format.columns`."""
        return (self.column,)

    def encode(self, rows: Sequence[Row], tokenizer: Any, task: str) -> list[Sample]:
        """See `Format.encode`."""
        length = length_limit(self.max_length, tokenizer)
        if not self.pack:
            by_row = self._by_row(rows, tokenizer, task, length)
            return [within(length, own, own) if task == "causal-lm" else _sample(own, task) for own in by_row]
        if length is None:
            text = f"is needed, the tokens of a block: {type(tokenizer).__name__} has no limit of its own."
            raise wrong_value("max_length", text)
        end = end_of_text(tokenizer)
        texts = [text for text in texts_of(rows, self.column) if text]
        documents = tokenizer(texts, verbose=False)["input_ids"] if texts else []
        blocks = cut_into_blocks(([*without_end(document, end), end] for document in documents), length)
        return [_sample(block, task) for block in blocks]

    def _by_row(self, rows: Sequence[Row], tokenizer: Any, task: str, length: int | None) -> list[list[int]]:
        texts = texts_of(rows, self.column)
        if task == "masked-lm":  # special tokens at the end stay
            encoded: list[list[int]] = tokenizer(texts, truncation=length is not None, max_length=length)["input_ids"]
        else:
            end = end_of_text(tokenizer)
            encoded = [[*without_end(own, end), end] for own in tokenizer(texts, verbose=False)["input_ids"]]
        return [tokens if text else [] for text, tokens in zip(texts, encoded, strict=True)]


def cut_into_blocks(documents: Iterable[Sequence[int]], length: int) -> list[list[int]]:
    """Concatenates documents and cuts them into blocks of `length` tokens; the last may be shorter.

    Example:
        >>> cut_into_blocks([[1, 2, 3], [4, 5]], 2)
        [[1, 2], [3, 4], [5]]
    """
    tokens = list(chain.from_iterable(documents))
    return [tokens[start : start + length] for start in range(0, len(tokens), length)]


def _sample(tokens: Sequence[int], task: str) -> Sample:
    if task == "masked-lm":  # its collator masks and makes the labels
        return {"input_ids": list(tokens)}
    return {"input_ids": list(tokens), "labels": list(tokens)}
