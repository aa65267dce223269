"""A look, once, whether the pieces of each gradient add up to the gradient that the backward made."""

from collections.abc import Callable, Sequence
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils.hooks import RemovableHandle

from mixer.probe.sketch import Projection, as_matrix
from mixer.probe.sums import SketchSums, Taker, Target, projections_of

_TOLERANCE = 0.05  # half precision rounds pieces and whole differently
_SIZE = 8  # rows and columns of the projections that are compared


class PieceCheck:
    """Compares the pieces of each parameter's first gradient with the whole.

    A parameter that is also used behind the back of its layer (attention that takes a layer's weight by itself, a
    penalty on weights) has a gradient that its layer does not see. Projections are compared, so that no gradient has to
    be kept.

    Args:
        parameters: The parameters that are read.
        targets: What is known of them.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], targets: Sequence[Target]):
        self._parameters, self._targets = parameters, targets
        # What a sharded parameter gets is no longer this rank's own gradient.
        self._waiting = [number for number, one in enumerate(parameters) if not isinstance(one, DTensor)]
        self._sums: SketchSums | None = None
        self._handles: list[RemovableHandle] = []

    def begin(self, sums: Taker) -> Taker:
        """Begins the look at a micro-batch.

        Args:
            sums: Where its pieces go.

        Returns:
            Where they are to go instead, and from there to `sums`.
        """
        if not self._waiting:
            return sums
        self._sums = SketchSums(self._targets, 2, self._projections)  # of the pieces, and of the whole
        for index in self._waiting:
            if self._parameters[index].requires_grad:  # it may have been frozen
                take = self._taker(index, self._sums)
                self._handles.append(self._parameters[index].register_hook(take))  # type: ignore[no-untyped-call]
        return _Both(sums, self._sums, frozenset(self._waiting))

    @cached_property
    def _projections(self) -> list[Projection]:
        return projections_of(self._targets, _SIZE, seed=0)

    def _taker(self, index: int, sums: SketchSums) -> Callable[[Tensor], None]:
        dtype = self._targets[index].dtype

        def take(gradient: Tensor) -> None:
            pieces = gradient.detach().to(dtype)
            pieces = pieces.to_dense() if pieces.is_sparse else pieces
            one = torch.ones(1, dtype=torch.int64, device=gradient.device)
            sums.add(index, pieces.reshape(1, *as_matrix(gradient.shape)), one)

        return take

    def finish(self) -> list[int]:
        """Ends the look; parameters whose gradients were 0 or not finite are looked at again in the next one.

        Returns:
            Numbers of the parameters whose pieces miss something.
        """
        sums = self._sums
        self.cancel()
        if sums is None:
            return []
        kept = [sums.travelling()[index].double() for index in self._waiting]
        squares = torch.stack([torch.stack([(one[0] - one[1]).square().sum(), one[1].square().sum()]) for one in kept])
        distances, wholes = squares.cpu().T.tolist()
        limits = {
            index: (distance, whole) for index, distance, whole in zip(self._waiting, distances, wholes, strict=True)
        }
        self._waiting = [index for index, (_, whole) in limits.items() if not 0.0 < whole < float("inf")]
        return [
            index
            for index, (distance, whole) in limits.items()
            if 0.0 < whole < float("inf") and not distance <= _TOLERANCE**2 * whole
        ]

    def cancel(self) -> None:
        """Ends the look without a result."""
        self._sums = None
        for handle in self._handles:
            handle.remove()
        self._handles.clear()


class _Both:
    """Hands pieces on, and those of some parameters to a second sum, over all streams."""

    def __init__(self, sums: Taker, whole: Taker, indices: frozenset[int]):
        self._sums, self._whole, self._indices = sums, whole, indices

    def add(self, index: int, pieces: Tensor, present: Tensor) -> None:
        """See `Taker.add`."""
        self._sums.add(index, pieces, present)
        if index in self._indices:
            self._whole.add(index, pieces, torch.zeros_like(present))

    def add_rows(self, index: int, rows: Tensor, pieces: Tensor, present: Tensor, others: Tensor | None) -> None:
        """See `Taker.add_rows`."""
        self._sums.add_rows(index, rows, pieces, present, others)
        if index in self._indices:
            self._whole.add_rows(index, rows, pieces, torch.zeros_like(present), None)
