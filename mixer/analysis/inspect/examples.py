"""Samples as people read them, what is learned marked."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np

from mixer.analysis.inspect.reading import SampleReading
from mixer.analysis.inspect.tokens import class_of, labels_by_token, labels_of, tokens_of
from mixer.recipe.data.formats.tokens import IGNORED
from mixer.utils.arrays import BoolArray, Int64Array
from mixer.utils.text import shortened

NUM_EXAMPLES = 3
_MOST_CHARACTERS = 400


@dataclass(frozen=True)
class Piece:
    """A part of a sample.

    Args:
        text: Its text.
        is_learned: Whether the model learns to say it.
    """

    text: str
    is_learned: bool


@dataclass(frozen=True)
class Example:
    """A sample to be read.

    Args:
        index: Its index; of a data set that can only be iterated, its place.
        pieces: What the model reads, in pieces that are learned or not; of a sample without tokens, its `repr`.
        label: What is learned beside that: what a model with an encoder writes, or a class; `None` for nothing.
    """

    index: int
    pieces: list[Piece] = field(default_factory=list)
    label: str | None = None


@dataclass(frozen=True)
class Decoding:
    """How samples are made readable.

    Args:
        tokenizer: What decodes; `None` shows the numbers of tokens.
        task: The model's task.
        class_names: What the classes are called; empty where they have no names.
    """

    tokenizer: Any
    task: str
    class_names: Sequence[str] = ()


def examples_of(dataset: Any, decoding: Decoding, seed: int, num_examples: int = NUM_EXAMPLES) -> list[Example]:
    """Draws some samples and decodes them.

    Args:
        dataset: The data set.
        decoding: How.
        seed: Seed of the draw; of a data set that can only be iterated they are the first.
        num_examples: How many.

    Returns:
        The examples; fewer where there are no more that can be read.
    """
    reading = SampleReading(dataset, num_examples, seed)
    return [example_of(index, sample, decoding) for index, sample in reading]


def example_of(index: int, sample: Any, decoding: Decoding) -> Example:
    """Decodes a sample.

    Args:
        index: Its index.
        sample: The sample.
        decoding: How.

    Returns:
        The example, its texts cut off where they are long.
    """
    tokens = tokens_of(sample)
    if tokens is None:
        return Example(index, [Piece(shortened(repr(sample), _MOST_CHARACTERS), False)])
    labels = labels_of(sample)
    if labels is None and decoding.task == "causal-lm":  # as its collator does
        labels = tokens
    by_token = labels_by_token(labels, tokens, decoding.task)
    if by_token is not None and len(by_token) == len(tokens):
        is_learned = by_token != IGNORED
        if (by_token[is_learned] == tokens[is_learned]).all():
            return Example(index, _shortened(_pieces(tokens, is_learned, decoding.tokenizer)))
    whole = _pieces(tokens, np.zeros(len(tokens), bool), decoding.tokenizer)
    return Example(index, _shortened(whole), _label(labels, by_token, decoding))


def _pieces(tokens: Int64Array, is_learned: BoolArray, tokenizer: Any) -> list[Piece]:
    pieces = []
    for learned, group in groupby(zip(tokens.tolist(), is_learned.tolist(), strict=True), key=lambda pair: pair[1]):
        pieces.append(Piece(_decoded([token for token, _ in group], tokenizer), learned))
    return pieces


def _decoded(tokens: list[int], tokenizer: Any) -> str:
    if tokenizer is None:
        return " ".join(map(str, tokens))
    return str(tokenizer.decode(tokens))


def _shortened(pieces: list[Piece]) -> list[Piece]:
    """Cuts pieces off that together are too long; what is learned has as much room as what stands before it."""
    most = _MOST_CHARACTERS // max(1, min(len(pieces), 2))
    kept: list[Piece] = []
    room = _MOST_CHARACTERS
    for piece in pieces:
        if room <= 0:
            return [*kept, Piece("…", False)]
        text = shortened(piece.text, min(most, room))
        kept.append(Piece(text, piece.is_learned))
        room -= len(text)
    return kept


def _label(labels: Any, by_token: Int64Array | None, decoding: Decoding) -> str | None:
    if labels is None:
        return None
    if by_token is not None and decoding.task in ("seq2seq-lm", "causal-lm", "masked-lm"):
        text = _decoded(by_token[by_token != IGNORED].tolist(), decoding.tokenizer)
    else:
        text = str(labels.tolist() if hasattr(labels, "tolist") else labels)
    number, names = class_of(labels), decoding.class_names
    if number is not None and 0 <= number < len(names):
        text = f"{text}: {names[number]}"
    return shortened(text, _MOST_CHARACTERS)
