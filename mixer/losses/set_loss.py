"""The loss of an evaluation set: the mean over its rows or tokens, on any number of ranks."""

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from accelerate.data_loader import DataLoaderDispatcher
from accelerate.utils import find_batch_size
from torch import Tensor
from transformers import Trainer

from mixer.loading.collate import batch_mapping
from mixer.losses.normalization import CANDIDATES, TOLERANCE, explaining, predicted
from mixer.losses.stream_losses import StreamLosses
from mixer.models.row_losses import RowLossReader, num_rows
from mixer.models.trl_metrics import metrics_restored
from mixer.run.state import PresentStep
from mixer.utils.arrays import Int64Array
from mixer.utils.attributes import attributes_held
from mixer.utils.device import to_host

Predict = Callable[..., tuple[Tensor | None, Any, Any]]

_ROUNDING = 1e-6  # up to here the Trainer's own mean is kept, so that it is equal to the bit where it is right
# What ranks find out of a loss: the first of these that one has found counts.
_KINDS = ("sum", "row mean", "item mean")
_TENTATIVE, _UNKNOWN = len(_KINDS), len(_KINDS) + 1
_IS_PLAIN = np.array([not candidate.is_scaled for candidate in CANDIDATES])
_CODES = {"sum": 0, "row means": 1, "row sums": 1, "item mean": 2, "items": 2}  # it is given the items of its batch


