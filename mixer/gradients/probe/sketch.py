"""Random projections of gradients that preserve their products."""

import hashlib
import warnings
from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

_MOST_BUCKETS_OF_DENSE = 256  # more make a matrix that takes more memory than the gradients


class Fold:
    """Sums the entries of one axis in random buckets, each entry with a random sign: a count sketch.

    The buckets have equal size. For vectors x and y the product of their folds has the mean `<x, y>` and a variance of
    at most `(‖x‖²‖y‖² + <x, y>²) / num_buckets` (Charikar, Chen and Farach-Colton 2002; here all signs are
    independent). `Projections` draws the signs and fills the matrix that multiplies.

    Args:
        size: Length of the axis.
        num_buckets: Number of buckets, less than the size.
        seed: Seed of the buckets.
        device: Device of the gradients.
        dtype: Type of the gradients.

    Attributes:
        sign: `[size]`: the sign of each entry.
    """

    sign: Tensor
    _matrix: Tensor  # `[num_buckets, size]`

    def __init__(self, size: int, num_buckets: int, seed: int, device: torch.device, dtype: torch.dtype):
        self.size, self.num_buckets, self.device, self.dtype = size, num_buckets, device, dtype
        bucket = torch.randperm(size, generator=torch.Generator().manual_seed(seed)) % num_buckets
        self.bucket = bucket.to(device)
        self.is_sparse = num_buckets > _MOST_BUCKETS_OF_DENSE or is_sparse(device)

    def places(self) -> Tensor:
        """Returns the sign of each value of a sparse matrix, or the place of each sign in a dense one, `[size]`."""
        if self.is_sparse:
            return torch.argsort(self.bucket, stable=True)
        return self.bucket * self.size + torch.arange(self.size, device=self.device)

    def use(self, sign: Tensor, values: Tensor, places: Tensor) -> None:
        """Takes the memory of its signs, and of the values of its matrix, by bucket if it is sparse; they change there.

        Args:
            sign: `[size]`.
            values: `[size]`, or `[num_buckets · size]`.
            places: What `places` gave.
        """
        self.sign = sign
        if not self.is_sparse:
            self._matrix = values.view(self.num_buckets, self.size)
            return
        counts = torch.bincount(self.bucket, minlength=self.num_buckets)
        ends = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        with warnings.catch_warnings():  # that compressed rows are a beta feature of torch
            warnings.simplefilter("ignore", UserWarning)
            shape = self.num_buckets, self.size
            self._matrix = torch.sparse_csr_tensor(ends, places, values, shape, check_invariants=False)

    def rows(self, matrices: Tensor) -> Tensor:
        """Folds the first axis of matrices.

        Args:
            matrices: `[count, size, width]`.

        Returns:
            `[count, num_buckets, width]`.
        """
        if not self.is_sparse:
            return torch.matmul(self._matrix, matrices)
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
        if not self.is_sparse:
            return torch.matmul(matrices, self._matrix.T)
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
        factors = [1.0 + 2.0 / axis.num_buckets for axis in self.folds]
        self.relative_variance: float = torch.tensor(factors, dtype=torch.float64).prod().item() - 1.0

    @property
    def folds(self) -> list[Fold]:
        """Its folds, of rows and columns that are not kept as they are."""
        return [axis for axis in (self._rows, self._columns) if axis is not None]

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


class Projections:
    """Projections of all parameters, whose random signs are drawn and sent together: few operations on a GPU.

    Args:
        each: Those of the parameters, in the same order on all ranks.
        seed: Seed of the signs.
    """

    def __init__(self, each: Sequence[Projection], seed: int):
        self.each, self._seed = tuple(each), seed
        folds = [fold for projection in each for fold in projection.folds]
        self._sizes = [fold.size for fold in folds]
        by_kind: dict[tuple[torch.device, torch.dtype, bool], list[int]] = {}
        for number, fold in enumerate(folds):
            by_kind.setdefault((fold.device, fold.dtype, fold.is_sparse), []).append(number)
        self._parts = [(numbers, _Part([folds[number] for number in numbers])) for numbers in by_kind.values()]
        self.draw(0)

    def draw(self, number: int) -> None:
        """Draws new signs, independent of earlier ones and of the buckets.

        Args:
            number: Number of the draw; the same number gives the same signs.
        """
        key = f"{self._seed}/signs/{number}".encode()
        generator = torch.Generator().manual_seed(int.from_bytes(hashlib.sha256(key).digest()[:7], "little"))
        drawn = torch.randint(0, 2, (sum(self._sizes),), generator=generator).mul_(2).sub_(1)
        by_fold = torch.split(drawn, self._sizes)
        for numbers, part in self._parts:
            part.take(torch.cat([by_fold[number] for number in numbers]))


class _Part:
    """The signs of folds of one kind, and the values of their matrices, each in one piece of memory."""

    def __init__(self, folds: Sequence[Fold]):
        first, is_sparse = folds[0], folds[0].is_sparse
        sizes = [fold.size for fold in folds]
        rooms = sizes if is_sparse else [fold.size * fold.num_buckets for fold in folds]
        self._signs, self._values = (
            torch.zeros(sum(own), dtype=first.dtype, device=first.device) for own in (sizes, rooms)
        )
        begins = [0, *accumulate(sizes if is_sparse else rooms)]
        self._is_sparse = is_sparse
        places = [fold.places() for fold in folds]
        self._places = torch.cat([begin + own for begin, own in zip(begins, places, strict=False)])
        memory = torch.split(self._signs, sizes), torch.split(self._values, rooms)
        for fold, sign, values, own in zip(folds, *memory, places, strict=True):
            fold.use(sign, values, own)

    def take(self, signs: Tensor) -> None:
        self._signs.copy_(signs, non_blocking=True)
        if self._is_sparse:
            torch.index_select(self._signs, 0, self._places, out=self._values)
        else:
            self._values[self._places] = self._signs


def is_sparse(device: torch.device) -> bool:
    """Whether a fold multiplies by a sparse matrix: faster on a CPU; a dense one takes all streams in one product."""
    return device.type == "cpu"


def as_matrix(shape: Sequence[int]) -> tuple[int, int]:
    """Returns height and width of the matrix that a parameter of this shape is projected as."""
    height = shape[0] if shape else 1
    return height, int(torch.Size(shape[1:]).numel())
