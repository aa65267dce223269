"""The training of one micro-batch: the Trainer's own training step, with its loss weighted in the backward."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from accelerate.utils import send_to_device
from torch import Tensor, nn
from transformers import Trainer

from mixer.trainer.losses import StreamLosses, factor_of
from mixer.utils.attributes import MethodReplaced

if TYPE_CHECKING:
    from mixer.loading.step import MicroBatch
    from mixer.trainer.run import Run

_PLACE_OF_COUNT = 4  # arguments of `compute_loss(model, inputs, return_outputs, num_items_in_batch)`
_HALF = (torch.float16, torch.bfloat16)

TrainingStep = Callable[..., Tensor]
Term = Callable[[Tensor], Tensor]


class MicroBatchTraining:
    """Trains micro-batches so that their gradients add up to that of the whole step.

    The Trainer's `training_step`, or a user's, computes the loss of a micro-batch as if it was the whole batch, and
    passes it to `accelerator.backward`. There, and nowhere else, the loss is divided: a mean over the items of the
    micro-batch by their share of the step's items, a sum by the number of items; and by the number of ranks, whose
    gradients are averaged. Then the methods' terms are added.

    Args:
        trainer: The trainer.
        run: The run.
        losses: The losses of the streams.
    """

    def __init__(self, trainer: Trainer, run: Run, losses: StreamLosses):
        self._trainer, self._run, self._losses = trainer, run, losses
        self.last_loss = torch.zeros(())  # of the last micro-batch with items, before weights
        self.num_unlike = torch.zeros(())  # micro-batches of the step whose rows do not explain their loss
        self.last_rows: Tensor | None = None  # `[num_rows]`: sums of the last micro-batch's loss terms
        self._has_gone_backward = False
        self._divisor, self._factor = 1.0, 1.0  # of the present micro-batch's loss

    def begin(self, step: TrainingStep) -> None:
        """Begins a run.

        Args:
            step: The training step of the trainer's class.
        """
        self.step = step
        # One that the user wrote may leave out the number of items, or compute the loss by itself.
        self._tolerance = self._losses.tolerance
        self._is_users = getattr(step, "__module__", "").partition(".")[0] not in ("transformers", "trl")

    def train(
        self,
        model: nn.Module,
        micro: MicroBatch,
        num_items: Tensor | int | None,
        own_items: int,
        weight: float,
        add_terms: Term | None,
        sums: Tensor,
    ) -> Tensor:
        """Runs the forward and backward of a micro-batch and adds the streams' losses to `sums`.

        Args:
            model: The model as it is trained.
            micro: The micro-batch.
            num_items: Number of items in the step, as the Trainer counts them.
            own_items: Items of the micro-batch.
            weight: Factor of the methods on its loss.
            add_terms: Adds the methods' terms to a loss, if there are any.
            sums: `[num_streams + 1]`: see `StepResult.loss_sums`.

        Returns:
            A scalar: the share of the micro-batch in the step's loss, before loss weights.
        """
        losses, world_size = self._losses, self._trainer.args.world_size
        first, total = micro.first_stream, self._losses.divisor_of_sum
        normalization, counting = losses.normalization_of(first), factor_of(losses.item_factors, first)
        self._divisor = normalization.divisor(total, own_items, world_size)
        self._factor = weight * factor_of(losses.factors, first) if own_items else 0.0
        losses.reader.listen(micro.inputs)
        with losses.function_of(first), losses.naming_streams(micro):
            if not self._is_users or not normalization.counts_items:
                loss = self._run_step(model, micro, num_items if normalization.counts_items else None, add_terms)
            else:
                mean = replace(normalization, counts_items=False, kind="item mean")
                with self._counting(num_items, mean.divisor(total, own_items, world_size)):
                    loss = self._run_step(model, micro, num_items, add_terms)
        self.last_rows = losses.row_terms(micro)
        if not own_items:
            return torch.zeros_like(loss)
        per_item = counting * world_size / total
        loss = self._add_losses(sums, micro, _divided(loss, self._divisor / counting), per_item)
        self.last_loss, share = loss, total / self._run.step.num_items
        sums[-1].add_(_divided(loss if share == 1.0 else loss * share, world_size))
        return loss

    @contextlib.contextmanager
    def _counting(self, num_items: Tensor | int | None, divisor_of_mean: float) -> Iterator[None]:
        """Tells a user's step the number of items where it leaves this out, as a loss that counts items needs it.

        A step that does not call `compute_loss` at all gets the mean that models compute without the number.
        """
        compute_loss, divisor = self._trainer.compute_loss, self._divisor
        self._divisor = divisor_of_mean

        def counting(*args: Any, **kwargs: Any) -> Any:
            self._divisor = divisor
            if len(args) < _PLACE_OF_COUNT and kwargs.get("num_items_in_batch") is None:
                kwargs["num_items_in_batch"] = num_items
            return compute_loss(*args, **kwargs)

        with MethodReplaced(self._trainer, "compute_loss", counting):
            yield

    def loss_sum_to_check(self, micro: MicroBatch) -> Tensor | None:
        """Returns the sum of the last micro-batch's item losses by its loss, unless rows are known to be its terms."""
        first = micro.first_stream
        if self._losses.normalization_of(first).rows_known:
            return None
        counting = factor_of(self._losses.item_factors, first)
        loss_sum: Tensor = self.last_loss * (self._losses.divisor_of_sum / (counting * self._trainer.args.world_size))
        return loss_sum

    def _inputs(self, micro: MicroBatch) -> Any:
        """Returns inputs that a training step may change."""
        args: Any = self._trainer.args
        inputs = copy.copy(micro.inputs) if isinstance(micro.inputs, Mapping) else micro.inputs
        if args.accelerator_config.non_blocking:  # as in the Trainer's own loader
            inputs = send_to_device(inputs, args.device, non_blocking=True)
        return inputs

    def _run_step(
        self, model: nn.Module, micro: MicroBatch, num_items: Tensor | int | None, add_terms: Term | None
    ) -> Tensor:
        """Runs the training step; its backward gets the loss divided, and once with the methods' terms."""
        accelerator = self._trainer.accelerator
        backward, self._has_gone_backward = accelerator.backward, False

        def weighted(loss: Tensor, *args: Any, **kwargs: Any) -> Any:
            is_first, self._has_gone_backward = not self._has_gone_backward, True
            loss = _divided(loss, self._divisor / self._factor if self._factor else float("inf"))
            return backward(loss if add_terms is None or not is_first else add_terms(loss), *args, **kwargs)

        with MethodReplaced(accelerator, "backward", weighted):
            return self.step(model, self._inputs(micro), num_items).detach()

    def check_backward(self, model: nn.Module) -> None:
        """Refuses a training step with a backward of its own, after the first micro-batch of a step.

        Raises:
            TypeError: With the call to use.
        """
        if self._has_gone_backward:
            return
        is_hidden = getattr(self._trainer, "is_deepspeed_enabled", False)  # it keeps gradients elsewhere
        if not is_hidden and all(parameter.grad is None for parameter in model.parameters()):
            return
        raise TypeError(
            f"{type(self._trainer).__name__}.training_step has computed a gradient without "
            "self.accelerator.backward(loss), where the loss is weighted by the micro-batch's share of the step. Call "
            "that instead of loss.backward()."
        )

    def _add_losses(self, sums: Tensor, micro: MicroBatch, loss: Tensor, per_item: float) -> Tensor:
        """Adds the streams' losses to `sums`; returns the loss of the micro-batch, without rounding if rows show it.

        Args:
            sums: `[num_streams + 1]`: the sums of the step.
            micro: The micro-batch.
            loss: Its loss, without loss weights.
            per_item: Weight of an item in that loss.
        """
        losses, rows, first = self._losses, self.last_rows, micro.first_stream
        ids = torch.from_numpy(micro.stream_ids).to(sums.device, non_blocking=True)
        is_single = bool((micro.stream_ids == first).all())
        are_rows = losses.normalization_of(first).rows_known and rows is not None and len(rows) == len(ids)
        if are_rows and rows is not None:
            self.num_unlike += (loss - rows.sum() * per_item).abs() > self._tolerance * loss.abs()
        if are_rows and rows is not None and not (is_single and losses.is_users_for(first)):
            sums[:-1].index_add_(0, ids, rows.to(sums.dtype))
            return loss if loss.dtype not in _HALF else _unrounded(loss, rows.sum() * per_item)
        # A loss of several streams whose rows cannot be separated belongs to none of them. If its kind is still
        # unknown, it is 0 or not finite.
        is_unknown = (
            not losses.is_known(first) or self._run.present_loader.in_turns or self._run.step.counts.mixed_up[1]
        )
        sums[ids] += loss * (1 / per_item if is_single else 0.0 if is_unknown else float("nan"))
        return loss


def _divided(loss: Tensor, divisor: float) -> Tensor:
    """Divides a loss, but for the usual divisor 1: each operation costs some microseconds, and more in the backward."""
    return loss if divisor == 1.0 else loss / divisor


def _unrounded(loss: Tensor, of_rows: Tensor) -> Tensor:
    """Returns a loss in half precision (FSDP rounds the model's output) from its rows, if only rounding differs."""
    is_rounded = (loss - of_rows).abs() <= 4 * torch.finfo(loss.dtype).eps * of_rows.abs()
    return torch.where(is_rounded, of_rows, loss.to(of_rows.dtype))
