"""One micro-batch's gradients by stream, collected parameter by parameter during its backward pass."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby

import torch
from torch import Tensor

from mixer.gradients.probe.row_streams import Rows, at_least_float32, distinct
from mixer.gradients.probe.sums import Taker

# Memory for the gradients of samples that are computed at once: few launches on a GPU, within the cache on a CPU.
BYTES_AT_ONCE, BYTES_AT_ONCE_ON_CPU = 2**28, 2**21


def product(inputs: Tensor, gradients: Tensor) -> Tensor:
    """Computes the whole gradient of a matrix from its factors.

    Args:
        inputs: `[num_rows, length, width]`.
        gradients: `[num_rows, length, height]`.

    Returns:
        `[height, width]`, at least float32.
    """
    return (gradients.flatten(0, 1).T @ inputs.flatten(0, 1)).to(at_least_float32(inputs.dtype))


def multiply(gradients: Tensor, inputs: Tensor, target: Tensor) -> Tensor:
    """Computes `gradientsᵀ inputs` of several groups; in half precision a product is rounded once.

    Args:
        gradients: `[num_groups, length, height]`.
        inputs: `[num_groups, length, width]`.
        target: `[num_groups, height, width]`: memory for the result, which is used if it has the type of the factors.

    Returns:
        `[num_groups, height, width]`, of the type of the factors.
    """
    if target.dtype == inputs.dtype:
        return torch.bmm(gradients.mT, inputs, out=target)
    return torch.bmm(gradients.mT, inputs)


def squares_of_products(inputs: Tensor, gradients: Tensor) -> Tensor:
    """Squared norms of the samples, `Σ_st <inputs_s, inputs_t> <gradients_s, gradients_t>`, float64 `[num_rows]`.

    In float16 the products of gradients with a loss scale would overflow.
    """
    wide = [factor.to(at_least_float32(factor.dtype)) for factor in (inputs, gradients)]
    left, right = (torch.bmm(factor, factor.mT).double() for factor in wide)
    return (left * right).sum((1, 2))


def is_short(inputs: Tensor, gradients: Tensor) -> bool:
    """Whether rows have so few tokens that the norm of a sample's gradient is cheaper from products of its tokens.

    Those take `2 length² (width + height)` operations. Building the gradient takes no more operations than the plain
    backward pass, but writes and reads each of its `width · height` numbers: about as long as 8 operations.
    """
    length, width, height = inputs.shape[1], inputs.shape[2], gradients.shape[2]
    return length * length * (width + height) < 4 * width * height


class Stopwatch:
    """Adds up time; on a GPU, the time to launch the work.

    Attributes:
        seconds: Total so far.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._is_running = False

    @contextmanager
    def running(self) -> Iterator[None]:
        """Counts the time inside; nested calls count once."""
        if self._is_running:
            yield
            return
        start, self._is_running = time.perf_counter(), True
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - start
            self._is_running = False


