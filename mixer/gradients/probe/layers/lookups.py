"""Gradients of an embedding by row of the batch, with only a few rows of the table that are not 0."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from mixer.gradients.probe.rows import Rows, at_least_float32


@dataclass
class Lookups:
    """The uses of an embedding in one forward pass, and their gradients.

    Args:
        ids: int64 `[num_rows, length]` for each use: the looked-up rows.
        gradients: `[num_rows, length, width]` for each use with a gradient.
        head: `[num_present, num_unique, width]`: these rows of the streams' gradients of a tied head; `None` without
            one.
        head_rows: `[num_rows, length, width]`: for each token of all uses, its row of its sample's gradient of the
            head.
    """

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
        self.head = pieces[:, torch.unique(ids)]
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
        keys, segments = torch.unique(cells, return_inverse=True)
        by_cell = gradients.new_zeros(len(keys), gradients.shape[2])
        by_cell.index_add_(0, segments.reshape(-1), gradients.flatten(0, 1))
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
        unique = torch.unique(torch.cat(self.ids, dim=1))
        return unique, torch.searchsorted(unique, torch.cat([self.ids[use] for use in sorted(self.gradients)], dim=1))

    def clear(self) -> None:
        """Releases all tensors, which the graph of the loss would keep."""
        self.ids.clear()
        self.gradients.clear()
        self.head = self.head_rows = None
