"""Random projections of gradients that preserve their products."""

import hashlib
import warnings
from collections.abc import Sequence

import torch
from torch import Tensor


class Fold:
    """Sums the entries of one axis in random buckets, each entry with a random sign: a count sketch.

    The buckets have equal size. For vectors x and y the product of their folds has the mean `<x, y>` and a variance of
    at most `(‖x‖²‖y‖² + <x, y>²) / num_buckets` (Charikar, Chen and Farach-Colton 2002; here all signs are
    independent).

    Args:
        size: Length of the axis.
        num_buckets: Number of buckets, less than the size.
        seed: Seed of buckets and signs.
        device: Device of the gradients.
        dtype: Type of the gradients.
    """

    def __init__(self, size: int, num_buckets: int, seed: int, device: torch.device, dtype: torch.dtype):
        self.num_buckets, self._seed, self._dtype = num_buckets, seed, dtype
        bucket = torch.randperm(size, generator=torch.Generator().manual_seed(seed)) % num_buckets
        ends = torch.bincount(bucket, minlength=num_buckets).cumsum(0)
        self.bucket = bucket.to(device)
        self._ends = torch.cat([ends.new_zeros(1), ends]).to(device)
        self._members = torch.argsort(bucket, stable=True).to(device)
        self.draw(0)

    def draw(self, number: int) -> None:
        """Draws new signs, independent of the buckets and of earlier signs.

        Args:
            number: Number of the draw; the same number gives the same signs.
        """
        generator = torch.Generator().manual_seed((self._seed + 0x9E3779B97F4A7C15 * (number + 1)) % 2**63)
        sign = torch.randint(0, 2, (len(self.bucket),), generator=generator).mul_(2).sub_(1).to(self._dtype)
        self.sign = sign.to(self.bucket.device, non_blocking=True)
        with warnings.catch_warnings():  # that compressed rows are a beta feature of torch
            warnings.simplefilter("ignore", UserWarning)
            self._matrix = torch.sparse_csr_tensor(
                self._ends,
                self._members,
                self.sign[self._members],
                (self.num_buckets, len(self.bucket)),
                check_invariants=False,
            )

    def rows(self, matrices: Tensor) -> Tensor:
        """Folds the first axis of matrices.

        Args:
            matrices: `[count, size, width]`.

        Returns:
            `[count, num_buckets, width]`.
        """
        return torch.stack([self._matrix @ matrix for matrix in matrices])

    def some_rows(self, indices: Tensor, matrices: Tensor) -> Tensor:
        """Folds the first axis of matrices with few rows that are not 0.

        Args:
            indices: int64 `[num_given]`: numbers of these rows.
            matrices: `[count, num_given, width]`.

        Returns:
            `[count, num_buckets, width]`.
        """
        folded = matrices.new_zeros(len(matrices), self.num_buckets, matrices.shape[2])
        return folded.index_add_(1, self.bucket[indices], matrices * self.sign[indices, None])

    def columns(self, matrices: Tensor) -> Tensor:
        """Folds the last axis of matrices.

        Args:
            matrices: `[count, height, size]`.

        Returns:
            `[count, height, num_buckets]`.
        """
        count, height, size = matrices.shape
        upright = matrices.reshape(-1, size).T.contiguous()
        return (self._matrix @ upright).T.reshape(count, height, self.num_buckets)


class Projection:
    """Projects the gradients of one parameter from both sides to small matrices, the same way on every rank.

    Args:
        name: Name of the parameter, part of the seed.
        shape: Its shape; more than two axes count as a matrix with the first, one as a column.
        size: Largest number of rows and of columns of the sketch; a vector has its square of rows.
        seed: Seed of the run's projections.
        device: Device of the parameter.
        dtype: Type of its gradient.
    """

    def __init__(self, name: str, shape: Sequence[int], size: int, seed: int, device: torch.device, dtype: torch.dtype):
        height, width = as_matrix(shape)

        def fold(axis: str, length: int, most: int) -> Fold | None:
            digest = hashlib.sha256(f"{seed}/{name}/{axis}".encode()).digest()
            key = int.from_bytes(digest[:7], "little")
            return None if length <= most else Fold(length, most, key, device, dtype)

        self._rows = fold("rows", height, size if len(shape) > 1 else size * size)
        self._columns = fold("columns", width, size)
        self.shape = (
            height if self._rows is None else self._rows.num_buckets,
            width if self._columns is None else self._columns.num_buckets,
        )
        factors = [1.0 + 2.0 / axis.num_buckets for axis in (self._rows, self._columns) if axis is not None]
        self.relative_variance: float = torch.tensor(factors, dtype=torch.float64).prod().item() - 1.0

    def draw(self, number: int) -> None:
        """Draws new signs on both sides.

        Args:
            number: Number of the draw; the same number gives the same signs.
        """
        for axis in (self._rows, self._columns):
            if axis is not None:
                axis.draw(number)

    def fold(self, matrices: Tensor) -> Tensor:
        """Projects gradients.

        Args:
            matrices: `[count, height, width]`.

        Returns:
            `[count, *shape]`.
        """
        if self._rows is not None:
            matrices = self._rows.rows(matrices)
        return matrices if self._columns is None else self._columns.columns(matrices)

    def add_rows(self, kept: Tensor, streams: Tensor, indices: Tensor, matrices: Tensor) -> None:
        """Projects gradients with few rows that are not 0, and adds them to those of their streams.

        Args:
            kept: `[num_streams, *shape]`: updated here.
            streams: int64 `[count]`: the streams.
            indices: int64 `[num_given]`: numbers of these rows.
            matrices: `[count, num_given, width]`.
        """
        if self._rows is not None:
            matrices = self._rows.some_rows(indices, matrices)
            indices = torch.arange(self.shape[0], device=indices.device)
        if self._columns is not None:
            matrices = self._columns.columns(matrices)
        kept.index_put_((streams[:, None], indices), matrices, accumulate=True)


def as_matrix(shape: Sequence[int]) -> tuple[int, int]:
    """Returns height and width of the matrix that a parameter of this shape is projected as."""
    height = shape[0] if shape else 1
    return height, int(torch.Size(shape[1:]).numel())
