"""How the losses of streams are computed and normalised, and what their items count."""

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import Trainer

from mixer.agreement import UpdateContents
from mixer.collation import batch_mapping
from mixer.convention import EXACT_SHARE, LossConvention, samples_per_item, try_convention
from mixer.label_shift import shifts_labels
from mixer.liger import RowlessTracker, hides_rows
from mixer.loader import MicroBatch, Update
from mixer.losses import LossTracker, items_per_row
from mixer.plan import FloatArray, Plan
from mixer.row_names import name_rows
from mixer.stream import Stream
from mixer.unfit_rows import unfit_rows


class LossesMixin(Trainer):
    """A Trainer that knows of each stream's loss whose it is, how it is normalised and what its items count for."""

    streams: list[Stream]
    _contents_of_update: UpdateContents
    _micro_items: list[int]  # of this rank's micro-batches
    _conventions: dict[int, LossConvention]  # by the stream where their losses differ, else under 0
    _losses_differ: bool = False  # whether streams have losses or heads of their own
    _tracker: LossTracker | None = None
    _keeps_output: bool = False  # whether somebody looks at what the model gives
    _keeps_items: bool = False  # whether somebody looks at the loss of each item

    @property
    def _has_own_loss(self) -> bool:
        """Whether the user computes the loss, and not the model or a trainer whose loss is known."""
        return self.compute_loss_func is not None or not _is_known(type(self).compute_loss)

    @functools.cached_property
    def _shifts_labels(self) -> bool:
        """Whether the first label of a row is no term of the loss; the Trainer does not know it of every model."""
        return shifts_labels(self.model, self._loss_shifts_labels)

    @contextlib.contextmanager
    def _with_loss_of(self, stream_id: int) -> Iterator[None]:
        """Computes the losses of a stream meanwhile, which may have a function of its own for them."""
        own, common = self.streams[stream_id].compute_loss_func, self.compute_loss_func
        self.compute_loss_func = common if own is None else own
        try:
            yield
        finally:
            self.compute_loss_func = common

    @contextlib.contextmanager
    def _naming_streams(self, micro: MicroBatch) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            names = [self.streams[stream_id].name for stream_id in np.unique(micro.stream_ids).tolist()]
            error.add_note(f"While a micro-batch with samples of the streams {names} was trained.")
            if micro.indices is not None:
                error.add_note(f"They are {name_rows(self.streams, micro.stream_ids, micro.indices)}.")
            for reason in self._unfit_rows(micro):
                error.add_note(reason)
            raise

    def _unfit_rows(self, micro: MicroBatch) -> list[str]:
        """Says of which rows the model cannot take the tokens; for errors, which seldom say so themselves."""
        model = self.accelerator.unwrap_model(self.model_wrapped, keep_torch_compile=False)
        try:
            return unfit_rows(model, self.streams, micro)
        except RuntimeError:  # a GPU on which an assertion has failed gives nothing back any more
            return []

    def _computes_own_loss(self, stream_id: int) -> bool:
        """Whether the user computes the loss of a stream, and not the model."""
        return self._has_own_loss or self.streams[stream_id].compute_loss_func is not None

    def _kind(self, stream_id: int) -> int:
        """Gives under which number the convention of a stream's loss is known."""
        return stream_id if self._losses_differ else 0

    def _convention_of(self, stream_id: int) -> LossConvention:
        """Gives how a stream's loss is normalised.

        One that says nothing yet, as it is 0 or not finite, is taken for a mean, whose rows only the model's are.
        """
        known = self._conventions.get(self._kind(stream_id))
        if known is not None:
            return known
        return LossConvention(counts_items=False, factor=1.0, rows_known=not self._computes_own_loss(stream_id))

    def _unknown_kinds(self, plan: Plan) -> list[int]:
        """Gives the kinds of loss in an update of which it is not known how they are normalised."""
        kinds = np.flatnonzero(plan.counts).tolist() if self._losses_differ else [0]
        return [kind for kind in kinds if kind not in self._conventions]

    @property
    def _num_items(self) -> int:
        """Items of the present update over all ranks; at least 1, for it is divided by."""
        return max(int(self._contents_of_update.items.sum()), 1)

    @property
    def _num_items_told(self) -> int:
        """Items of the present update as the Trainer counts them, so that its gradient is the Trainer's own."""
        return self._num_items + self._contents_of_update.num_first

    @property
    def _num_divided_by(self) -> int:
        """What the sum of the present update's items is divided by, of those two."""
        return self._num_items_told if self._convention_of(0).counts_items else self._num_items

    def _num_told(self, micro: MicroBatch) -> int:
        return int(items_per_row(batch_mapping(micro.inputs), self._loss_shifts_labels).sum())

    def _items_per_row(self, micro: MicroBatch) -> Tensor:
        return items_per_row(batch_mapping(micro.inputs), self._shifts_labels)

    def _new_tracker(self, model: nn.Module, wraps: bool = True, keeps_output: bool = False) -> LossTracker:
        kind = RowlessTracker if hides_rows(self.args) else LossTracker
        return kind(
            model,
            self._shifts_labels,
            self.args.label_smoothing_factor,
            wraps,
            keeps_output,
            self._keeps_items,
            weighs_by_probability=getattr(self.args, "loss_type", None) == "dft",
        )

    def _vote(self, update: Update, kind: int) -> tuple[Update, Tensor]:
        """Has this rank vote on a convention; gives the update too, which may have been cut anew meanwhile."""
        of_kind = [self._kind(int(micro.stream_ids[0])) == kind for micro in update.micro_batches]
        # A rank without such a micro-batch takes part with another one, and knows nothing.
        number = of_kind.index(True) if any(of_kind) else 0
        micro = update.micro_batches[number]
        with self._with_loss_of(int(micro.stream_ids[0])), self._naming_streams(micro):
            return update, self._try_convention(update, number, any(of_kind))

    def _try_convention(self, update: Update, number: int, counts: bool) -> Tensor:
        micro, own_items = update.micro_batches[number], self._micro_items[number] if counts else 0
        tracker, model = self._tracker, self.model_wrapped
        assert tracker is not None, "the tracker is attached before a loss is tried"  # noqa: S101
        user_averages = self.args.average_tokens_across_devices
        # Where the loss is the user's, or there are several, what is seen of the rows may be another one by chance.
        options = {"largest_other_share": EXACT_SHARE} if self._has_own_loss or self._losses_differ else {}

        def compute_loss(count: int, averages: bool) -> Tensor:
            inputs = self._prepare_inputs(dict(micro.inputs))
            tracker.listen(inputs)
            self.args.average_tokens_across_devices = averages
            try:
                with self.compute_loss_context_manager():
                    count_on_device = torch.tensor(count, device=self.args.device)
                    loss: Any = self.compute_loss(model, inputs, num_items_in_batch=count_on_device)
            finally:
                self.args.average_tokens_across_devices = user_averages
            if not isinstance(loss, Tensor) or loss.numel() != 1:
                found = f"shape {list(loss.shape)}" if isinstance(loss, Tensor) else f"{loss!r}"
                raise TypeError(f"A loss has to be a tensor with one number, got {found}: take its mean.")
            return loss.detach()

        def row_losses() -> Tensor | None:
            rows = tracker.row_losses()
            return rows if rows is not None and len(rows) == len(micro.stream_ids) else None

        devices = [] if self.args.device.type == "cpu" else [self.args.device]
        with torch.random.fork_rng(devices, device_type=self.args.device.type), torch.no_grad():
            model.eval()
            try:
                return try_convention(
                    compute_loss, row_losses, self._num_items, own_items, self.args.world_size, **options
                )
            finally:
                model.train()

    def _factor(self, plan: Plan, stream_id: int) -> float:
        """Gives what the loss of a stream's samples is multiplied by; other than 1 only in micro-batches of one."""
        factors = self._loss_factors(plan)
        return 1.0 if factors is None else float(factors[stream_id])

    def _loss_factors(self, plan: Plan) -> FloatArray | None:
        """Gives `[num_streams]` factors on the streams' losses in the present update, or `None` for none."""
        counting, weights = self._item_factors(plan), plan.loss_weights
        return weights if counting is None else counting if weights is None else counting * weights

    def _item_factors(self, plan: Plan) -> FloatArray | None:
        """Gives `[num_streams]`: for how much an item counts in the present update's loss, or `None` if all are one."""
        return samples_per_item(plan.counts, self._contents_of_update.items) if self._losses_differ else None

    def _item_factor(self, plan: Plan, stream_id: int) -> float:
        """Gives for how much an item of a stream counts in the present update's loss."""
        factors = self._item_factors(plan)
        return 1.0 if factors is None else float(factors[stream_id])

    def _detach_tracker(self) -> None:
        if self._tracker is not None:
            self._tracker.detach()
            self._tracker = None


def _is_known(compute_loss: Any) -> bool:
    """Whether a `compute_loss` gives the model's loss, with or without an auxiliary one."""
    return compute_loss is Trainer.compute_loss or getattr(compute_loss, "__module__", "") == "trl.trainer.sft_trainer"
