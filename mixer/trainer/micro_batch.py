"""The training of one micro-batch: what the Trainer's training step does, with the loss weighted in the backward."""

import contextlib
import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from accelerate.utils import DistributedType, send_to_device
from accelerate.utils.memory import clear_device_cache
from torch import Tensor, nn
from transformers import Trainer

from mixer.loading.loaded_step import MicroBatch
from mixer.losses.stream_losses import StreamLosses, factor_of
from mixer.run.hf_compat import prepare_inputs
from mixer.run.hooks import ForwardResult
from mixer.run.state import Run
from mixer.trainer.loss_kinds import LossKinds
from mixer.trainer.methods import MethodList
from mixer.trainer.own_step import OwnStep
from mixer.utils.errors import InvalidTypeError

_HALF = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class MicroBatchResult:
    """A micro-batch after its backward.

    Args:
        loss: A scalar: the share of the micro-batch in the step's loss, before loss weights.
        row_losses: `[num_rows]`: the sum of each row's loss terms; `None` if rows cannot be separated.
        sums: `[num_streams + 2]`: the share in `StepResult.loss_sums`, and 1 if the rows do not explain the loss.
    """

    loss: Tensor
    row_losses: Tensor | None
    sums: Tensor


class MicroBatchTraining:
    """Trains micro-batches so that their gradients add up to that of the whole step.

    The loss of a micro-batch is computed as if it was the whole batch. In the backward, and nowhere else, it is
    divided: a mean over the items of the micro-batch by their share of the step's items, a sum by the number of items;
    and by the number of ranks, whose gradients are averaged. Then the methods' terms are added.

    Args:
        trainer: The trainer.
        run: The run.
        losses: The losses of the streams.
        kinds: Finds out how they are normalised.
        methods: The methods of the run.
    """

    def __init__(self, trainer: Trainer, run: Run, losses: StreamLosses, kinds: LossKinds, methods: MethodList):
        self._trainer, self._run, self._losses, self._kinds = trainer, run, losses, kinds
        self._methods = methods
        self._num_streams = len(run.mixing.names)

    def begin_run(self, own_step: OwnStep | None) -> None:
        """Begins a run.

        Args:
            own_step: A training step that `step` does not know; `None` if there is none.
        """
        args: Any = self._trainer.args
        self._own_step, self._tolerance, self._sum_dtype = own_step, self._losses.tolerance, self._losses.sum_dtype
        self._world_size, self._device = args.world_size, args.device
        self._is_non_blocking = args.accelerator_config.non_blocking
        is_deepspeed = self._trainer.accelerator.distributed_type == DistributedType.DEEPSPEED
        self._options = {"scale_wrt_gas": False} if is_deepspeed else {}
        self._offloading = vars(self._trainer).get("maybe_activation_offload_context", contextlib.nullcontext())

    def train(
        self,
        model: nn.Module,
        micro: MicroBatch,
        number: int,
        num_items: Tensor | int | None,
        trained: ForwardResult | None = None,
    ) -> MicroBatchResult:
        """Runs the forward and backward of a micro-batch.

        Args:
            model: The model as it is trained.
            micro: The micro-batch.
            number: Its number in the step.
            num_items: Number of items in the step, as the Trainer counts them.
            trained: The micro-batch as hooks see it; `None` if there are none.
        """
        losses, first = self._losses, micro.first_stream
        losses.reader.listen(micro.inputs, self._kinds.is_asked(micro))
        weigh = partial(self._weighted, micro, number, trained)
        # What is declared to be divided by no number of items gets none, and the Trainer does not scale it then.
        num_items = None if losses.declared in ("item mean", "sum") else num_items
        with self._kinds.listening(micro):
            try:
                if self._own_step is None:
                    is_given = num_items is not None
                    loss = self.step(model, self._inputs(micro), num_items, partial(weigh, is_given))
                else:
                    loss, is_given = self._own_step.run(model, self._inputs(micro), num_items, weigh)
            except Exception as error:
                losses.name_streams(error, micro)
                raise
        rows, own_items = losses.take_row_losses(micro), self._run.step.micro_items[number]
        sums = torch.zeros(self._num_streams + 2, dtype=self._sum_dtype, device=self._device)
        if not own_items:
            return MicroBatchResult(torch.zeros_like(loss), rows, sums)
        total, counting = losses.divisor_of_sum, factor_of(losses.item_factors, first)
        per_item = counting * self._world_size / total
        divisor = losses.normalization_of(first).divisor(total, own_items, self._world_size, is_given)
        loss = _divided(loss.reshape(()), divisor / counting)
        loss = self._add_losses(sums, micro, loss, rows, per_item)
        share = total / self._run.step.num_items
        sums[-2].add_(_divided(loss if share == 1.0 else loss * share, self._world_size))
        return MicroBatchResult(loss, rows, sums)

    def _weighted(
        self,
        micro: MicroBatch,
        number: int,
        trained: ForwardResult | None,
        is_given: bool,
        loss: Tensor,
        is_first: bool = True,
    ) -> Tensor:
        """Weights a loss for its backward; the first of a micro-batch gets the methods' terms.

        Args:
            micro: The micro-batch.
            number: Its number in the step.
            trained: See `train`.
            is_given: Whether the loss was given the number of items.
            loss: The loss.
            is_first: Whether it is the first of the micro-batch.
        """
        first, step, losses = micro.first_stream, self._run.step, self._losses
        loss = as_scalar(loss, micro, self._run.mixing.names)
        if is_first:  # after which items may be counted in another way
            self._kinds.look(micro, loss, step.micro_items[number] > 0, is_given)
        factor = 0.0
        if own_items := step.micro_items[number]:
            factor = factor_of(losses.factors, first)
            if trained is not None:
                factor *= self._methods.factor(first)
        divisor = float("inf")
        if factor:
            total, normalization = losses.divisor_of_sum, losses.normalization_of(first)
            divisor = normalization.divisor(total, own_items, self._world_size, is_given) / factor
        loss = _divided(loss, divisor)
        if trained is not None and is_first and len(self._methods):
            return self._methods.add_terms(trained, losses.reader.output, loss)
        return loss

    def step(
        self, model: nn.Module, inputs: Any, num_items: Tensor | int | None, weigh: Callable[..., Tensor]
    ) -> Tensor:
        """Computes a loss and its gradient, as `Trainer.training_step` and those of TRL's trainers do to the bit.

        What these do for several GPUs of one process, for context parallelism and for gradient accumulation has no
        place here: the first two are refused, and the loop counts one micro-batch a step.
        """
        trainer: Any = self._trainer
        interval_steps = trainer.args.torch_empty_cache_steps
        with self._offloading:
            model.train()
            if callable(train := getattr(trainer.optimizer, "train", None)):
                train()
            inputs = prepare_inputs(trainer, inputs)
            with trainer.compute_loss_context_manager():
                loss: Tensor = trainer.compute_loss(model, inputs, num_items_in_batch=num_items)
            del inputs
            if interval_steps is not None and trainer.state.global_step % interval_steps == 0:
                clear_device_cache()
                if torch.backends.mps.is_available() and hasattr(torch.mps, "clear_graph_cache"):
                    torch.mps.clear_graph_cache()
            trainer.accelerator.backward(weigh(loss), **self._options)
            return loss.detach()

    def _inputs(self, micro: MicroBatch) -> Any:
        """Returns inputs that a training step may change."""
        inputs = copy.copy(micro.inputs) if isinstance(micro.inputs, dict | Mapping) else micro.inputs
        if self._is_non_blocking:  # as in the Trainer's own loader
            inputs = send_to_device(inputs, self._device, non_blocking=True)
        return inputs

    def _add_losses(
        self, sums: Tensor, micro: MicroBatch, loss: Tensor, rows: Tensor | None, per_item: float
    ) -> Tensor:
        """Adds the streams' losses to `sums`; returns the loss of the micro-batch, without rounding if rows show it.

        Args:
            sums: `[num_streams + 2]`: see `MicroBatchResult`.
            micro: The micro-batch.
            loss: Its loss, without loss weights.
            rows: Its row losses.
            per_item: Weight of an item in that loss.
        """
        losses, first = self._losses, micro.first_stream
        ids = torch.from_numpy(micro.stream_ids).to(sums.device, non_blocking=True)
        is_single = bool((micro.stream_ids == first).all())
        if rows is not None and losses.normalization_of(first).rows_known and rows.shape[0] == len(micro.stream_ids):
            sums[-1] = (loss - rows.sum() * per_item).abs() > self._tolerance * loss.abs()
            if not (is_single and losses.user_computes_loss_of(first)):
                sums[:-2].index_add_(0, ids, rows.to(sums.dtype))
                return loss if loss.dtype not in _HALF else _unrounded(loss, rows.sum() * per_item)
        # A loss of several streams whose rows cannot be separated belongs to none of them, unless it is not finite.
        # Once a stream, however many of its rows there are: an assignment by index takes repeated ids once.
        sums[ids] += loss * (1 / per_item if is_single else 0.0)
        return loss


