"""The loss of an evaluation set: the mean over its rows or tokens, on any number of ranks."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from accelerate.data_loader import DataLoaderDispatcher
from accelerate.utils import find_batch_size
from torch import Tensor
from transformers import Trainer

from mixer.loading.collate import batch_mapping
from mixer.losses.normalization import KindFound, LossKind, Seen, find_kind, kind_by_rows
from mixer.losses.stream_losses import StreamLosses
from mixer.losses.trial_rows import rows_of, rows_to_try
from mixer.models.row_losses import RowLossReader, num_rows
from mixer.models.trl_metrics import metrics_restored
from mixer.run.state import PresentStep
from mixer.utils.attributes import attributes_held
from mixer.utils.device import to_host

Predict = Callable[..., tuple[Tensor | None, Any, Any]]

_ROUNDING = 1e-6  # up to here the Trainer's own mean is kept, so that it is equal to the bit where it is right
# What ranks find out of a loss: the first of these that one has found counts.
_KINDS: tuple[LossKind, ...] = ("other", "sum", "row mean", "item mean")
_TENTATIVE, _UNKNOWN = len(_KINDS), len(_KINDS) + 1


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
        if known is not None and not known.is_tentative:
            # `count` tells a loss that counts items those of its batch: it is their mean.
            is_mean = known.counts_items and known.kind != "other"
            self._kind = _KINDS.index("item mean" if is_mean else known.kind)
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
                    self._kind = self._found(predict, batch, result[0])
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
                batch, share, here = rows_of(batch, np.arange(max(own, 1)), here), float(own > 0), max(own, 1)
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

    def _found(self, predict: Predict, batch: Mapping[str, Any], loss: Tensor) -> int:
        """Returns what the ranks know of the kind of the loss after a batch."""
        assert self._reader is not None, "it has been attached before the forward"  # noqa: S101
        rows, num_samples = self._reader.take_row_losses(), num_rows(batch)
        own = rows.double().cpu().numpy() if rows is not None and len(rows) == num_samples else None
        seen = Seen(float(loss), own, self._known.labels_per_row(batch).cpu().numpy())
        found = kind_by_rows(seen)
        # The sum over a single row may be the mean over the rows' sums.
        is_clear = found is not None and (num_samples > 1 or found.kind != "sum")
        if self._least(int(is_clear)) == 0:
            found = self._tried(predict, batch, num_samples)
        code = _UNKNOWN if found is None else _TENTATIVE if found.is_tentative else _KINDS.index(found.kind)
        return min(self._kind, self._least(code))

    def _tried(self, predict: Predict, batch: Mapping[str, Any], num_samples: int) -> KindFound | None:
        """Finds the kind by the losses of a few rows and of their halves; what cannot take them stays unknown."""
        tried = rows_to_try(batch, num_samples, self._known.labels_per_row)
        seen = []
        for rows in tried or [batch] * 3:
            with contextlib.suppress(Exception):
                items = self._known.labels_per_row(rows).cpu().numpy()
                seen.append(Seen(float(_loss(predict, rows)), None, items))
        return find_kind(seen[0], seen[1:]) if tried is not None and len(seen) == len(tried) else None

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


def _loss(predict: Predict, inputs: Mapping[str, Any]) -> Tensor:
    loss = predict(inputs, True)[0]
    assert loss is not None, "the whole batch has a loss"  # noqa: S101
    return loss
