"""How the losses of streams are computed and normalised, and how many items they have."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import Trainer

from mixer.loading.collate import batch_mapping
from mixer.loading.errors import batch_norm_reason, name_rows, unfit_rows
from mixer.loading.loaded_step import MicroBatch
from mixer.losses.normalization import DECLARED, HALF_TOLERANCE, TOLERANCE, LossNormalization, samples_per_item
from mixer.mixture.stream import Stream
from mixer.models.inputs import inner_model
from mixer.models.labels import shifts_labels
from mixer.models.row_losses import RowlessTracker, RowLossReader, hides_rows, items_per_row, num_rows
from mixer.run.hf_compat import loss_shifts_labels
from mixer.run.plan import RunPlan
from mixer.run.replaced_methods import replaced
from mixer.run.state import PresentStep
from mixer.utils.arrays import FloatArray
from mixer.utils.user_code import definitions, is_user_code, module_of
from mixer.utils.validation import refusing_damage

_SFT = "trl.trainer.sft_trainer"
_HALF = (torch.float16, torch.bfloat16)


class StreamLosses:
    """Knows the loss of each stream: the function, its normalisation, and the weight of an item.

    Args:
        trainer: The trainer, which computes losses.
        step: The present step.
        plan: The plan of the run; `None` for a trainer without streams.
    """

    def __init__(self, trainer: Trainer, step: PresentStep, plan: RunPlan | None = None):
        self._trainer, self._step, self._plan = trainer, step, plan
        self._streams: Sequence[Stream] = () if plan is None else plan.streams
        self.differ = plan is not None and plan.have_losses  # whether streams have losses or heads of their own
        declared = None if plan is None else plan.config.loss_reduction
        self.declared = None if declared is None else DECLARED[declared]  # the kind of loss that the user says it is
        self.normalizations: dict[int, LossNormalization] = {}  # by stream if losses differ, else under 0
        self._hides_rows = hides_rows(trainer.args)
        self._reader: RowLossReader | None = None
        self._shifts_labels: bool | None = None
        self._unwrapped: tuple[Any, nn.Module] | None = None  # the model of the Trainer, and what is in it

    # ---- The model, and who computes a loss ----

    @property
    def own_model(self) -> nn.Module:
        """The model as the user passed it."""
        model: nn.Module | None = self._trainer.model
        assert model is not None, "the Trainer has made its model"  # noqa: S101
        return model

    @property
    def unwrapped_model(self) -> nn.Module:
        """The model, not wrapped for distributed training."""
        wrapped = self._trainer.model_wrapped
        if self._unwrapped is None or self._unwrapped[0] is not wrapped:  # accelerate takes milliseconds for it
            own = self._trainer.accelerator.unwrap_model(wrapped, keep_torch_compile=False)
            self._unwrapped = wrapped, own
        return self._unwrapped[1]

    @property
    def sum_dtype(self) -> torch.dtype:
        """The type in which losses are added up."""
        return torch.float32 if self._trainer.args.device.type == "mps" else torch.float64

    @property
    def shifts_labels(self) -> bool:
        """Whether the first label of a row is no loss term; the Trainer does not know it for every model."""
        if self._shifts_labels is None:
            self._shifts_labels = shifts_labels(self._trainer.model, loss_shifts_labels(self._trainer))
        return self._shifts_labels

    def count_other_labels(self) -> None:
        """Counts the first label of each row from now on, or stops counting it."""
        self._shifts_labels = not self.shifts_labels
        self.reader.shifts_labels = self._shifts_labels

    @property
    def user_computes_loss(self) -> bool:
        """Whether the user computes the loss, not the model or a known trainer."""
        return computes_loss(self._trainer)

    def _is_of_library(self, method: str) -> bool:
        """Whether a method is that of a known trainer, which leaves labels as they are."""
        return not any(map(is_user_code, definitions(self._trainer, method)))

    def user_computes_loss_of(self, stream_id: int) -> bool:
        """Whether the user computes the loss of a stream, not the model."""
        return computes_loss(self._trainer, self._streams[stream_id])

    def own_function(self, stream_id: int) -> Callable[..., Any] | None:
        """Returns the loss function of a stream, if it has its own."""
        return self._streams[stream_id].compute_loss_func

    def function_of(self, stream_id: int) -> contextlib.AbstractContextManager[None]:
        """Temporarily uses the loss function of a stream, if it has its own."""
        own = self.own_function(stream_id)
        return contextlib.nullcontext() if own is None else replaced(self._trainer, compute_loss_func=own)

    def name(self, kind: int) -> str:
        """Names a loss, for messages."""
        trainer = self._trainer
        function: Any = self._streams[kind].compute_loss_func if self.differ else None
        if (function := function or trainer.compute_loss_func) is not None:
            name = getattr(function, "__qualname__", type(function).__qualname__)
        elif not _is_known(trainer.compute_loss):
            name = f"{type(trainer).__name__}.compute_loss"
        else:
            name = f"the loss of {type(inner_model(self.own_model)).__name__}"
        return f"{name} (stream {self._streams[kind].name!r})" if self.differ else name

    def name_streams(self, error: Exception, micro: MicroBatch) -> None:
        """Adds the streams and samples of a micro-batch to its error."""
        names = [self._streams[stream_id].name for stream_id in np.unique(micro.stream_ids).tolist()]
        error.add_note(f"In a micro-batch with samples of the streams {names}.")
        if micro.indices is not None:
            error.add_note(f"The samples: {name_rows(self._streams, micro.stream_ids, micro.indices)}.")
        reasons = batch_norm_reason(error, micro)
        with contextlib.suppress(RuntimeError):  # after a failed assertion nothing can be read from a GPU
            reasons += unfit_rows(self.unwrapped_model, self._streams, micro)
        for reason in reasons:
            error.add_note(reason)

    # ---- Normalisation ----

    def begin_run(self) -> None:
        """Begins a run, which has yet to find out how losses are normalised, unless that is declared."""
        self.normalizations.clear()
        self.stop_reading()
        if self.declared is not None:
            kinds = range(len(self._streams)) if self.differ else [0]
            self.normalizations |= {kind: self.normalization_of(kind) for kind in kinds}

    def state_dict(self) -> dict[str, Any]:
        """Returns what the run has found out of its losses as plain data."""
        kinds = {str(kind): [self.name(kind), asdict(known)] for kind, known in self.normalizations.items()}
        return {"kinds": kinds, "shifts_labels": self.shifts_labels}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores what an earlier part of the run has found out of the losses that it still has."""
        with refusing_damage("what the losses are divided by"):
            saved = {
                int(kind): (name, LossNormalization.from_state(own)) for kind, (name, own) in state["kinds"].items()
            }
            shifts_labels = bool(state["shifts_labels"])
        are_equal = all(kind < len(self._streams) and self.name(kind) == name for kind, (name, _) in saved.items())
        if self.declared is None and are_equal:
            self.normalizations |= {kind: known for kind, (_, known) in saved.items()}
            self._shifts_labels = shifts_labels

    @property
    def shows_rows(self) -> bool:
        """Whether losses are those of their rows, as far as is known."""
        for known in self.normalizations.values():
            if not known.rows_known:
                return False
        return not self._hides_rows

    def is_taken_as_divided(self, stream_id: int) -> bool:
        """Whether the Trainer takes a loss for one that is divided by `num_items_in_batch`.

        SFTTrainer divides its loss by every number that it is given, also for models that take none, as Qwen2.5-VL.
        """
        trainer: Any = self._trainer
        own = self._streams[stream_id].compute_loss_func if self._streams else None
        is_sft = any(module_of(code) == _SFT for code in definitions(trainer, "compute_loss"))
        return bool(is_sft or trainer.model_accepts_loss_kwargs or trainer.compute_loss_func or own)

    def may_be_divided(self, stream_id: int) -> bool:
        """Whether the Trainer gives a loss `num_items_in_batch`: label smoothing gets it whatever the model takes."""
        smoother: Any = getattr(self._trainer, "label_smoother", None)
        return smoother is not None or self.is_taken_as_divided(stream_id)

    def is_scaled(self, stream_id: int) -> bool:
        """Whether the Trainer multiplies a loss by the number of ranks if it is given `num_items_in_batch`."""
        return self.is_computed_by_trainer and self.is_taken_as_divided(stream_id)

    @property
    def is_computed_by_trainer(self) -> bool:
        """Whether `compute_loss` is that of a known trainer."""
        return _is_known(self._trainer.compute_loss)

    def kind(self, stream_id: int) -> int:
        """Returns the key of a stream's loss normalisation."""
        return stream_id if self.differ else 0

    def normalization_of(self, stream_id: int) -> LossNormalization:
        """Returns how a stream's loss is normalised.

        A loss of unknown kind so far, because no forward has shown it or it is 0 or not finite, counts as a mean.
        """
        known = self.normalizations.get(stream_id if self.differ else 0)
        if known is None:
            is_seen = self.declared is not None or not self.user_computes_loss_of(stream_id)
            rows_known = is_seen and not self._hides_rows
            known = LossNormalization(self.declared or "item mean", self.is_scaled(stream_id), rows_known)
        return known

    @property
    def tolerance(self) -> float:
        """Largest relative error of a loss predicted from its rows or parts."""
        is_half = any(parameter.dtype in _HALF for parameter in self._trainer.model_wrapped.parameters())
        return HALF_TOLERANCE if is_half else TOLERANCE

    @property
    def num_items_in_batch(self) -> int:
        """Items of the present step as the Trainer counts them, so that the gradient is the Trainer's."""
        return self._step.num_items + self._step.counts.num_first

    @property
    def divisor_of_sum(self) -> int:
        """The divisor of the sum over the present step's items: one of the two counts, or 1.

        If losses differ, a stream counts by its samples, so a sum becomes a mean.
        """
        normalization = self.normalization_of(0)
        if normalization.counts_items:
            return self.num_items_in_batch
        return 1 if normalization.is_plain_sum and not self.differ else self._step.num_items

    @property
    def factors(self) -> FloatArray | None:
        """`[num_streams]`: factors on the streams' losses in the present step; `None` if all are 1."""
        counting, weights = self.item_factors, self._step.present_plan.loss_weights
        return weights if counting is None else counting if weights is None else counting * weights

    @property
    def item_factors(self) -> FloatArray | None:
        """`[num_streams]`: the weight of an item in the present step's loss; `None` if all are 1."""
        return samples_per_item(self._step.present_plan.counts, self._step.counts.items) if self.differ else None

    # ---- Items and rows ----

    def items_per_row(self, micro: MicroBatch) -> Tensor:
        """Counts the loss terms in each row of a micro-batch: int64 `[num_rows]`."""
        inputs, stream_ids = batch_mapping(micro.inputs), micro.stream_ids
        if self.normalization_of(micro.first_stream).counts_rows:
            return torch.ones(num_rows(inputs) or len(stream_ids), dtype=torch.int64)
        rows = self.labels_per_row(inputs)
        return rows if len(rows) else torch.ones(len(stream_ids), dtype=torch.int64)  # texts, say, are no tensors

    def labels_per_row(self, inputs: Mapping[str, Any]) -> Tensor:
        """Counts the labels in each row that are loss terms: int64 `[num_rows]`."""
        return items_per_row(inputs, self.shifts_labels)

    def num_first_labels(self, micro: MicroBatch, per_row: Tensor) -> int:
        """Counts the labels that the Trainer counts although they are no loss terms."""
        counts_alike = loss_shifts_labels(self._trainer) == self.shifts_labels
        if counts_alike or self.differ or self.normalization_of(0).counts_rows:
            return 0
        counted = items_per_row(batch_mapping(micro.inputs), loss_shifts_labels(self._trainer))
        return int(counted.sum()) - int(per_row.sum())

    def take_row_losses(self, micro: MicroBatch) -> Tensor | None:
        """Returns the rows' losses of a micro-batch's forward, once: their contributions to its loss."""
        rows, normalization = self.reader.take_row_losses(), self.normalization_of(micro.first_stream)
        if rows is None or not normalization.has_row_means:
            return rows
        labels = self.labels_per_row(batch_mapping(micro.inputs))
        return rows / labels.to(rows.device, non_blocking=True).clamp(min=1)

    # ---- The reader of row losses ----

    @property
    def reader(self) -> RowLossReader:
        """Reads the rows' losses from the forwards of a run."""
        assert self._reader is not None, "the reader is attached before the first forward"  # noqa: S101
        return self._reader

    def start_reading(self) -> None:
        """Attaches the reader to the model, if it is not attached yet."""
        if self._reader is None:
            keeps_outputs = self._plan is not None and self._plan.keeps_outputs
            wraps = not self._trainer.args.torch_compile
            self._reader = self.new_reader(self.unwrapped_model, wraps, keeps_outputs)
            self._reader.attach()

    def stop_listening(self) -> None:
        """Stops waiting for a forward that failed."""
        if self._reader is not None:
            self._reader.take_row_losses()

    def stop_reading(self) -> None:
        """Detaches the reader."""
        if self._reader is not None:
            self._reader.detach()
            self._reader = None

    def new_reader(self, model: nn.Module, wraps: bool = True, keeps_output: bool = False) -> RowLossReader:
        """Makes a reader of row losses for a model that computes the same loss.

        Args:
            model: The model.
            wraps: Whether its forward may be wrapped.
            keeps_output: Whether the reader keeps the model's output.
        """
        args = self._trainer.args
        is_librarys = all(map(self._is_of_library, ("training_step", "_prepare_inputs")))
        kind = RowlessTracker if hides_rows(args) else RowLossReader
        return kind(
            model,
            self.shifts_labels,
            args.label_smoothing_factor,
            wraps,
            keeps_output,
            weighs_by_probability=getattr(args, "loss_type", None) == "dft",
            trusts_labels=is_librarys and not self.user_computes_loss,
        )


def computes_loss(trainer: Trainer, stream: Stream | None = None) -> bool:
    """Whether the user computes the loss, of a stream if one is given, not the model or a known trainer."""
    is_of_stream = stream is not None and stream.compute_loss_func is not None
    return is_of_stream or trainer.compute_loss_func is not None or not _is_known(trainer.compute_loss)


def factor_of(factors: FloatArray | None, stream_id: int) -> float:
    """Returns a stream's factor; 1 if there are none."""
    return 1.0 if factors is None else float(factors[stream_id])


def _is_known(compute_loss: Any) -> bool:
    """Whether a `compute_loss` returns the model's loss, with or without an auxiliary one."""
    known = (_SFT, "mixer.trainer.adaptive_batch_size")
    return getattr(compute_loss, "__func__", None) is Trainer.compute_loss or module_of(compute_loss) in known
