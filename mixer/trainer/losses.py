"""How the losses of streams are computed and normalised, and what their items count."""

import contextlib
import functools
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, Trainer

from mixer.loading.collate import batch_mapping
from mixer.loading.errors import alone, name_rows, unfit_rows
from mixer.loading.loader import MixingLoader
from mixer.loading.step import MicroBatch, StepBatch, StepCounts
from mixer.mixture.plan import Plan
from mixer.mixture.stream import Stream
from mixer.models.inputs import inner_model
from mixer.models.labels import shifts_labels
from mixer.models.loss_normalization import (
    EXACT_SHARE,
    HALF_TOLERANCE,
    LARGEST_OTHER_SHARE,
    TOLERANCE,
    LossNormalization,
    Seen,
    find_kind,
    samples_per_item,
    try_normalization,
    vote_on_kind,
)
from mixer.models.row_losses import RowlessTracker, RowLossReader, hides_rows, items_per_row, labels_can_shift, num_rows
from mixer.models.side_state import model_restored
from mixer.models.trial_rows import rows_to_try
from mixer.utils.arrays import FloatArray

Trial = Callable[[StepBatch, int], Tensor]

# A loss that could not be told for sure is asked again in so many steps whose rows have unequal numbers of items.
_MOST_UNEVEN = 32
_HALF = (torch.float16, torch.bfloat16)


