"""What one forward and backward shows of the streams, parameter by parameter."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from mixer.probe.rows import Rows
from mixer.probe.sums import Sums


@dataclass
class Stopwatch:
    """Adds up time.

    Args:
        seconds: So much so far.
    """

    seconds: float = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Counts the time that is spent inside."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - start


@dataclass
class _Lookups:
    """The uses of an embedding in one forward, and what came back of them."""

    ids: list[Tensor] = field(default_factory=list)  # `[num_rows, length]` each
    gradients: dict[int, Tensor] = field(default_factory=dict)  # `[num_rows, length, width]` each
    head: Tensor | None = None  # `[num_present, num_unique, width]`: rows of a tied head's gradients
    head_rows: Tensor | None = None  # `[num_rows, length, width]`: for each token, its row of its sample's gradient

    @property
    def all_ids(self) -> Tensor:
        return torch.cat(self.ids, dim=1)

    def number_of(self, ids: Tensor) -> int:
        """Finds the use that is done again in the backward, by checkpointing."""
        same = (number for number, known in enumerate(self.ids) if known.data_ptr() == ids.data_ptr())
        return next(same, len(self.ids))


class Reading:
    """Tells the gradients of one micro-batch apart, while its backward runs.

    Args:
        rows: The rows and their streams.
        sums: Where gradients go.
        squares: float64 `[num_parameters, num_streams]`: squared norms of the samples' gradients, added up here; `None`
            if nobody asks for them.
        stopwatch: Where the time goes that a plain backward would not take.
    """

    def __init__(self, rows: Rows, sums: Sums, squares: Tensor | None, stopwatch: Stopwatch):
        self.rows = rows
        self._sums, self._squares, self._stopwatch = sums, squares, stopwatch
        self._vectors: dict[int, Tensor] = {}
        self._lookups: dict[int, _Lookups] = {}
        self._postponed: dict[int, list[tuple[Tensor, Tensor]]] = {}
        self.num_uses: dict[int, int] = {}
        self.failed: set[int] = set()
        self.in_backward = False

    def note_use(self, index: int) -> None:
        """Counts that a matrix is used in the forward; what is done again in the backward does not count.

        Args:
            index: Number of the parameter.
        """
        if not self.in_backward:
            self.num_uses[index] = self.num_uses.get(index, 0) + 1

    # ---- Matrices ----

    def matrix(self, index: int, inputs: Tensor, gradients: Tensor) -> Tensor:
        """Takes up the gradient of a matrix, `Σ_t gradients_t inputs_tᵀ`, from the factors of one use of it.

        Args:
            index: Number of the parameter.
            inputs: `[num_rows, length, width]`.
            gradients: `[num_rows, length, height]`.

        Returns:
            `[height, width]`: the gradient from all streams, of at least float32.
        """
        self.in_backward = True
        if self.num_uses.get(index, 1) > 1:  # the pieces of all uses have to be added up before they are multiplied
            self._postponed.setdefault(index, []).append((inputs, gradients))
            flat = gradients.reshape(-1, gradients.shape[-1])
            return (flat.T @ inputs.reshape(-1, inputs.shape[-1])).to(_at_least_float32(inputs.dtype))
        return self._take_matrix(index, inputs, gradients)

    def _take_matrix(self, index: int, inputs: Tensor, gradients: Tensor) -> Tensor:
        by_sample = self._squares is not None and not _is_short(inputs, gradients)
        pieces = self._by_sample(index, inputs, gradients) if by_sample else self._by_stream(inputs, gradients)
        with self._stopwatch.running():
            self._sums.add(index, pieces, self.rows.present)
            if self._squares is not None and not by_sample:
                own = torch.bmm(inputs, inputs.mT).double() * torch.bmm(gradients, gradients.mT).double()
                self._add_squares(index, own.sum((1, 2)))
            if index in self._lookups:
                self._keep_looked_up(self._lookups[index], inputs, gradients, pieces)
        return pieces[0] if len(pieces) == 1 else pieces.sum(0)

    def _by_stream(self, inputs: Tensor, gradients: Tensor) -> Tensor:
        """Gives `[num_present, height, width]`: together this costs what the whole gradient does."""
        shape = (self.rows.num_present, gradients.shape[-1], inputs.shape[-1])
        pieces = torch.empty(shape, dtype=_at_least_float32(inputs.dtype), device=inputs.device)
        parts = zip(self.rows.by_stream(inputs), self.rows.by_stream(gradients), strict=True)
        for piece, (own_inputs, own_gradients) in zip(pieces, parts, strict=True):
            _multiply(own_gradients, own_inputs, piece)
        return pieces

    def _by_sample(self, index: int, inputs: Tensor, gradients: Tensor) -> Tensor:
        """Makes the gradient of one sample after the other, which costs little more, and takes its norm on the way."""
        shape = (self.rows.num_present, gradients.shape[-1], inputs.shape[-1])
        pieces = torch.empty(shape, dtype=_at_least_float32(inputs.dtype), device=inputs.device)
        buffer, squares, begun = torch.empty_like(pieces[0]), [], set()
        for row, local in enumerate(self.rows.local):
            target = buffer if local in begun else pieces[local]
            _multiply(gradients[row], inputs[row], target)
            with self._stopwatch.running():
                flat = target.view(-1)
                squares.append(torch.dot(flat, flat))
                if local in begun:
                    pieces[local].add_(buffer)
            begun.add(local)
        self._add_squares(index, torch.stack(squares).double())
        return pieces

    def _keep_looked_up(self, lookups: _Lookups, inputs: Tensor, gradients: Tensor, pieces: Tensor) -> None:
        """Keeps what the cross terms with an embedding of the same parameter need, which comes last in a backward."""
        ids = lookups.all_ids
        lookups.head = pieces[:, torch.unique(ids)]
        if self._squares is not None:
            chosen = gradients.gather(2, ids[:, None, :].expand(-1, gradients.shape[1], -1))
            lookups.head_rows = torch.bmm(chosen.mT, inputs).to(pieces.dtype)

    # ---- Vectors and embeddings ----

    def vector(self, index: int, per_row: Tensor) -> None:
        """Takes up the gradient of a vector.

        Args:
            index: Number of the parameter.
            per_row: `[num_rows, size]`: its gradient from each row.
        """
        self.in_backward = True
        self._vectors[index] = self._vectors[index] + per_row if index in self._vectors else per_row

    def look_up(self, index: int, ids: Tensor) -> Callable[[Tensor], None]:
        """Remembers a use of an embedding.

        Args:
            index: Number of the parameter.
            ids: int64 `[num_rows, length]`: what is looked up.

        Returns:
            What takes up the gradient of the result, `[num_rows, length, width]`.
        """
        lookups = self._lookups.setdefault(index, _Lookups())
        use = lookups.number_of(ids) if self.in_backward else len(lookups.ids)
        if use == len(lookups.ids):
            lookups.ids.append(ids)

        def take(gradient: Tensor) -> None:
            self.in_backward = True
            known = lookups.gradients.get(use)
            lookups.gradients[use] = gradient if known is None else known + gradient

        return take

    def _take_lookups(self, index: int, lookups: _Lookups) -> None:
        uses = sorted(lookups.gradients)
        if not uses:
            return
        ids = torch.cat([lookups.ids[use] for use in uses], dim=1)
        gradients = torch.cat([lookups.gradients[use] for use in uses], dim=1)
        gradients = gradients.to(_at_least_float32(gradients.dtype))
        rows, present = self.rows, self.rows.num_present
        unique, inverse = torch.unique(lookups.all_ids, return_inverse=True)
        if len(uses) < len(lookups.ids):
            inverse = torch.searchsorted(unique, ids)
        pieces = gradients.new_zeros(present * len(unique), gradients.shape[2])
        places = rows.local_ids[:, None] * len(unique) + inverse
        pieces.index_add_(0, places.reshape(-1), gradients.reshape(-1, gradients.shape[2]))
        pieces = pieces.view(present, len(unique), -1)
        self._sums.add_rows(index, unique, pieces, rows.present, lookups.head)
        if self._squares is None:
            return
        words = torch.arange(rows.num_rows, device=ids.device)[:, None] * len(unique) + inverse
        keys, segments = torch.unique(words, return_inverse=True)
        by_word = gradients.new_zeros(len(keys), gradients.shape[2])
        by_word.index_add_(0, segments.reshape(-1), gradients.reshape(-1, gradients.shape[2]))
        squares = torch.zeros(rows.num_rows, dtype=torch.float64, device=ids.device)
        squares.index_add_(0, keys // len(unique), by_word.double().square().sum(1))
        if lookups.head_rows is not None:
            parts = torch.split(lookups.head_rows, [part.shape[1] for part in lookups.ids], dim=1)
            squares += 2.0 * (gradients * torch.cat([parts[use] for use in uses], dim=1)).double().sum((1, 2))
        self._add_squares(index, squares)

    # ---- The end of the backward ----

    def close(self) -> None:
        """Takes up what had to wait for the end of the backward."""
        with self._stopwatch.running(), torch.no_grad():
            for index, factors in self._postponed.items():
                inputs = torch.cat([one for one, _ in factors], dim=1)
                self._take_matrix(index, inputs, torch.cat([other for _, other in factors], dim=1))
            for index, per_row in self._vectors.items():
                self._sums.add(index, self.rows.add_up(per_row)[:, :, None], self.rows.present)
                self._add_squares(index, per_row.double().square().sum(1))
            for index, lookups in self._lookups.items():
                self._take_lookups(index, lookups)

    def _add_squares(self, index: int, per_row: Tensor) -> None:
        if self._squares is not None:
            self._squares[index].index_add_(0, self.rows.stream_ids, per_row.to(self._squares.device))


def _at_least_float32(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def _multiply(gradients: Tensor, inputs: Tensor, target: Tensor) -> None:
    """Writes `gradientsᵀ inputs`; in half precision a product is rounded once, and added up in float32 from there."""
    if target.dtype == inputs.dtype:
        torch.mm(gradients.T, inputs, out=target)
    else:
        target.copy_(gradients.T @ inputs)


def _is_short(inputs: Tensor, gradients: Tensor) -> bool:
    """Whether rows have so few tokens that the norm of a sample's gradient is cheaper from products of its tokens.

    Those take `2 length² (width + height)` operations; to make the gradient takes none more than the plain backward,
    but each of its `width · height` numbers goes to memory and back: about as long as 8 operations.
    """
    length, width, height = inputs.shape[1], inputs.shape[2], gradients.shape[2]
    return length * length * (width + height) < 4 * width * height