class SetLoss:
    """Computes the loss of evaluation sets.

    The Trainer takes the mean of the batches' losses: times the number of ranks for heads that ignore
    `num_items_in_batch`, with the rows that fill up the last batches, and with the same weight for a batch of few
    tokens as of many. Here a batch counts by its rows or tokens, without those that fill it up.

    Args:
        trainer: The trainer.
    """

    def __init__(self, trainer: Trainer):
        self._trainer = trainer
        self._losses: StreamLosses | None = None
        self._kind = _UNKNOWN
        self._batches: list[Tensor] | None = None  # of a set: loss, items and rows of each batch
        self._reader: RowLossReader | None = None

    def connect(self, losses: StreamLosses) -> None:
        """Takes over what training knows of the streams' losses."""
        self._losses = losses

    @property
    def _known(self) -> StreamLosses:
        if self._losses is None:  # a trainer without streams
            self._losses = StreamLosses(self._trainer, PresentStep())
        return self._losses

    @contextlib.contextmanager
    def measuring(self, stream_id: int | None) -> Iterator[None]:
        """Measures a set.

        Args:
            stream_id: The stream to which it belongs; `None` for any.
        """
        losses = self._known
        kind = -1 if stream_id is None and losses.differ else losses.kind(stream_id or 0)
        known = losses.normalizations.get(kind)
        self._kind, self._batches = _UNKNOWN, []
        if losses.declared is not None:
            self._kind = _CODES[losses.declared]
        elif known is not None:
            self._kind = _code({known.kind, *(other for other, _ in known.others)})
        try:
            # Else the Trainer counts the items of all ranks, and multiplies losses by the number of ranks.
            with attributes_held(self._trainer.args, average_tokens_across_devices=False):
                yield
        finally:
            self._batches = None
            if self._reader is not None:
                self._reader.detach()
                self._reader = None

    def count(self, by_trainer: Any, batches: Sequence[Any]) -> Any:
        """Counts the loss terms of batches where the Trainer does, which counts first labels that are none."""
        if self._batches is None or not isinstance(by_trainer, Tensor):
            return by_trainer
        return sum(self._known.labels_per_row(batch_mapping(batch)).sum().to(by_trainer) for batch in batches)

    # ---- Batches ----

    def prediction_step(self, predict: Predict, inputs: Any, loss_only: bool, *args: Any, **kwargs: Any) -> Any:
        """Predicts a batch and notes its loss; see `Trainer.prediction_step`."""
        if self._batches is None:
            return predict(inputs, loss_only, *args, **kwargs)
        batch, number = batch_mapping(inputs), len(self._batches) + 1
        if seeks := self._kind >= _TENTATIVE and number & (number - 1) == 0:  # in batches 1, 2, 4, 8, ...
            self._listen(batch)
        result = predict(inputs, loss_only, *args, **kwargs)
        if result[0] is not None:
            with metrics_restored(self._trainer):
                if seeks:
                    self._kind = self._found(batch, result[0])
                self._batches.append(self._noted(predict, batch, result[0]))
        return result

    def _noted(self, predict: Predict, batch: Mapping[str, Any], loss: Tensor) -> Tensor:
        """Returns loss, items and rows of a batch, `[3]`, without the rows that fill it up."""
        state, args = self._trainer.accelerator.gradient_state, self._trainer.args
        here, share = find_batch_size(batch) or num_rows(batch), 1.0
        size = here if isinstance(state.active_dataloader, DataLoaderDispatcher) else args.eval_batch_size
        if args.world_size > 1 and state.end_of_dataloader and 0 < state.remainder < size * args.world_size:
            own = min(max(state.remainder - size * args.process_index, 0), size)
            share = own / size
            if here == size:  # else rows are no samples, and cannot be left out
                batch, share, here = _rows_of(batch, np.arange(max(own, 1)), here), float(own > 0), max(own, 1)
                loss = _loss(predict, batch)  # on all ranks: a forward may be a collective
        items = self._known.labels_per_row(batch).sum().to(loss.device, non_blocking=True)
        rows = torch.full_like(items, here)
        return torch.stack([loss.detach().reshape(()).to(self._known.sum_dtype), items * share, rows * share])

    # ---- The kind of the loss ----

    def _listen(self, batch: Mapping[str, Any]) -> None:
        """Reads the rows' losses in the next forward, which stays the Trainer's."""
        if self._reader is None:
            model = self._trainer.accelerator.unwrap_model(self._trainer.model, keep_torch_compile=False)
            self._reader = self._known.new_reader(model, wraps=False)
            self._reader.attach()
        self._reader.listen(batch)

    def _found(self, batch: Mapping[str, Any], loss: Tensor) -> int:
        """Returns what the ranks know of the kind of the loss after a batch."""
        assert self._reader is not None, "it has been attached before the forward"  # noqa: S101
        rows, items = self._reader.take_row_losses(), self._known.labels_per_row(batch).cpu().numpy()
        code = _UNKNOWN
        if rows is not None and len(rows) == len(items) and float(loss):
            predictions = predicted(rows.double().cpu().numpy(), items, max(int(items.sum()), 1), 1)
            explains = explaining(float(loss), predictions, _IS_PLAIN, TOLERANCE)
            code = _code({candidate.kind for candidate, is_it in zip(CANDIDATES, explains, strict=True) if is_it})
        return min(self._kind, self._least(code))

    def _least(self, number: int) -> int:
        own = torch.tensor([number], device=self._trainer.args.device)
        return int(self._trainer.accelerator.gather(own).min())

    # ---- The set ----

    def corrected(self, metrics: dict[str, float], prefix: str) -> None:
        """Puts the loss of the set in the place of the Trainer's mean, if they differ by more than rounding."""
        key = f"{prefix}_loss"
        if not self._batches or key not in metrics:
            return
        table = self._trainer.accelerator.gather(torch.stack(self._batches))
        losses, items, rows = to_host([table])[0].T
        is_sum, by_item = self._kind == _KINDS.index("sum"), self._kind in (_KINDS.index("item mean"), _TENTATIVE)
        weights = items if is_sum or by_item else rows
        counts = weights > 0
        if self._trainer.args.logging_nan_inf_filter and np.isfinite(losses[counts]).any():
            counts &= np.isfinite(losses)
        if counts.any():
            sums = losses if is_sum else losses * weights
            value = float(sums[counts].sum() / weights[counts].sum())
            if not abs(value - metrics[key]) <= _ROUNDING * abs(value):
                metrics[key] = value


def _code(kinds: Collection[str]) -> int:
    codes = {_CODES[kind] for kind in kinds}
    return _UNKNOWN if not codes else codes.pop() if len(codes) == 1 else _TENTATIVE


def _rows_of(inputs: Mapping[str, Any], places: Int64Array, num_samples: int) -> dict[str, Any]:
    """Selects rows of a batch: of every value with one entry per sample; other values as they are."""

    def pick(value: Any) -> Any:
        if isinstance(value, Tensor) and value.dim() and len(value) == num_samples:
            return value[torch.from_numpy(places).to(value.device)]
        if isinstance(value, list | tuple) and len(value) == num_samples:
            return [value[place] for place in places.tolist()]
        return value

    return {name: pick(value) for name, value in inputs.items()}


def _loss(predict: Predict, inputs: Mapping[str, Any]) -> Tensor:
    loss = predict(inputs, True)[0]
    assert loss is not None, "the whole batch has a loss"  # noqa: S101
    return loss
