"""Plain text: documents packed into blocks, or a sample a row."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, ClassVar

from mixer.recipe.data.formats.base import Format, Row, Sample
from mixer.recipe.data.formats.tokens import check_max_length, end_of_text, length_limit, texts_of, without_end


@dataclass(frozen=True)
class Text(Format):
    """Plain text, every token of which is learned.

    A row is a document. Of a text file that is a line, where `DataSource(rows=...)` does not say otherwise: each line
    ends with an end-of-text token, and a model learns to stop after it.

    Packed, the documents of 1,000 rows at a time are put one after the other, each with the tokenizer's own first
    token if it has one and an end-of-text token, and cut into blocks; the last block of each 1,000 is shorter. So no
    token is lost (a last one alone has nothing to learn), and a stream that is read while it trains gives the same
    blocks and can go on from any of them. Documents in a block see each other.

    Args:
        column: The column of texts.
        max_length: Tokens of a block, or the most of a row. Default: the tokenizer's limit, if it has one.
        pack: Whether texts are packed into blocks; otherwise each row is a sample, cut off after `max_length` tokens.

    Raises:
        ValueError: If `max_length` is below 2.
    """

    tasks: ClassVar[Sequence[str]] = ("causal-lm", "masked-lm")

    column: str = "text"
    max_length: int | None = None
    pack: bool = True

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
            return [_sample(tokens, task) for tokens in self._by_row(rows, tokenizer, task, length)]
        if length is None:
            raise ValueError(
                f"{type(tokenizer).__name__} has no limit of its own: give max_length, the tokens of a block."
            )
        end = end_of_text(tokenizer)
        texts = [text for text in texts_of(rows, self.column) if text]
        documents = tokenizer(texts, verbose=False)["input_ids"] if texts else []
        blocks = cut_into_blocks(([*without_end(document, end), end] for document in documents), length)
        return [_sample(block, task) for block in blocks]

    def _by_row(self, rows: Sequence[Row], tokenizer: Any, task: str, length: int | None) -> list[list[int]]:
        texts = texts_of(rows, self.column)
        if task == "masked-lm":  # what its tokenizer puts at the end stays there
            cut: list[list[int]] = tokenizer(texts, truncation=length is not None, max_length=length)["input_ids"]
        else:
            end = end_of_text(tokenizer)
            whole = tokenizer(texts, verbose=False)["input_ids"]
            cut = [[*without_end(tokens, end), end][:length] for tokens in whole]
        return [tokens if text else [] for text, tokens in zip(texts, cut, strict=True)]


def cut_into_blocks(documents: Iterable[Sequence[int]], length: int) -> list[list[int]]:
    """Puts documents one after the other and cuts what comes of it.

    Args:
        documents: Tokens of each.
        length: Tokens of a block.

    Returns:
        Blocks of that length, the last of which may be shorter.

    Example:
        >>> cut_into_blocks([[1, 2, 3], [4, 5]], 2)
        [[1, 2], [3, 4], [5]]
    """
    tokens = list(chain.from_iterable(documents))
    return [tokens[start : start + length] for start in range(0, len(tokens), length)]


def _sample(tokens: Sequence[int], task: str) -> Sample:
    if task == "masked-lm":  # its collator masks, and makes the labels
        return {"input_ids": list(tokens)}
    return {"input_ids": list(tokens), "labels": list(tokens)}
