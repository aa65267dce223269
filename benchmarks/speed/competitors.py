"""The data of the benchmarks of loading, and a controller over it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from datasets import Dataset as ArrowDataset
from torch import Tensor
from torch.utils.data import Dataset

from mixer.mixture.clock import Budget, Clock
from mixer.mixture.controller import Mixing
from mixer.mixture.planner import Planner
from mixer.mixture.stream import Stream
from mixer.policies import Fixed

ROW_LENGTH = 128
SHARES = (0.5, 0.3, 0.2)

Batch = dict[str, Tensor]
Sample = dict[str, Tensor]


class Rows(Dataset[Sample]):
    """Tokenised samples in memory, read item by item.

    Args:
        rows: int64 `[num_samples, ROW_LENGTH]`.
    """

    def __init__(self, rows: Tensor):
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Sample:
        row = self.rows[index]
        return {"input_ids": row, "labels": row}


class ColumnRows(Rows):
    """The same samples, which can be read by columns too.

    Args:
        rows: int64 `[num_samples, ROW_LENGTH]`.
    """

    def read_columns(self, indices: np.ndarray) -> Batch:
        """Reads several samples at once; see `mixer.loading.reader.ColumnReader`."""
        rows = self.rows.index_select(0, torch.from_numpy(indices))
        return {"input_ids": rows, "labels": rows.clone()}


class LazyRows(Dataset[Sample]):
    """Any number of samples that are computed when they are read, and take no memory.

    Args:
        num_samples: How many.
    """

    def __init__(self, num_samples: int):
        self._num_samples = num_samples

    def __len__(self) -> int:
        return self._num_samples

    def __getitem__(self, index: int) -> Sample:
        row = torch.arange(index, index + ROW_LENGTH)
        return {"input_ids": row, "labels": row}


def make_rows(num_streams: int, num_samples: int) -> list[Tensor]:
    """Makes the tokens of each stream.

    Args:
        num_streams: Number of streams.
        num_samples: Samples of each.

    Returns:
        int64 `[num_samples, ROW_LENGTH]` a stream.
    """
    random = torch.Generator().manual_seed(0)
    return [torch.randint(32_000, (num_samples, ROW_LENGTH), generator=random) for _ in range(num_streams)]


def new_mixing(datasets: Sequence[Any], shares: Sequence[float], batch_size: int) -> Mixing:
    """Builds the controller of an endless run, as the trainer does.

    Args:
        datasets: The streams' data sets.
        shares: Weight of each.
        batch_size: Samples of a step, over all ranks.

    Returns:
        The controller.
    """
    streams = [Stream(f"stream{number}", dataset) for number, dataset in enumerate(datasets)]
    epoch_size = sum(stream.num_samples for stream in streams)
    clock = Clock(batch_size=batch_size, epoch_size=epoch_size, budget=Budget(steps=10**9))
    return Mixing(Planner(streams, seed=0), Fixed(list(shares)), clock)


def arrow_datasets(rows: Sequence[Tensor]) -> list[ArrowDataset]:
    """Shows the same tokens as Arrow data sets, without copying them.

    Args:
        rows: int64 `[num_samples, ROW_LENGTH]` a stream.

    Returns:
        A data set a stream, giving tensors.
    """
    return [_arrow_dataset(tokens.numpy()) for tokens in rows]


def _arrow_dataset(tokens: np.ndarray) -> ArrowDataset:
    offsets = np.arange(len(tokens) + 1, dtype=np.int32) * tokens.shape[1]
    column = pa.ListArray.from_arrays(pa.array(offsets), pa.array(tokens.ravel()))
    return ArrowDataset(pa.table({"input_ids": column, "labels": column})).with_format("torch")
