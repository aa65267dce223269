"""Embeddings, run so that the gradients of the looked-up rows are separated by row of the batch."""

from typing import Any

import torch
from torch import Tensor, nn

from mixer.gradients.probe.layers.captures import Capture, gives, run_with
from mixer.gradients.probe.reading import Lookups, Reading, is_in_backward
from mixer.gradients.probe.row_streams import Rows


class EmbeddingCapture(Capture):
    """`nn.Embedding`, and layers that transform the result (scale it, as Gemma's does)."""

    plain = (nn.Embedding.forward,)

    @staticmethod
    def knows(module: nn.Module) -> bool:
        """See `Capture.knows`."""
        return isinstance(module, nn.Embedding) and module.max_norm is None and not module.scale_grad_by_freq

    def _foresee(self, inputs: Tensor | None, reading: Reading) -> None:
        ids = None if inputs is None else _by_row(inputs, reading.rows)
        if ids is not None and not is_in_backward():
            self._lookups(reading).note(ids.flatten(1), is_repeated=False)

    def _lookups(self, reading: Reading) -> Lookups:
        table: Any = self.module.weight
        return reading.lookups.setdefault(self.indices["weight"], Lookups(len(table)))

    def _read(self, module: Any, inputs: Tensor, reading: Reading) -> Tensor | None:
        ids = _by_row(inputs, reading.rows)
        if self._is_alike is None and ids is not None:
            self._is_alike = _try(module, ids)
        if ids is None or not self._is_alike or list(self.indices) != ["weight"]:
            return None
        flat = ids.flatten(1)
        reading.rows.lengths.add(flat.shape[1])
        found: Tensor = nn.Embedding.forward(module, ids)
        if found.requires_grad:
            take = self._lookups(reading).note(flat, is_in_backward())

            def take_gradient(gradient: Tensor) -> None:
                rows = gradient.reshape(*flat.shape, -1)
                if module.padding_idx is not None:
                    rows = rows.masked_fill((flat == module.padding_idx)[:, :, None], 0.0)
                take(rows)

            found.register_hook(take_gradient)  # type: ignore[no-untyped-call]
        return found if type(module).forward is nn.Embedding.forward else _with(module, found)


def _by_row(ids: Tensor, rows: Rows) -> Tensor | None:
    if ids.dim() == 2 and ids.shape[0] == 1:
        return ids.expand(rows.num_rows, -1)  # positions, equal in each row
    return ids if ids.dim() >= 2 and ids.shape[0] == rows.num_rows else None


def _with(module: Any, found: Tensor) -> Tensor:
    """Runs a layer's own forward with the looked-up rows as its table."""
    places = torch.arange(found[..., 0].numel(), device=found.device).view(found.shape[:-1])
    padding, module.padding_idx = module.padding_idx, None
    try:
        return run_with(module, {"weight": found.flatten(0, -2)}, places)
    finally:
        module.padding_idx = padding


def _try(module: nn.Embedding, ids: Tensor) -> bool:
    if module.sparse:
        return False
    with torch.no_grad():
        expected = type(module).forward(module, ids)
        return gives(lambda: _with(module, nn.Embedding.forward(module, ids)), expected)