class Workspace:
    """Reusable memory for the pieces of one layer after the other.

    Fresh memory of this size comes from the system page by page, which is slow on a CPU. So there the memory is kept,
    as large as the largest layer needs; a GPU's allocator already reuses its own.
    """

    def __init__(self) -> None:
        self._room: dict[torch.dtype, Tensor] = {}

    def take(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        """Returns a tensor of the shape with undefined values; it overwrites the last one of the same type."""
        if device.type != "cpu":
            return torch.empty(shape, dtype=dtype, device=device)
        size, room = torch.Size(shape).numel(), self._room.get(dtype)
        if room is None or room.numel() < size:
            room = self._room[dtype] = torch.empty(size, dtype=dtype)
        return room[:size].view(shape)


@dataclass
class Lookups:
    """The uses of an embedding in one forward pass, and their gradients.

    Args:
        table_size: Number of rows of the table.
        ids: int64 `[num_rows, length]` for each use: the looked-up rows.
        gradients: `[num_rows, length, width]` for each use with a gradient.
        head: `[num_present, num_unique, width]`: these rows of the streams' gradients of a tied head; `None` without
            one.
        head_rows: `[num_rows, length, width]`: for each token of all uses, its row of its sample's gradient of the
            head.
    """

    table_size: int
    ids: list[Tensor] = field(default_factory=list)
    gradients: dict[int, Tensor] = field(default_factory=dict)
    head: Tensor | None = None
    head_rows: Tensor | None = None

    def note(self, ids: Tensor, is_repeated: bool) -> Callable[[Tensor], None]:
        """Records a use.

        Args:
            ids: int64 `[num_rows, length]`: the looked-up rows.
            is_repeated: Whether it is a recomputation by checkpointing.

        Returns:
            A function that takes the gradient of the result, `[num_rows, length, width]`.
        """
        number = self._number_of(ids) if is_repeated else len(self.ids)
        if number == len(self.ids):
            self.ids.append(ids)

        def take(gradient: Tensor) -> None:
            known = self.gradients.get(number)
            self.gradients[number] = gradient if known is None else known + gradient

        return take

    def _number_of(self, ids: Tensor) -> int:
        same = (number for number, known in enumerate(self.ids) if known is ids or torch.equal(known, ids))
        return next(same, len(self.ids))

    def keep_head(self, inputs: Tensor, gradients: Tensor, pieces: Tensor, wants_rows: bool) -> None:
        """Stores the parts of a tied head's gradient for cross terms; in a backward pass the embedding comes last.

        Args:
            inputs: `[num_rows, length, width]`: inputs of the head.
            gradients: `[num_rows, length, height]`: gradients of its outputs.
            pieces: `[num_present, height, width]`: its gradient from each stream.
            wants_rows: Whether the norm of every sample's gradient is needed.
        """
        ids = torch.cat(self.ids, dim=1)
        self.head = pieces[:, distinct(ids, self.table_size)]
        if wants_rows:
            chosen = gradients.gather(2, ids[:, None, :].expand(-1, gradients.shape[1], -1))
            self.head_rows = torch.bmm(chosen.mT, inputs).to(pieces.dtype)

    def by_stream(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Sums the gradients by stream.

        Args:
            rows: The rows of the micro-batch.

        Returns:
            int64 `[num_unique]`, rows of the table, and `[num_present, num_unique, width]`, their gradients.
        """
        gradients, (unique, places) = self._gradients(), self._places()
        sums = gradients.new_zeros(rows.num_present * len(unique), gradients.shape[2])
        places = rows.local_ids[:, None] * len(unique) + places
        sums.index_add_(0, places.reshape(-1), gradients.flatten(0, 1))
        return unique, sums.view(rows.num_present, len(unique), -1)

    def squares(self, rows: Rows) -> Tensor:
        """Squared norms, float64 `[num_rows]`, plus twice the products with the head's gradient."""
        gradients, (unique, places) = self._gradients(), self._places()
        cells = torch.arange(rows.num_rows, device=places.device)[:, None] * len(unique) + places
        keys = distinct(cells, cells.numel())
        by_cell = gradients.new_zeros(len(keys), gradients.shape[2])
        by_cell.index_add_(0, torch.searchsorted(keys, cells).reshape(-1), gradients.flatten(0, 1))
        squares = torch.zeros(rows.num_rows, dtype=torch.float64, device=places.device)
        squares.index_add_(0, keys // len(unique), by_cell.double().square().sum(1))
        if self.head_rows is not None:
            parts = torch.split(self.head_rows, [part.shape[1] for part in self.ids], dim=1)
            crossed = gradients * torch.cat([parts[use] for use in sorted(self.gradients)], dim=1)
            squares += 2.0 * crossed.double().sum((1, 2))
        return squares

    def _gradients(self) -> Tensor:
        gradients = torch.cat([self.gradients[use] for use in sorted(self.gradients)], dim=1)
        return gradients.to(at_least_float32(gradients.dtype))

    def _places(self) -> tuple[Tensor, Tensor]:
        """Rows of the table that any use looks up, and the position among them of each lookup with a gradient."""
        unique = distinct(torch.cat(self.ids, dim=1), self.table_size)
        return unique, torch.searchsorted(unique, torch.cat([self.ids[use] for use in sorted(self.gradients)], dim=1))

    def clear(self) -> None:
        """Releases all tensors, which the graph of the loss would keep."""
        self.ids.clear()
        self.gradients.clear()
        self.head = self.head_rows = None


class Reading:
    """Separates the gradients of one micro-batch by stream during its backward pass.

    Args:
        rows: The rows and their streams.
        sums: Destination of the gradients.
        squares: float64 `[num_parameters, num_streams]`: sums of squared norms of the samples' gradients, updated here;
            `None` if they are not needed.
        stopwatch: Counts the time that a plain backward pass would not take.
        workspace: Memory for the pieces of a layer.

    Attributes:
        failed: Numbers of the parameters that cannot be read.
        has_seen: Whether any gradient arrived.
        lookups: The uses of each embedding in this forward pass so far.
    """

    def __init__(self, rows: Rows, sums: Taker, squares: Tensor | None, stopwatch: Stopwatch, workspace: Workspace):
        self.rows = rows
        self.failed: set[int] = set()
        self.has_seen = False
        self._sums, self._squares = sums, squares
        self._stopwatch, self._workspace = stopwatch, workspace
        self._vectors: dict[int, Tensor] = {}
        self._norms: dict[int, list[tuple[int, Tensor]]] = {}  # by the number of their parts
        self.lookups: dict[int, Lookups] = {}
        self._postponed: dict[int, list[tuple[Tensor, Tensor]]] = {}
        self._num_uses: Counter[int] = Counter()

    # ---- Matrices ----

    def note_use(self, index: int) -> None:
        """Counts a use of a matrix in the forward pass; recomputation by checkpointing does not count."""
        if not is_in_backward():
            self._num_uses[index] += 1

    def matrix(self, index: int, inputs: Tensor, gradients: Tensor) -> Tensor:
        """Records the gradient of a matrix, `Σ_t gradients_t inputs_tᵀ`, from the factors of one use.

        Args:
            index: Number of the parameter.
            inputs: `[num_rows, length, width]`.
            gradients: `[num_rows, length, height]`.

        Returns:
            `[height, width]`: the gradient of all streams, at least float32.
        """
        self.has_seen = True
        if self._num_uses[index] > 1:  # the pieces of all uses are added up before they are multiplied
            self._postponed.setdefault(index, []).append((inputs, gradients))
            return product(inputs, gradients)
        return self._take_matrix(index, inputs, gradients)

    def _take_matrix(self, index: int, inputs: Tensor, gradients: Tensor) -> Tensor:
        by_sample = self._squares is not None and not is_short(inputs, gradients)
        ordered = [self.rows.in_order(factor) for factor in (inputs, gradients)]
        pieces = self._by_sample(index, *ordered) if by_sample else self._by_stream(*ordered)
        with self._stopwatch.running():
            self._sums.add(index, pieces, self.rows.present)
            if self._squares is not None and not by_sample:
                self._add_squares(index, squares_of_products(inputs, gradients))
            if index in self.lookups:
                self.lookups[index].keep_head(inputs, gradients, pieces, self._squares is not None)
        return pieces.sum(0)

    def _room(self, count: int, inputs: Tensor, gradients: Tensor) -> Tensor:
        """Memory for `[count, height, width]`, which the next layer reuses."""
        shape = (count, gradients.shape[-1], inputs.shape[-1])
        return self._workspace.take(shape, at_least_float32(inputs.dtype), inputs.device)

    def _by_stream(self, inputs: Tensor, gradients: Tensor) -> Tensor:
        """Gradients by stream, `[num_present, height, width]`, at the cost of the whole gradient."""
        pieces = self._room(self.rows.num_present, inputs, gradients)
        own_gradients, own_inputs = self.rows.by_stream(gradients), self.rows.by_stream(inputs)
        targets = torch.split(pieces, len(pieces) // len(own_inputs))
        results = list(map(multiply, own_gradients, own_inputs, targets))
        return pieces if pieces.dtype == inputs.dtype else pieces.copy_(_joined(results))

    def _by_sample(self, index: int, inputs: Tensor, gradients: Tensor) -> Tensor:
        """Gradients by stream from those of the samples, as many at once as memory is for, with the samples' norms."""
        num_rows, num_present, dtype = len(inputs), self.rows.num_present, at_least_float32(inputs.dtype)
        most_bytes = BYTES_AT_ONCE if inputs.device.type != "cpu" else BYTES_AT_ONCE_ON_CPU
        most = min(max(1, most_bytes // (4 * inputs.shape[2] * gradients.shape[2])), num_rows)
        room = self._room(num_present + (most if dtype == inputs.dtype else 0), inputs, gradients)
        pieces, norms, begun = room[:num_present], [], set[int]()
        for start in range(0, num_rows, most):
            end = min(start + most, num_rows)
            samples = multiply(gradients[start:end], inputs[start:end], room[num_present : num_present + end - start])
            with self._stopwatch.running():
                norms.append(torch.linalg.vector_norm(samples, dim=2, dtype=dtype))
                self._sum_by_stream(samples, pieces, start, begun)
        self._norms.setdefault(gradients.shape[2], []).append((index, _joined(norms)))
        return pieces

    def _sum_by_stream(self, samples: Tensor, pieces: Tensor, start: int, begun: set[int]) -> None:
        """Adds the gradients of samples to those of their streams.

        Args:
            samples: `[count, height, width]`, in the order of the streams.
            pieces: `[num_present, height, width]`: updated here.
            start: Number of the first sample.
            begun: Streams with samples so far; updated here.
        """
        rows, dtype = self.rows, pieces.dtype
        if rows.are_even and len(samples) == rows.num_rows:
            torch.sum(samples.view(rows.num_present, -1, *samples.shape[1:]), 1, dtype=dtype, out=pieces)
            return
        for local, numbers in groupby(range(len(samples)), rows.local[start:].__getitem__):
            places = list(numbers)
            own = samples[places[0] : places[-1] + 1]
            if local not in begun:
                torch.sum(own, 0, dtype=dtype, out=pieces[local])
            else:
                pieces[local].add_(own[0] if len(own) == 1 else own.sum(0, dtype=dtype))
            begun.add(local)

    # ---- Vectors and embeddings ----

    def vector(self, index: int, per_row: Tensor) -> None:
        """Records the gradient of a vector.

        Args:
            index: Number of the parameter.
            per_row: `[num_rows, size]`: its gradient from each row.
        """
        self.has_seen = True
        self._vectors[index] = self._vectors[index] + per_row if index in self._vectors else per_row

    # ---- The end of the backward ----

    def close(self) -> None:
        """Records the gradients that had to wait for the end of the backward pass, and releases all tensors."""
        with self._stopwatch.running(), torch.no_grad():
            for index, factors in self._postponed.items():
                inputs, gradients = (torch.cat(parts, dim=1) for parts in zip(*factors, strict=True))
                self._take_matrix(index, inputs, gradients)
            self._take_vectors()
            for index, lookups in self.lookups.items():
                if lookups.gradients:
                    self.has_seen = True
                    unique, pieces = lookups.by_stream(self.rows)
                    self._sums.add_rows(index, unique, pieces, self.rows.present, lookups.head)
                    if self._squares is not None:
                        self._add_squares(index, lookups.squares(self.rows))
            for known in self._norms.values():
                self._add_norms(known)
        self.clear()

    def _take_vectors(self) -> None:
        """Records the vectors, those of one kind together."""
        kinds: dict[tuple[int, torch.dtype, torch.device], list[int]] = {}
        for index, per_row in self._vectors.items():
            kinds.setdefault((per_row.shape[1], per_row.dtype, per_row.device), []).append(index)
        for indices in kinds.values():
            vectors = self.rows.in_order(torch.stack([self._vectors[index] for index in indices], dim=1))
            sums = torch.stack([own.sum(0) for own in torch.split(vectors, self.rows.sizes)], dim=1)
            for index, pieces in zip(indices, sums, strict=True):
                self._sums.add(index, pieces[:, :, None], self.rows.present)
            if self._squares is not None:
                self._norms.setdefault(vectors.shape[2], []).extend(zip(indices, vectors.unbind(1), strict=True))

    def clear(self) -> None:
        """Releases all tensors: the graph of the loss holds this object, and a caller may hold the loss."""
        for lookups in self.lookups.values():
            lookups.clear()
        self.lookups.clear()
        self._postponed.clear()
        self._vectors.clear()
        self._norms.clear()

    def _add_norms(self, known: list[tuple[int, Tensor]]) -> None:
        """Adds up squared norms of parts of the samples' gradients: for each parameter `[num_rows, num_parts]`."""
        if self._squares is None:
            return
        device = self._squares.device
        parts = torch.stack([norms.to(device, non_blocking=True) for _, norms in known], dim=1)
        by_row = parts.double().square_().sum(2)
        by_stream = torch.stack([own.sum(0) for own in torch.split(by_row, self.rows.sizes)], dim=1)
        indices = torch.tensor([index for index, _ in known]).to(device, non_blocking=True)
        self._squares[indices[:, None], self.rows.present] += by_stream

    def _add_squares(self, index: int, per_row: Tensor) -> None:
        if self._squares is not None:
            self._squares[index].index_add_(0, self.rows.stream_ids, per_row.to(self._squares.device))


@dataclass
class Desk:
    """Access to the reading of the present micro-batch, for the layers.

    Args:
        reading: The reading; `None` if no micro-batch is read.
    """

    reading: Reading | None = None


def _joined(parts: list[Tensor]) -> Tensor:
    """Concatenates parts; a copy of one alone would be an operation for nothing."""
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def is_in_backward() -> bool:
    """Whether a backward pass is running; a forward pass inside it is a recomputation by checkpointing."""
    return torch._C._current_graph_task_id() != -1  # noqa: SLF001  # torch has no public question for it
