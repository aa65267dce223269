"""Text as whole numbers, for a model from scratch: a vocabulary of words, learned from what is trained on."""

from collections.abc import Mapping, Sequence
from typing import Any

import datasets
import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.normalizers import Lowercase
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import WordLevelTrainer

from mixer.tools.recipe.streams import call_by_name
from mixer.utils.arrays import Int64Array
from mixer.utils.errors import InvalidValueError
from mixer.utils.ranges import check_count
from tasks.sources.arrays import InMemory
from tasks.sources.checks import require_column, require_labels
from tasks.sources.loaders import Splits

SPECIAL = ("[PAD]", "[UNK]", "[CLS]")  # their ids are 0, 1 and 2


class Words(InMemory):
    """Labelled text in memory: columns `input_ids`, `attention_mask` and `labels`.

    Args:
        input_ids: int64 `[num_samples, max_length]`.
        attention_mask: int64, the same shape: 1 for words, 0 for padding.
        labels: int64 `[num_samples]`: the classes.
        columns: What else is known of the samples, `[num_samples]` each, by name: attributes, so that `by_column` and
            `by_time` find them.
        tokenizer: What made the numbers of the text.
    """

    def __init__(
        self,
        input_ids: Int64Array,
        attention_mask: Int64Array,
        labels: Int64Array,
        columns: Mapping[str, NDArray[Any]],
        tokenizer: Tokenizer,
    ):
        super().__init__({"input_ids": input_ids, "attention_mask": attention_mask, "labels": labels})
        self.columns, self.tokenizer = dict(columns), tokenizer

    def __getattr__(self, name: str) -> NDArray[Any]:
        columns: dict[str, NDArray[Any]] = self.__dict__.get("columns", {})  # none yet while a copy is being made
        if name not in columns:
            raise AttributeError(f"{type(self).__name__} has no column {name!r}; there are {list(columns)}.")
        return columns[name]


def words(
    source: Splits | str,
    arguments: Mapping[str, Any] | None = None,
    *,
    max_length: int = 32,
    vocabulary_size: int | None = None,
    min_count: int = 1,
    text_column: str = "text",
) -> Splits:
    """Numbers the words of two Hugging Face data sets.

    Words are lower-case and end at white space and punctuation, each sign of which is a word. The vocabulary is that of
    the training split alone: the most frequent first, of equally frequent ones the first in the alphabet. A sample is
    `[CLS]` (2), for models that pool there, its words (from 3 on, unknown ones 1), and padding (0).

    Args:
        source: Two data sets, or as in a recipe the name of the function that gives them: `"tasks.sources.clinc150"`.
        arguments: What to call that function with.
        max_length: Numbers of a sample; what is longer is cut.
        vocabulary_size: Most ids that there are, the three special ones among them; `None` for no bound.
        min_count: How often a word has to come for a number of its own. With 1 training has no unknown words, so that
            what a model makes of them is never learned.
        text_column: Column of the text.

    Returns:
        Two `Words`; columns of one value per sample are kept.

    Raises:
        ValueError: If an argument is outside its range, or a column is missing or no text.
    """
    check_count("words: max_length", max_length, 2, "the first number of a sample is [CLS]")
    check_count("words: min_count", min_count, 1, "1 gives every word a number")
    if vocabulary_size is not None:
        check_count("words: vocabulary_size", vocabulary_size, len(SPECIAL) + 1, f"{SPECIAL} are among the ids")
    splits = _splits_of(source, arguments or {})
    parts = [(f"words: {called}", part) for called, part in splits._asdict().items()]
    texts = [_texts(part, text_column, called) for called, part in parts]
    tokenizer = _learned(texts[0], vocabulary_size, min_count, max_length)
    encoded = (
        _encoded(part, own, text_column, called, tokenizer) for (called, part), own in zip(parts, texts, strict=True)
    )
    return Splits(*encoded)


def _splits_of(source: Splits | str, arguments: Mapping[str, Any]) -> Splits:
    made = call_by_name("words: source", source, arguments) if isinstance(source, str) else source
    if arguments and made is source:
        raise InvalidValueError.about("arguments", f"must be left out with data sets as source, got {[*arguments]}.")
    if not isinstance(made, tuple) or len(made) != 2:
        raise InvalidValueError.about(
            "source", f"must be two data sets, or a function's name, got {type(made).__name__}."
        )
    return Splits(*made)


def _texts(dataset: Any, column: str, called: str) -> list[str]:
    if not isinstance(dataset, datasets.Dataset):
        raise InvalidValueError.about(called, f"must be a Hugging Face data set, got a {type(dataset).__name__}.")
    texts: list[str] = require_column(dataset, column, called).tolist()
    strange = next((text for text in texts if not isinstance(text, str)), None)
    if strange is not None:
        raise InvalidValueError.about("text_column", f"must hold text, but {called} has {strange!r} in {column!r}.")
    return texts


def _learned(texts: Sequence[str], vocabulary_size: int | None, min_count: int, max_length: int) -> Tokenizer:
    tokenizer = Tokenizer(WordLevel(unk_token="[UNK]"))  # noqa: S106 - no password
    tokenizer.normalizer, tokenizer.pre_tokenizer = Lowercase(), BertPreTokenizer()
    trainer = WordLevelTrainer(
        vocab_size=vocabulary_size or 2**31, min_frequency=min_count, special_tokens=list(SPECIAL), show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = TemplateProcessing(single="[CLS] $A", special_tokens=[("[CLS]", 2)])
    tokenizer.encode_special_tokens = True  # a text that says [PAD] is no padding
    tokenizer.enable_truncation(max_length)
    tokenizer.enable_padding(length=max_length)
    return tokenizer


def _encoded(dataset: Any, texts: Sequence[str], text_column: str, called: str, tokenizer: Tokenizer) -> Words:
    encoded = tokenizer.encode_batch(texts)
    ids = np.array([text.ids for text in encoded], dtype=np.int64)
    mask = np.array([text.attention_mask for text in encoded], dtype=np.int64)
    labels = require_labels(dataset, called)
    columns = {
        name: np.asarray(dataset.with_format("numpy", columns=[name])[:][name])
        for name, kind in dataset.features.items()
        if isinstance(kind, (datasets.Value, datasets.ClassLabel)) and name != text_column
    }
    return Words(ids, mask, labels, columns, tokenizer)
