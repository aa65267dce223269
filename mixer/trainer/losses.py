"""How the losses of streams are computed and normalised, and how many items they have."""

import contextlib
import functools
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
from mixer.models.trl import metrics_restored
from mixer.utils.arrays import FloatArray

Trial = Callable[[StepBatch, int], Tensor]

# A tentative normalisation is tried again in this many steps whose rows have unequal numbers of items.
_MOST_UNEVEN = 32
_HALF = (torch.float16, torch.bfloat16)


class LossesMixin(Trainer):
    """A Trainer that knows each stream's loss: the function, its normalisation and the weight of an item."""

    streams: list[Stream]
    _plan: Plan  # of the present step, and its counts
    _step_counts: StepCounts
    _micro_items: list[int]  # of this rank's micro-batches
    _normalizations: dict[int, LossNormalization]  # by stream if their losses differ, else under 0
    _losses_differ: bool = False  # whether streams have losses or heads of their own
    _loader: MixingLoader | None = None
    _row_losses: RowLossReader | None = None
    _keeps_output: bool = False  # whether a method needs the model's output
    _keeps_items: bool = False  # whether the policy needs the loss of each item
    _num_uneven: int = 0  # steps with unequal rows while a normalisation is tentative
    _last_tried: list[Seen]  # the last loss of unknown kind, for some rows and for their halves

    @property
    def _present_loader(self) -> MixingLoader:
        assert self._loader is not None, "there is a loader in every run"  # noqa: S101
        return self._loader

    @property
    def _has_own_loss(self) -> bool:
        """Whether the user computes the loss, not the model or a known trainer."""
        return self.compute_loss_func is not None or not _is_known(type(self).compute_loss)

    @functools.cached_property
    def _shifts_labels(self) -> bool:
        """Whether the first label of a row is no loss term; the Trainer does not know it for every model."""
        return shifts_labels(self.model, self._loss_shifts_labels)

    def _with_loss_of(self, stream_id: int) -> contextlib.AbstractContextManager[None]:
        """Temporarily uses the loss function of a stream, if it has its own."""
        own = self.streams[stream_id].compute_loss_func
        return contextlib.nullcontext() if own is None else attributes_held(self, compute_loss_func=own)

    @contextlib.contextmanager
    def _naming_streams(self, micro: MicroBatch) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            names = [self.streams[stream_id].name for stream_id in np.unique(micro.stream_ids).tolist()]
            error.add_note(f"In a micro-batch with samples of the streams {names}.")
            if micro.indices is not None:
                error.add_note(f"The samples: {name_rows(self.streams, micro.stream_ids, micro.indices)}.")
            reasons = alone(error, micro)
            with contextlib.suppress(RuntimeError):  # after a failed assertion nothing can be read from a GPU
                reasons += unfit_rows(self._unwrapped_model, self.streams, micro)
            for reason in reasons:
                error.add_note(reason)
            raise

    def _computes_own_loss(self, stream_id: int) -> bool:
        """Whether the user computes the loss of a stream, not the model."""
        return self._has_own_loss or self.streams[stream_id].compute_loss_func is not None

    def _kind(self, stream_id: int) -> int:
        """Returns the key of a stream's loss normalisation."""
        return stream_id if self._losses_differ else 0

    def _normalization_of(self, stream_id: int) -> LossNormalization:
        """Returns how a stream's loss is normalised.

        A loss of unknown kind so far, because it is 0 or not finite, counts as a mean; its rows are known only if the
        model computes it.
        """
        known = self._normalizations.get(self._kind(stream_id))
        return known or LossNormalization(False, factor=1.0, rows_known=not self._computes_own_loss(stream_id))

    def _unknown_kinds(self, plan: Plan) -> list[int]:
        """Returns the kinds of loss in a step whose normalisation is unknown.

        A tentative one is tried again now and then if the rows of the step differ in their number of items.
        """
        known = self._normalizations
        kinds = np.flatnonzero(plan.counts).tolist() if self._losses_differ else [0]
        tentative = [kind for kind in kinds if kind in known and known[kind].is_tentative]
        tries_again = plan.step & (plan.step - 1) == 0  # after 1, 2, 4, 8, ... steps
        if tentative and not self._step_counts.is_even:
            self._num_uneven += 1
            tries_again |= self._num_uneven <= _MOST_UNEVEN
        return [kind for kind in kinds if kind not in known or (tries_again and kind in tentative)]

    @property
    def _num_items(self) -> int:
        """Items of the present step over all ranks; at least 1, because it is a divisor."""
        return max(int(self._step_counts.items.sum()), 1)

    @property
    def _num_items_told(self) -> int:
        """Items of the present step as the Trainer counts them, so that the gradient is the Trainer's."""
        return self._num_items + self._step_counts.num_first

    @property
    def _num_divided_by(self) -> int:
        """The divisor of the sum over the present step's items: one of the two counts, or 1.

        If losses differ, a stream counts by its samples, so a sum becomes a mean.
        """
        normalization = self._normalization_of(0)
        if normalization.counts_items:
            return self._num_items_told
        return 1 if normalization.is_plain_sum and not self._losses_differ else self._num_items

    def _items_per_row(self, micro: MicroBatch) -> Tensor:
        inputs, stream_ids = batch_mapping(micro.inputs), micro.stream_ids
        if self._normalization_of(micro.first_stream).counts_rows:
            return torch.ones(len(stream_ids) or num_rows(inputs), dtype=torch.int64)
        return self._labels_per_row(inputs)

    def _labels_per_row(self, inputs: Mapping[str, Any]) -> Tensor:
        return items_per_row(inputs, self._shifts_labels)

    def _row_terms(self, micro: MicroBatch) -> Tensor | None:
        """Returns the rows' contributions to the last loss, `[num_rows]`; `None` if they are unknown."""
        rows, normalization = self._tracker.row_losses(), self._normalization_of(micro.first_stream)
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
        """Returns this rank's vote on a normalisation, and the step, which may have been split again.

        All ranks run the model equally often in a trial: a forward may be a collective.
        """
        of_kind = [self._kind(int(micro.stream_ids[0])) == kind for micro in step_batch.micro_batches]
        # A rank without such a micro-batch runs another one and abstains.
        number = of_kind.index(True) if any(of_kind) else 0
        micro = step_batch.micro_batches[number]
        counts = any(of_kind) and not micro.is_padding
        with self._with_loss_of(int(micro.stream_ids[0])), self._naming_streams(micro), self._trying():
            votes = trial(step_batch, number)
        return step_batch, votes if counts else torch.zeros_like(votes)

    @contextlib.contextmanager
    def _trying(self) -> Iterator[None]:
        """Restores the model, the random generators and the arguments after a trial."""
        inner = self._unwrapped_model
        restored = model_restored(self.model_wrapped, self.args, training=False, inner=inner)
        with metrics_restored(self), restored, torch.no_grad():
            yield

    def _trial_loss(self, inputs: Mapping[str, Any], num_items: int, averages: bool = True) -> Tensor:
        """Computes the loss of a micro-batch as the Trainer does."""
        prepared = self._prepare_inputs(dict(inputs))
        self._tracker.listen(prepared)
        self.args.average_tokens_across_devices = averages
        with self.compute_loss_context_manager():
            count = torch.tensor(num_items, device=self.args.device)
            loss: Any = self.compute_loss(self.model_wrapped, prepared, num_items_in_batch=count)
        if isinstance(loss, Tensor) and loss.numel() == 1:
            return loss.detach()
        actual = f"shape {list(loss.shape)}" if isinstance(loss, Tensor) else f"{loss!r}"
        raise TypeError(f"A loss must be a tensor with one element, got {actual}: return its mean.")

    def _rows_of_trial(self, num_samples: int) -> Tensor | None:
        rows = self._tracker.row_losses()
        return rows if rows is not None and len(rows) == num_samples else None

    def _try_normalization(self, step_batch: StepBatch, number: int) -> Tensor:
        micro, inner = step_batch.micro_batches[number], inner_model(self._own_model)
        is_stock = isinstance(inner, PreTrainedModel) and type(inner).__module__.startswith("transformers.")
        return try_normalization(
            lambda count, averages: self._trial_loss(micro.inputs, count, averages),
            lambda: self._rows_of_trial(len(micro.stream_ids)),
            self._num_items,
            self._micro_items[number],
            self.args.world_size,
            # If the user computes the loss, or there are several, the observed rows may belong to another loss.
            EXACT_SHARE if self._has_own_loss or self._losses_differ else LARGEST_OTHER_SHARE,
            is_stock=is_stock and not self._has_own_loss and not self._losses_differ,
        )

    def _try_kind(self, step_batch: StepBatch, number: int) -> Tensor:
        micro = step_batch.micro_batches[number]
        batch, num_samples = batch_mapping(micro.inputs), len(micro.stream_ids)
        if num_samples == 1:
            stream_id = int(micro.stream_ids[0]) if self._present_loader.by_stream else None
            batch, num_samples = self._present_loader.few_samples(step_batch, stream_id) or (batch, num_samples)
        rows = rows_to_try(batch, num_samples, self._labels_per_row)
        self._last_tried = seen = [self._see(one) for one in (rows or [batch] * 3)]
        if rows is None:
            return vote_on_kind(None)
        is_half = any(parameter.dtype in _HALF for parameter in self.model_wrapped.parameters())
        tolerance = HALF_TOLERANCE if is_half else TOLERANCE
        best = find_kind(seen[0], seen[1:], tolerance)
        if best is None or best.kind != "other":
            return vote_on_kind(best)
        # A model that wraps another one, for example, may shift its labels without a way to know.
        shifted = [
            replace(one, rows=None, items=items_per_row(inputs, not self._shifts_labels).cpu().numpy())
            for one, inputs in zip(seen, rows, strict=True)
            if labels_can_shift(inputs)
        ]
        other = find_kind(shifted[0], shifted[1:], tolerance) if shifted else None
        return vote_on_kind(best, has_other_items=other is not None and other.kind != "other")

    def _see(self, inputs: Mapping[str, Any]) -> Seen:
        loss = float(self._trial_loss(inputs, self._num_items, averages=False))  # without training's factor world_size
        items = self._labels_per_row(inputs)
        rows = self._rows_of_trial(len(items))
        return Seen(loss, None if rows is None else rows.double().cpu().numpy(), items.cpu().numpy())

    @property
    def _own_model(self) -> nn.Module:
        assert self.model is not None, "the Trainer has made its model"  # noqa: S101
        return self.model

    @property
    def _unwrapped_model(self) -> nn.Module:
        """The model, not wrapped for distributed training."""
        model: nn.Module = self.accelerator.unwrap_model(self.model_wrapped, keep_torch_compile=False)
        return model

    def _name_of_loss(self, kind: int) -> str:
        """Names a loss, for messages."""
        function: Any = self.streams[kind].compute_loss_func if self._losses_differ else None
        if (function := function or self.compute_loss_func) is not None:
            name = getattr(function, "__qualname__", type(function).__qualname__)
        elif not _is_known(type(self).compute_loss):
            name = f"{type(self).__name__}.compute_loss"
        else:
            name = f"the loss of {type(inner_model(self._own_model)).__name__}"
        return f"{name} (stream {self.streams[kind].name!r})" if self._losses_differ else name

    def _factor(self, stream_id: int) -> float:
        """Returns the factor on the loss of a stream's samples; only other than 1 in micro-batches of one stream."""
        return factor_of(self._loss_factors, stream_id)

    @property
    def _loss_factors(self) -> FloatArray | None:
        """`[num_streams]`: factors on the streams' losses in the present step, or `None`."""
        counting, weights = self._item_factors, self._plan.loss_weights
        return weights if counting is None else counting if weights is None else counting * weights

    @property
    def _item_factors(self) -> FloatArray | None:
        """`[num_streams]`: the weight of an item in the present step's loss; `None` if all are 1."""
        return samples_per_item(self._plan.counts, self._step_counts.items) if self._losses_differ else None

    @property
    def _tracker(self) -> RowLossReader:
        assert self._row_losses is not None, "the tracker is attached before the first forward"  # noqa: S101
        return self._row_losses

    def _detach_tracker(self) -> None:
        if self._row_losses is not None:
            self._row_losses.detach()
            self._row_losses = None


@contextlib.contextmanager
def attributes_held(owner: object, **values: Any) -> Iterator[None]:
    """Sets attributes of an object temporarily."""
    before = {name: getattr(owner, name) for name in values}
    vars(owner).update(values)
    try:
        yield
    finally:
        vars(owner).update(before)


def factor_of(factors: FloatArray | None, stream_id: int) -> float:
    """Returns a stream's factor; 1 if there are none."""
    return 1.0 if factors is None else float(factors[stream_id])


def _is_known(compute_loss: Any) -> bool:
    """Whether a `compute_loss` returns the model's loss, with or without an auxiliary one."""
    known = ("trl.trainer.sft_trainer", "mixer.trainer.adaptive_batch_size")
    return compute_loss is Trainer.compute_loss or getattr(compute_loss, "__module__", "") in known
