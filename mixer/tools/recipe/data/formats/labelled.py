"""Texts with a label each."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import datasets

from mixer.tools.recipe.data.formats.base import Format, Row, Sample
from mixer.tools.recipe.data.formats.tokens import WEIGHTS, check_max_length, length_limit, texts_of
from mixer.utils.data_set import DataSet
from mixer.utils.errors import InvalidValueError, require


@dataclass(frozen=True)
class Labelled(Format):
    """A text, or a pair of texts, with a label: a class, or a number for regression.

    Whole numbers and values of a `ClassLabel` stay as they are. Words are numbered alphabetically, or by value if all
    are numbers. Fractions are numbers for regression, 1.0 too; if `labels` names classes, 1.0 is the one that is called
    "1", or else the class 1. Rows without a text are left out.

    Args:
        text: The column of texts.
        text_pair: The column of second texts.
        label: The column of labels.
        max_length: Most tokens of a sample; the rest is cut off. Default: the tokenizer's limit, if it has one.
        labels: Class names in the order of their numbers. Default: the words in the training data.
        ignored_columns: Columns to leave unread that would be refused by their names, such as `weight`.

    Raises:
        ValueError: If `max_length` is below 2, or a label occurs twice.
    """

    version: ClassVar[int] = 3
    tasks: ClassVar[Sequence[str]] = ("sequence-classification", "encoder")
    telling_columns: ClassVar[Sequence[str]] = WEIGHTS

    text: str = "text"
    text_pair: str | None = None
    label: str = "label"
    max_length: int | None = None
    labels: list[str] | None = None
    ignored_columns: Sequence[str] = ()

    def __post_init__(self) -> None:
        check_max_length(self.max_length, "Labelled")
        if self.labels is not None and len(set(self.labels)) < len(self.labels):
            raise InvalidValueError(f"Labelled: labels must be distinct, got {self.labels}.", option="labels")

    @property
    def columns(self) -> Sequence[str]:
        """See `Format.columns`."""
        return tuple(name for name in (self.text, self.text_pair, self.label) if name is not None)

    @property
    def numbers(self) -> Sequence[str]:
        """See `Format.numbers`."""
        return (self.label,)

    def fitted(self, dataset: DataSet, tokenizer: Any) -> "Labelled":
        """Collects labels that are words; see `Format.fitted`."""
        if self.labels is not None or not isinstance(dataset, datasets.Dataset):
            return self
        if getattr(dataset.features[self.label], "dtype", None) not in ("string", "large_string"):
            return self
        words = {value for value in dataset.unique(self.label) if value is not None}
        return replace(self, labels=in_order(words)) if words else self

    def class_names(self, dataset: DataSet) -> Sequence[str] | None:
        """See `Format.class_names`."""
        features: Any = dataset.features or {}
        feature = features.get(self.label)
        return feature.names if isinstance(feature, datasets.ClassLabel) else self.labels or ()

    def encode(self, rows: Sequence[Row], tokenizer: Any, task: str) -> list[Sample]:
        """See `Format.encode`."""
        length = length_limit(self.max_length, tokenizer)
        texts = texts_of(rows, self.text)
        pairs = None if self.text_pair is None else texts_of(rows, self.text_pair)
        encoded = tokenizer(texts, pairs, truncation=length is not None, max_length=length)
        numbers = {label: number for number, label in enumerate(self.labels or ())}
        return [
            {**{name: values[place] for name, values in encoded.items()}, "labels": self._number(row, numbers)}
            if texts[place] or (pairs and pairs[place])
            else {"input_ids": []}
            for place, row in enumerate(rows)
        ]

    def _number(self, row: Row, numbers: dict[str, int]) -> Any:
        value = row[self.label]
        if isinstance(value, (bool, int, float)):
            is_class = isinstance(value, bool) or (numbers and float(value).is_integer())
            return numbers.get(str(int(value)), int(value)) if is_class else value
        require(isinstance(value, str), self.label, "a label, a word or a number", value)
        if value not in numbers:
            known = f"one of {list(numbers)}" if numbers else "known in advance in streamed data"
            raise InvalidValueError(option=self.label, expected=f"{known}, Labelled(labels=[...])", found=value)
        return numbers[value]


def in_order(names: Iterable[str]) -> list[str]:
    """Sorts distinct class names by value if all are numbers, else alphabetically.

    Example:
        >>> in_order(["10", "9"]), in_order(["10", "9", "none"])
        (['9', '10'], ['10', '9', 'none'])
    """
    distinct = sorted(set(names))
    try:
        return sorted(distinct, key=float)
    except ValueError:
        return distinct
