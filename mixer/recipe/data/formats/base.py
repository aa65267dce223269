"""A format: what turns rows of a data set into what a model takes."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Self

Row = dict[str, Any]
Sample = dict[str, Any]


class Format(ABC):
    """Turns rows into samples; its subclasses are dataclasses of plain settings.

    A format of your own is such a subclass, written in a recipe as `class_path: package.module.MyFormat`. It must be a
    function of the rows that it is given: what it makes is kept on disk and taken from there the next time.
    """

    version: ClassVar[int] = 1  # of its code: one more whenever it makes something else of the same rows
    tasks: ClassVar[Sequence[str]]  # the models' tasks that it makes samples for

    @property
    def packs(self) -> bool:
        """Whether a sample may hold parts of several rows."""
        return False

    @property
    @abstractmethod
    def columns(self) -> Sequence[str]:
        """The columns that it reads."""

    def fitted(self, dataset: Any, tokenizer: Any) -> Self:
        """Settles what follows from the data set that is trained on, for the one for evaluation too.

        Args:
            dataset: The data set that is trained on.
            tokenizer: The tokenizer.

        Returns:
            A format whose settings leave nothing open, so that to fit it again changes nothing.
        """
        return self

    def class_names(self, dataset: Any) -> Sequence[str] | None:
        """Names the classes of its labels.

        Args:
            dataset: The rows.

        Returns:
            The names in the order of their numbers; `None` where labels are no classes, or have no names.
        """
        return None

    def why_nothing(self, rows: Sequence[Row]) -> str:
        """Says why nothing of rows may be learned.

        Args:
            rows: The first of them.

        Returns:
            The rest of a sentence.
        """
        return "they have no text, or no label to learn within max_length tokens"

    @abstractmethod
    def encode(self, rows: Sequence[Row], tokenizer: Any, task: str) -> list[Sample]:
        """Makes samples of rows that follow each other.

        Args:
            rows: The rows, with all columns of the data set.
            tokenizer: The tokenizer.
            task: The model's task.

        Returns:
            One sample a row, in order; or fewer or more, where the format packs.
        """
