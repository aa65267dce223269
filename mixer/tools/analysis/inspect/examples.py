"""Example samples as text, with the learned part between ⟦ and ⟧."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from mixer.models.labels import IGNORED
from mixer.tools.analysis.inspect.measures import class_of, labels_by_token, labels_of, pair_in, tokens_of
from mixer.tools.analysis.inspect.sample_reader import SampleReading
from mixer.utils.arrays import BoolArray, Int64Array
from mixer.utils.text import shortened

NUM_EXAMPLES = 2
_MOST_CHARACTERS, _LEAST_OF_A_PIECE = 400, 20


@dataclass(frozen=True)
class Decoder:
    """Writes samples as text.

    Args:
        tokenizer: The tokenizer; `None` shows tokens as numbers.
        task: The model's task.
        class_names: Names of the classes; empty without names.
    """

    tokenizer: Any
    task: str
    class_names: Sequence[str] = ()

    def examples_of(self, dataset: Any, seed: int) -> dict[int, str]:
        """Draws and decodes samples, by index; of an iterable data set the first rows."""
        return {index: self.decode(sample) for index, sample in SampleReading(dataset, NUM_EXAMPLES, seed)}

    def decode(self, sample: Any) -> str:
        """Decodes a sample; long texts are shortened.

        Args:
            sample: The sample.

        Returns:
            The input with its learned parts between ⟦ and ⟧. A label that is not part of the input, such as a class or
            a target sequence, follows an arrow. A sample without tokens is shown by its `repr`.
        """
        if (pair := pair_in(sample)) is not None:
            prompt, chosen, rejected = (shortened(self._text(part), _MOST_CHARACTERS // 3) for part in pair)
            return f"{prompt}⟦{chosen}⟧ rather than ⟦{rejected}⟧"
        tokens, labels = tokens_of(sample), labels_of(sample)
        if tokens is None:
            return shortened(repr(sample), _MOST_CHARACTERS)
        if labels is None and self.task == "causal-lm":  # its collator copies the tokens to the labels
            labels = tokens
        by_token = labels_by_token(labels, tokens, self.task)
        if by_token is not None and len(by_token) == len(tokens):
            is_learned = by_token != IGNORED
            if (by_token[is_learned] == tokens[is_learned]).all():
                return self._marked(tokens, is_learned)
        text = self._marked(tokens, np.zeros(len(tokens), bool))
        return text if labels is None else f"{text} → ⟦{self._label(labels, by_token)}⟧"

    def _marked(self, tokens: Int64Array, is_learned: BoolArray) -> str:
        pairs = zip(tokens.tolist(), is_learned.tolist(), strict=True)
        pieces = [(learned, [token for token, _ in group]) for learned, group in groupby(pairs, lambda pair: pair[1])]
        most = max(_LEAST_OF_A_PIECE, _MOST_CHARACTERS // max(1, len(pieces)))
        texts = [(learned, shortened(self._text(piece), most)) for learned, piece in pieces]
        return "".join(f"⟦{text}⟧" if learned else text for learned, text in texts)

    def _text(self, tokens: list[int]) -> str:
        return " ".join(map(str, tokens)) if self.tokenizer is None else str(self.tokenizer.decode(tokens))

    def _label(self, labels: Any, by_token: Int64Array | None) -> str:
        if by_token is not None and self.task in ("seq2seq-lm", "causal-lm", "masked-lm"):
            text = self._text(by_token[by_token != IGNORED].tolist())
        else:
            text = str(labels.tolist() if hasattr(labels, "tolist") else labels)
        number = class_of(labels)
        if number is not None and 0 <= number < len(self.class_names):
            text = f"{text}: {self.class_names[number]}"
        return shortened(text, _MOST_CHARACTERS)