def as_scalar(loss: Any, micro: MicroBatch, names: Sequence[str]) -> Tensor:
    """Returns a loss of one element as a scalar, as torch takes it; torch's own errors of others do not name them.

    Args:
        loss: What the model, the trainer or a loss function has returned.
        micro: The micro-batch.
        names: Names of the streams.

    Raises:
        InvalidTypeError: Unless it is a tensor with one floating-point number.
    """
    if isinstance(loss, Tensor) and loss.numel() == 1 and loss.is_floating_point():
        return loss.reshape(())
    found = f"shape {list(loss.shape)} of {loss.dtype}" if isinstance(loss, Tensor) else repr(loss)
    is_single = len(names) > 1 and bool((micro.stream_ids == micro.first_stream).all())
    stream = names[micro.first_stream] if is_single else None
    expected = "a tensor with one floating-point number"
    hint = "Return the mean of the losses, as loss.mean() gives it."
    raise InvalidTypeError(option="loss", stream=stream, expected=expected, found=found, hint=hint)


def _divided(loss: Tensor, divisor: float) -> Tensor:
    """Divides a loss, but for the usual divisor 1: each operation costs some microseconds, and more in the backward."""
    return loss if divisor == 1.0 else loss / divisor


def _unrounded(loss: Tensor, of_rows: Tensor) -> Tensor:
    """Returns a loss in half precision (FSDP rounds the model's output) from its rows, if only rounding differs."""
    is_rounded = (loss - of_rows).abs() <= 4 * torch.finfo(loss.dtype).eps * of_rows.abs()
    return torch.where(is_rounded, of_rows, loss.to(of_rows.dtype))
