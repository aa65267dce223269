"""Inputs and labels in memory."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mixer.utils.arrays import Int64Array
from tasks.sources.by_columns import ByColumns, Sample


class Arrays(ByColumns):
    """A labelled data set in memory: columns `input_name` and `labels`.

    Args:
        inputs: `[num_samples, ...]`, of any dtype; no copy is made.
        labels: Whole numbers `[num_samples]`: the classes.
        input_name: What the model calls its inputs.

    Raises:
        ValueError: If the lengths differ, labels are no whole numbers or the name is taken.

    Example:
        >>> Arrays(np.zeros((2, 3)), [0, 1])[1]["labels"]
        tensor(1)
    """

    def __init__(
        self,
        inputs: torch.Tensor | NDArray[Any],
        labels: torch.Tensor | NDArray[Any] | Sequence[int],
        input_name: str = "pixel_values",
    ):
        self.inputs, self.input_name = torch.as_tensor(inputs), input_name
        own = np.asarray(labels)
        if own.ndim != 1 or (own.dtype.kind not in "iub" and own.size):
            raise ValueError(
                f"Arrays: labels must be whole numbers on one axis, got {own.dtype} of shape {list(own.shape)}. Number "
                "the classes, with np.unique(labels, return_inverse=True) say."
            )
        if self.inputs.ndim == 0 or len(self.inputs) != len(own):
            shape = list(self.inputs.shape)
            raise ValueError(f"Arrays: inputs need one row a label, got shape {shape} for {len(own)} labels.")
        if input_name == "labels":
            raise ValueError("Arrays: input_name='labels' is the name of the classes: give the inputs another.")
        self._labels = torch.from_numpy(own.astype(np.int64))

    def __len__(self) -> int:
        return len(self._labels)

    @property
    def labels(self) -> Int64Array:
        """The classes, int64 `[num_samples]`."""
        return self._labels.numpy()

    def read_columns(self, indices: Int64Array) -> Sample:
        """Reads several samples at once; see `ByColumns.read_columns`."""
        picked = torch.from_numpy(indices)
        return {self.input_name: self.inputs.index_select(0, picked), "labels": self._labels.index_select(0, picked)}
