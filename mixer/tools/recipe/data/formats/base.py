"""The interface of a format, which turns rows of a data set into samples for a model."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Self

from mixer.utils.data_set import DataSet

Row = dict[str, Any]
Sample = dict[str, Any]


class Format(ABC):
    """Turns rows into samples; its subclasses are dataclasses of plain settings.

    Write your own format as such a subclass and name it in a recipe by `class_path: package.module.MyFormat`. Its
    samples must depend on the rows and settings alone: they are cached on disk and reused.
    """

    version: ClassVar[int] = 1  # raise it when the same rows give other samples than before
    tasks: ClassVar[Sequence[str]]  # the model tasks it makes samples for
    # Columns whose names say that they change the samples: refused unless read, or named by `ignored_columns`.
    telling_columns: ClassVar[Sequence[str]] = ()
    reads_objects: ClassVar[bool] = False  # whether a field that Arrow filled with None in an object is left out

    @property
    def features(self) -> Any:
        """The features of its samples; `None` leaves them to `datasets`."""
        return None

    @property
    def packs(self) -> bool:
        """Whether a sample may hold parts of several rows."""
        return False

    @property
    @abstractmethod
    def columns(self) -> Sequence[str]:
        """The columns that it reads."""

    @property
    def numbers(self) -> Sequence[str]:
        """The columns of which it reads numbers: the cells of CSV and TSV are texts otherwise."""
        return ()

    def fitted(self, dataset: DataSet, tokenizer: Any) -> Self:
        """Fills in settings that depend on the training data, for the evaluation data too.

        Args:
            dataset: The data set to train on.
            tokenizer: The tokenizer.

        Returns:
            A format with all settings filled in; fitting it again changes nothing.
        """
        return self

    def class_names(self, dataset: DataSet) -> Sequence[str] | None:
        """Returns the names of the label's classes in the order of their numbers.

        Args:
            dataset: The rows.

        Returns:
            The names; an empty sequence for labels that are numbers without names; `None` for a format without labels.
        """
        return None

    @abstractmethod
    def encode(self, rows: Sequence[Row], tokenizer: Any, task: str) -> list[Sample]:
        """Turns consecutive rows into samples.

        Args:
            rows: The rows, with all columns of the data set.
            tokenizer: The tokenizer.
            task: The model's task.

        Returns:
            One sample per row, in order; any number of samples if the format packs.
        """
