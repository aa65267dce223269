"""Whole gradients of micro-batches of one stream each, for any model."""

import weakref
from collections.abc import Callable, Sequence

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from mixer.gradients.probe.reading import Stopwatch
from mixer.gradients.probe.row_streams import Rows, at_least_float32
from mixer.gradients.probe.sketch import as_matrix
from mixer.gradients.probe.sums import Taker


class WholeReading:
    """Reads the gradients of one micro-batch from the parameters before they are accumulated.

    Args:
        parameters: The probed parameters.
        rows: The rows of the micro-batch, all of one stream.
        sums: Destination of the gradients.
        squares: float64 `[num_parameters, num_streams]`: sums of squared norms of the micro-batches' gradients, updated
            here; `None` if they are not needed.
        stopwatch: Counts the time that a plain backward pass would not take.
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], rows: Rows, sums: Taker, squares: Tensor | None, stopwatch: Stopwatch
    ):
        self.rows = rows
        self.failed: set[int] = set()
        self._sums, self._squares, self._stopwatch = sums, squares, stopwatch
        self._seen: set[int] = set()
        self._handles: list[RemovableHandle] = [
            parameter.register_hook(self._taker(index))  # type: ignore[no-untyped-call]
            for index, parameter in enumerate(parameters)
            if parameter.requires_grad  # it may have been frozen
        ]

    def _taker(self, index: int) -> Callable[[Tensor], None]:
        reading = weakref.ref(self)  # a copy of the model would copy what its hooks hold

        def take(gradient: Tensor) -> None:
            own = reading()
            if own is not None:
                own.take(index, gradient)

        return take

    def take(self, index: int, gradient: Tensor) -> None:
        """Records the gradient of a parameter."""
        with self._stopwatch.running():
            present = self.rows.present
            gradient = gradient.detach().to(at_least_float32(gradient.dtype))
            gradient = gradient.to_dense() if gradient.is_sparse else gradient
            self._sums.add(index, gradient.reshape(1, *as_matrix(gradient.shape)), present)
            if self._squares is not None:
                square = gradient.double().square().sum().to(self._squares.device)
                # A gradient in parts (nested checkpointing) has cross terms that are not seen here.
                self._squares[index, present] += square if index not in self._seen else float("nan")
        self._seen.add(index)

    @property
    def has_seen(self) -> bool:
        """Whether any gradient arrived."""
        return bool(self._seen)

    def close(self) -> None:
        """Ends the reading."""
        self.clear()

    def clear(self) -> None:
        """Removes the hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
