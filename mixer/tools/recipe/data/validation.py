"""Holds rows out for validation: the same rows on every rank and in every run."""

from collections.abc import Sized
from dataclasses import dataclass

import datasets
import numpy as np

from mixer.mixture.stream import selected
from mixer.tools.recipe.places import placed
from mixer.utils.arrays import Int64Array
from mixer.utils.data_set import DataSet
from mixer.utils.errors import require, wrong_value
from mixer.utils.held_out import hold_out


@dataclass(frozen=True)
class Validation:
    """Rows of a stream to hold out for validation.

    They depend on the number of rows, the seed and the column alone: they are the same on all ranks, for any number of
    ranks, and in every run.

    Args:
        size: A share of the rows, such as 0.05, or a number of rows.
        stratify_by: Column whose values keep their shares, to a row; one or more rows of each value stay for training.
        seed: Seed of the draw.

    Raises:
        ValueError: If the size is neither.
    """

    size: int | float
    stratify_by: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        is_share = isinstance(self.size, float) and 0.0 < self.size < 1.0
        is_count = isinstance(self.size, int) and not isinstance(self.size, bool) and self.size > 0
        expected = "a share between 0 and 1, or a number of rows of 1 or more"
        require(is_share or is_count, "validation", expected, self.size)

    def carve(self, dataset: DataSet) -> tuple[DataSet, DataSet]:
        """Splits a data set into rows for training and rows for validation, both in their order.

        Args:
            dataset: A map-style data set; a `datasets.Dataset` for `stratify_by`.

        Raises:
            ValueError: If too few rows are left, the column does not exist, or the data are streamed.
        """
        if isinstance(dataset, datasets.IterableDataset):
            text = "cannot be held out of streamed data: name data.validation_split, or set data.streaming to false."
            raise wrong_value("validation", text, found="a stream")
        if not isinstance(dataset, datasets.Dataset) and (self.stratify_by or not isinstance(dataset, Sized)):
            text = f"is held out of a datasets.Dataset, or of rows with a number and no column, got {type(dataset)}."
            raise wrong_value("validation", text, found=type(dataset))
        num_held = self.size if isinstance(self.size, int) else round(self.size * len(dataset))
        expected = f"a part of {len(dataset)} rows, of which some are left for training"
        require(0 < num_held < len(dataset), "validation", expected, self.size)
        strata = self._strata(dataset)
        with placed("validation.stratify_by"):
            train, held = hold_out(len(dataset), num_held, self.seed, strata)
        return selected(dataset, train), selected(dataset, held)

    def _strata(self, dataset: DataSet) -> Int64Array | None:
        if self.stratify_by is None:
            return None
        names = dataset.column_names
        require(self.stratify_by in names, "validation.stratify_by", f"one of the columns {names}", self.stratify_by)
        values = [str(value) for value in dataset[self.stratify_by]]
        return np.unique(values, return_inverse=True)[1].astype(np.int64)
