"""A one-time check that the pieces of each gradient add up to the gradient of the backward pass."""

from collections.abc import Callable, Sequence
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils.hooks import RemovableHandle

from mixer.gradients.probe.sketch import Projections, as_matrix
from mixer.gradients.probe.sums import LinearSums, Taker, Target, projections_of
from mixer.utils.device import to_host

_TOLERANCE = 0.05  # half precision rounds pieces and the whole differently
_SIZE = 8  # rows and columns of the compared projections


class PieceCheck:
    """Compares the pieces of each parameter's first gradient with the whole gradient.

    A parameter that is also used outside its layer (attention that reads a layer's weight, a penalty on weights) has a
    gradient that its layer does not see. Projections are compared, so no gradient is kept.

    Args:
        parameters: The probed parameters.
        targets: Their descriptions.
        num_streams: Number of streams.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], targets: Sequence[Target], num_streams: int):
        self._parameters, self._targets, self._num_streams = parameters, targets, num_streams
        # The gradient of a sharded parameter is not this rank's own.
        self._waiting = {number for number, parameter in enumerate(parameters) if not isinstance(parameter, DTensor)}
        self._incomplete: set[int] = set()
        self._sums: LinearSums | None = None
        self._takers: list[Taker] = []
        self._handles: list[RemovableHandle] = []

    def begin(self, sums: Taker) -> Taker:
        """Starts the check of a micro-batch.

        Args:
            sums: Destination of the pieces.

        Returns:
            The destination to use instead; it passes the pieces on to `sums`.
        """
        if not self._waiting:
            return sums
        # The whole gradient is the last stream.
        self._sums = LinearSums(self._targets, self._num_streams + 1, self._projections)
        self._takers = [sums, self._sums]
        for index in self._waiting:
            if self._parameters[index].requires_grad:  # it may have been frozen
                take = self._taker(index, self._sums)
                self._handles.append(self._parameters[index].register_hook(take))  # type: ignore[no-untyped-call]
        return self

    def add(self, index: int, pieces: Tensor, present: Tensor) -> None:
        """See `Taker.add`."""
        for taker in self._takers[: 1 + (index in self._waiting)]:
            taker.add(index, pieces, present)

    def add_rows(self, index: int, rows: Tensor, pieces: Tensor, present: Tensor, others: Tensor | None) -> None:
        """See `Taker.add_rows`."""
        for taker in self._takers[: 1 + (index in self._waiting)]:
            taker.add_rows(index, rows, pieces, present, others)

    @cached_property
    def _projections(self) -> Projections:
        return projections_of(self._targets, _SIZE, seed=0)

    def _taker(self, index: int, sums: LinearSums) -> Callable[[Tensor], None]:
        dtype = self._targets[index].dtype

        def take(gradient: Tensor) -> None:
            pieces = gradient.detach().to(dtype)
            pieces = pieces.to_dense() if pieces.is_sparse else pieces
            last = torch.full((1,), self._num_streams, device=gradient.device)
            sums.add(index, pieces.reshape(1, *as_matrix(gradient.shape)), last)

        return take

    def finish(self) -> list[int]:
        """Ends the check; parameters with a gradient of 0 or not finite are checked again in the next micro-batch.

        Returns:
            Numbers of the parameters with incomplete pieces, in this or an earlier micro-batch.
        """
        sums = self._sums
        self.cancel()
        if sums is None:
            return list(self._incomplete)
        compared = to_host([_compare(sums.sums[index]) for index in self._waiting])
        for index, (distance, whole, parts) in zip(list(self._waiting), compared, strict=True):
            if 0.0 < whole < float("inf"):
                self._waiting.remove(index)
                if not distance <= _TOLERANCE**2 * max(whole, parts):
                    self._incomplete.add(index)
        return list(self._incomplete)

    def cancel(self) -> None:
        """Ends the check without a result."""
        self._sums, self._takers = None, []
        for handle in self._handles:
            handle.remove()
        self._handles.clear()


def _compare(sums: Tensor) -> Tensor:
    """Squared norms, float64 `[3]`: of the difference, of the whole gradient, and of the pieces.

    Pieces that nearly cancel have a small sum, in which half-precision rounding shows.
    """
    pieces, whole = sums[:-1].double(), sums[-1].double()
    return torch.stack([part.square().sum() for part in (pieces.sum(0) - whole, whole, pieces)])