class LossesMixin(Trainer):
    """A Trainer that knows of each stream's loss whose it is, how it is normalised and what its items count for."""

    streams: list[Stream]
    _step_counts: StepCounts
    _micro_items: list[int]  # of this rank's micro-batches
    _normalizations: dict[int, LossNormalization]  # by the stream where their losses differ, else under 0
    _losses_differ: bool = False  # whether streams have losses or heads of their own
    _row_losses: RowLossReader | None = None
    _keeps_output: bool = False  # whether somebody looks at what the model gives
    _keeps_items: bool = False  # whether somebody looks at the loss of each item
    _num_uneven: int = 0  # steps with rows of unequally many items while a loss is not told for sure
    _last_tried: list[Seen]  # what the last loss of unknown kind gave for some rows and for their halves

    @property
    @abstractmethod
    def _present_loader(self) -> MixingLoader:
        """The loader of the present run."""

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
            for reason in alone(error, micro) + self._unfit_rows(micro):
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

    def _normalization_of(self, stream_id: int) -> LossNormalization:
        """Gives how a stream's loss is normalised.

        One that says nothing yet, as it is 0 or not finite, is taken for a mean, whose rows only the model's are.
        """
        known = self._normalizations.get(self._kind(stream_id))
        if known is not None:
            return known
        return LossNormalization(counts_items=False, factor=1.0, rows_known=not self._computes_own_loss(stream_id))

    def _unknown_kinds(self, plan: Plan) -> list[int]:
        """Gives the kinds of loss in a step of which it is not known how they are normalised.

        A loss that is a mean over items or over rows is asked again where that makes a difference, and now and then.
        """
        kinds = np.flatnonzero(plan.counts).tolist() if self._losses_differ else [0]
        known = [self._normalizations.get(kind) for kind in kinds]
        number = plan.step
        asks_again = number & (number - 1) == 0  # after 1, 2, 4, 8, ... steps
        if any(one is not None and one.is_tentative for one in known) and not self._step_counts.is_even:
            self._num_uneven += 1
            asks_again |= self._num_uneven <= _MOST_UNEVEN
        return [
            kind for kind, one in zip(kinds, known, strict=True) if one is None or (one.is_tentative and asks_again)
        ]

    @property
    def _num_items(self) -> int:
        """Items of the present step over all ranks; at least 1, for it is divided by."""
        return max(int(self._step_counts.items.sum()), 1)

    @property
    def _num_items_told(self) -> int:
        """Items of the present step as the Trainer counts them, so that its gradient is the Trainer's own."""
        return self._num_items + self._step_counts.num_first

    @property
    def _num_divided_by(self) -> int:
        """What the sum over the present step's items is divided by: one of those two, or nothing.

        Where losses differ, a stream counts by its samples, so that a sum becomes a mean.
        """
        normalization = self._normalization_of(0)
        if normalization.counts_items:
            return self._num_items_told
        return 1 if normalization.is_plain_sum and not self._losses_differ else self._num_items

    def _num_told(self, micro: MicroBatch) -> int:
        return int(items_per_row(batch_mapping(micro.inputs), self._loss_shifts_labels).sum())

    def _items_per_row(self, micro: MicroBatch) -> Tensor:
        inputs, stream_ids = batch_mapping(micro.inputs), micro.stream_ids
        if self._normalization_of(micro.first_stream).counts_rows:
            return torch.ones(len(stream_ids) or num_rows(inputs), dtype=torch.int64)
        return self._labels_per_row(inputs)

    def _labels_per_row(self, inputs: Mapping[str, Any]) -> Tensor:
        return items_per_row(inputs, self._shifts_labels)

    def _row_terms(self, micro: MicroBatch) -> Tensor | None:
        """Gives what the rows of the last forward count with in the loss, `[num_rows]`, or `None` if nobody saw it."""
        assert self._row_losses is not None, "rows are asked for after a forward that was tracked"  # noqa: S101
        rows, normalization = self._row_losses.row_losses(), self._normalization_of(micro.first_stream)
        if rows is None or not normalization.has_row_means:
            return rows
        return rows / self._labels_per_row(batch_mapping(micro.inputs)).to(rows.device).clamp(min=1)

    def _new_tracker(self, model: nn.Module, wraps: bool = True, keeps_output: bool = False) -> RowLossReader:
        kind = RowlessTracker if hides_rows(self.args) else RowLossReader
        return kind(
            model,
            self._shifts_labels,
            self.args.label_smoothing_factor,
            wraps,
            keeps_output,
            self._keeps_items,
            weighs_by_probability=getattr(self.args, "loss_type", None) == "dft",
        )

    def _vote(self, step_batch: StepBatch, kind: int, trial: Trial) -> tuple[StepBatch, Tensor]:
        """Has this rank vote on a convention; gives the step too, which may have been cut anew meanwhile.

        All ranks run the model equally often in a trial: a forward may be a collective.
        """
        of_kind = [self._kind(int(micro.stream_ids[0])) == kind for micro in step_batch.micro_batches]
        # A rank without such a micro-batch takes part with another one, and knows nothing.
        number = of_kind.index(True) if any(of_kind) else 0
        micro = step_batch.micro_batches[number]
        counts = any(of_kind) and not micro.is_padding
        with self._with_loss_of(int(micro.stream_ids[0])), self._naming_streams(micro), self._trying():
            votes = trial(step_batch, number)
        return step_batch, votes if counts else torch.zeros_like(votes)

    @contextlib.contextmanager
    def _trying(self) -> Iterator[None]:
        """Leaves the model, the random generators and the arguments as they were before a trial."""
        model = self.accelerator.unwrap_model(self.model_wrapped, keep_torch_compile=False)
        with model_restored(self.model_wrapped, self.args, training=False, inner=model), torch.no_grad():
            yield

    def _trial_loss(self, inputs: Mapping[str, Any], num_items: int, averages: bool = True) -> Tensor:
        """Computes the loss of a micro-batch as the Trainer does."""
        tracker, model = self._row_losses, self.model_wrapped
        assert tracker is not None, "the tracker is attached before a loss is tried"  # noqa: S101
        prepared = self._prepare_inputs(dict(inputs))
        tracker.listen(prepared)
        self.args.average_tokens_across_devices = averages
        with self.compute_loss_context_manager():
            count = torch.tensor(num_items, device=self.args.device)
            loss: Any = self.compute_loss(model, prepared, num_items_in_batch=count)
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            found = f"shape {list(loss.shape)}" if isinstance(loss, Tensor) else f"{loss!r}"
            raise TypeError(f"A loss has to be a tensor with one number, got {found}: take its mean.")
        return loss.detach()

    def _rows_of_trial(self, num_samples: int) -> Tensor | None:
        assert self._row_losses is not None, "the tracker is attached before a loss is tried"  # noqa: S101
        rows = self._row_losses.row_losses()
        return rows if rows is not None and len(rows) == num_samples else None

    def _try_normalization(self, step_batch: StepBatch, number: int) -> Tensor:
        micro = step_batch.micro_batches[number]
        return try_normalization(
            lambda count, averages: self._trial_loss(micro.inputs, count, averages),
            lambda: self._rows_of_trial(len(micro.stream_ids)),
            self._num_items,
            self._micro_items[number],
            self.args.world_size,
            # Where the loss is the user's, or there are several, what is seen of the rows may be another one by chance.
            EXACT_SHARE if self._has_own_loss or self._losses_differ else LARGEST_OTHER_SHARE,
            is_stock=self._has_stock_model and not self._has_own_loss and not self._losses_differ,
        )

    def _try_kind(self, step_batch: StepBatch, number: int) -> Tensor:
        micro = step_batch.micro_batches[number]
        batch, num_samples = batch_mapping(micro.inputs), len(micro.stream_ids)
        if num_samples == 1:
            stream_id = int(micro.stream_ids[0]) if self._present_loader.by_stream else None
            batch, num_samples = self._present_loader.few_samples(step_batch, stream_id) or (batch, num_samples)
        rows = rows_to_try(batch, num_samples, self._labels_per_row)
        seen = [self._see(one) for one in (rows or [batch] * 3)]
        self._last_tried = seen
        if rows is None:
            return vote_on_kind(None)
        is_half = any(parameter.dtype in _HALF for parameter in self.model_wrapped.parameters())
        tolerance = HALF_TOLERANCE if is_half else TOLERANCE
        found = find_kind(seen[0], seen[1:], tolerance)
        if found is None or found.kind != "other":
            return vote_on_kind(found)
        # A model that wraps another one, say, may shift its labels unknown to anybody.
        shifted = [
            replace(one, rows=None, items=items_per_row(inputs, not self._shifts_labels).cpu().numpy())
            for one, inputs in zip(seen, rows, strict=True)
            if labels_can_shift(inputs)
        ]
        other = find_kind(shifted[0], shifted[1:], tolerance) if shifted else None
        return vote_on_kind(found, has_other_items=other is not None and other.kind != "other")

    def _see(self, inputs: Mapping[str, Any]) -> Seen:
        loss = float(self._trial_loss(inputs, self._num_items, averages=False))  # not times the ranks, as in training
        items = self._labels_per_row(inputs)
        rows = self._rows_of_trial(len(items))
        return Seen(loss, None if rows is None else rows.double().cpu().numpy(), items.cpu().numpy())

    @property
    def _own_model(self) -> nn.Module:
        assert self.model is not None, "the Trainer has made its model"  # noqa: S101
        return self.model

    @functools.cached_property
    def _has_stock_model(self) -> bool:
        """Whether the model that computes the loss is one of transformers."""
        inner = inner_model(self._own_model)
        return isinstance(inner, PreTrainedModel) and type(inner).__module__.startswith("transformers.")

    def _name_of_loss(self, kind: int) -> str:
        """Names a loss, for what is said of it."""
        function: Any = self.streams[kind].compute_loss_func if self._losses_differ else None
        function = function or self.compute_loss_func
        name = getattr(function, "__qualname__", type(function).__qualname__) if function is not None else ""
        if function is None and not _is_known(type(self).compute_loss):
            name = f"{type(self).__name__}.compute_loss"
        name = name or f"the loss of {type(inner_model(self._own_model)).__name__}"
        return f"{name} (stream {self.streams[kind].name!r})" if self._losses_differ else name

    def _factor(self, plan: Plan, stream_id: int) -> float:
        """Gives what the loss of a stream's samples is multiplied by; other than 1 only in micro-batches of one."""
        factors = self._loss_factors(plan)
        return 1.0 if factors is None else float(factors[stream_id])

    def _loss_factors(self, plan: Plan) -> FloatArray | None:
        """Gives `[num_streams]` factors on the streams' losses in the present step, or `None` for none."""
        counting, weights = self._item_factors(plan), plan.loss_weights
        return weights if counting is None else counting if weights is None else counting * weights

    def _item_factors(self, plan: Plan) -> FloatArray | None:
        """Gives `[num_streams]`: for how much an item counts in the present step's loss, or `None` if all are one."""
        return samples_per_item(plan.counts, self._step_counts.items) if self._losses_differ else None

    def _item_factor(self, plan: Plan, stream_id: int) -> float:
        """Gives for how much an item of a stream counts in the present step's loss."""
        factors = self._item_factors(plan)
        return 1.0 if factors is None else float(factors[stream_id])

    def _detach_tracker(self) -> None:
        if self._row_losses is not None:
            self._row_losses.detach()
            self._row_losses = None


def _is_known(compute_loss: Any) -> bool:
    """Whether a `compute_loss` gives the model's loss, with or without an auxiliary one."""
    known = ("trl.trainer.sft_trainer", "mixer.trainer.adaptive_batch_size")
    return compute_loss is Trainer.compute_loss or getattr(compute_loss, "__module__", "") in known
