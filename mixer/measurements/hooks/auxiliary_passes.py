"""Running the model outside of training: losses and gradients of samples that are not trained on."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from accelerate.utils import DistributedType, send_to_device
from accelerate.utils.memory import clear_device_cache
from torch import Tensor, nn
from transformers.utils import logging

from mixer.distributed.gradient_sync import (
    average_gradients,
    average_whole,
    finish_forward_sync,
    obstacle,
    own_part,
    reshard,
)
from mixer.distributed.sharded_forward import ForwardGuard
from mixer.gradients.per_source import product
from mixer.loading.batching import MicroBatchCap, Size
from mixer.loading.collate import Columns
from mixer.loading.loaded_step import MicroBatch, StepBatch
from mixer.losses.stream_losses import StreamLosses
from mixer.mixture.step_plan import StepPlan, StreamShare
from mixer.models.side_state import checkpointing_kept, gradients_stashed, model_restored
from mixer.run.hf_compat import collator_removing_columns, prepare_inputs
from mixer.run.samples import StreamSamples
from mixer.run.state import Basis
from mixer.run.trl_metrics import metrics_restored
from mixer.utils.arrays import FloatArray, Int64Array
from mixer.utils.device import is_out_of_memory
from mixer.utils.errors import wrong_value

logger = logging.get_logger(__name__)
Result = TypeVar("Result")
_PARTS = 4  # whose differences tell the error of a mean
_Attempt = tuple[list[Any] | None, Size]


class MeasurementMemoryError(Exception):
    """A measurement does not fit into memory, however small its micro-batches are; raised on all ranks together."""


class AuxiliaryPasses:
    """Runs the model of a trainer on samples outside of its steps; gradients, modes and random numbers stay unchanged.

    All ranks have to make the same calls.

    Args:
        basis: The trainer, the plan of the run, the run and its ranks.
        losses: The losses of the streams.
        samples: Collates samples.
    """

    def __init__(self, basis: Basis, losses: StreamLosses, samples: StreamSamples):
        self.trainer, self.plan, self.run, self.ranks = basis
        self.losses, self._samples = losses, samples
        self._halved: dict[MicroBatchCap, MicroBatchCap] = {}  # what fits, by the cap of steps
        self._guard: ForwardGuard | None = None

    @property
    def model(self) -> nn.Module:
        """The model, not wrapped for distributed training."""
        return self.losses.unwrapped_model

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The trainable parameters, in order."""
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    @property
    def items_by_stream(self) -> Int64Array:
        """int64 `[num_streams]`: loss terms in the present step, over all ranks."""
        return self.run.step.counts.items

    @property
    def num_skipped(self) -> int:
        """Number of the present step's samples that could not be loaded, over all ranks."""
        skipped = self.run.step.counts.skipped
        return 0 if skipped is None else int(skipped.sum())

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next optimizer step, of the first parameter group."""
        return float(self.optimizer.param_groups[0]["lr"])

    @property
    def shifts_labels(self) -> bool:
        """Whether the model predicts the next token, so that a row's first label is no loss term."""
        return self.losses.shifts_labels

    @property
    def cap(self) -> MicroBatchCap:
        """Largest micro-batch, the same on all ranks: that of steps, until memory runs out."""
        cap = self.run.splitting.cap
        return self._halved.get(cap, cap)

    @property
    def is_cut_by_tokens(self) -> bool:
        """Whether micro-batches are limited in tokens, so that ranks may differ in a stream's micro-batches."""
        return self.plan.config.max_tokens_per_micro_batch is not None

    @property
    def is_sharded(self) -> bool:
        """Whether each rank has a shard of the weights, so that forwards and backwards are collectives (FSDP2)."""
        return bool(self.trainer.accelerator.distributed_type == DistributedType.FSDP)

    @property
    def _has_engine(self) -> bool:
        """Whether FSDP2 or DeepSpeed trains the model; what they cannot do is refused at construction."""
        return bool(self.is_sharded or self.trainer.is_deepspeed_enabled)

    def is_packed(self, batch: StepBatch) -> bool:
        """Whether rows are not samples on some rank: micro-batches then contain one stream each."""
        if self.run.splitting.round_robin:
            return False
        own = any(len(self.items(micro)) != len(micro.stream_ids) for micro in batch.micro_batches)
        return bool(self.ranks.max_over_ranks(int(own)))

    def loss_scale(self) -> Tensor | float:
        """Returns the factor of the gradient scaler on losses, on the device."""
        scaler = self.trainer.accelerator.scaler
        return 1.0 if scaler is None else scaler.scale(torch.ones((), device=self.trainer.args.device))

    def sum_reduction_scale(self) -> float:
        """Returns the factor of the present loss on the mean over all items; reads from the device."""
        return float(self.loss_scale()) * self.run.step.num_items / self.losses.divisor_of_sum

    def loss_factors(self) -> FloatArray | None:
        """Returns the factors on the streams' losses in the present step, `[num_streams]`; `None` for 1."""
        return self.losses.factors

    def load(self, plan: StepPlan) -> StepBatch:
        """Loads this rank's micro-batches of a plan."""
        return self.run.present_loader.load(plan, self.run.splitting)

    def read(self, share: StreamShare) -> Sequence[Any]:
        """Reads samples of a map-style stream as for training, random transforms included."""
        return self.run.present_loader.read_samples([share])

    @property
    def collator(self) -> Callable[[list[Any]], Any]:
        """Collates samples of any data set with the trainer's collator, for `prepared`."""
        collator: Callable[[list[Any]], Any] = collator_removing_columns(
            self.trainer, self.trainer.data_collator, "evaluation"
        )
        return collator

    def inputs_of_columns(self, columns: Columns) -> dict[str, Any]:
        """Makes inputs of whole columns, as the default collator does of samples, for `prepared`."""
        return self._samples.model_columns(columns)

    def prepare_inputs(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Moves inputs to the device of the model."""
        return prepare_inputs(self.trainer, dict(inputs))

    def on_all_ranks(self, work: Callable[[], Result]) -> Result:
        """Runs work on every rank; an error on one of them is raised on all."""
        return self.ranks.run_on_all(work)

    def evened(self, micros: list[MicroBatch]) -> list[MicroBatch]:
        """Adds padding to a rank's micro-batches where all ranks have to run as many.

        Raises:
            ValueError: On all ranks, if one has none at all.
        """
        if not self.is_sharded:
            return micros
        most, fewest = self.ranks.all_reduce_max(np.array([len(micros), -len(micros)])).tolist()
        if most and not fewest:
            raise ValueError(
                "A measurement between steps found no row on one of the ranks: all of its samples are broken."
            )
        return [*micros, *[replace(micro, is_padding=True) for micro in micros[-1:]] * (most - len(micros))]

    def fitted(self, works: Sequence[Callable[[], Result]], micros: Sequence[MicroBatch]) -> list[Result] | None:
        """Runs forwards or backwards on every rank, unless they do not fit into memory.

        Where each rank has a shard of the weights, forwards and backwards are collectives. There a rank that runs out
        of memory in a forward without gradients takes part in the others' until all have ended; see `ForwardGuard`.
        After one with gradients it cannot, and the run ends, as in a step.

        Args:
            works: One for each of this rank's micro-batches; as many on each rank where it has a shard.
            micros: The micro-batches.

        Returns:
            Its results; `None` on all ranks if memory ran out on one. It can be tried again: `cap` is smaller now.

        Raises:
            MeasurementMemoryError: On all ranks, if memory ran out on one with a single row.
        """
        result, largest = (
            self._attempt_together(works, micros)
            if self.is_sharded
            else self.on_all_ranks(partial(self._attempt, works, micros))
        )
        largest = Size(*self.ranks.all_reduce_max(np.array(largest)).tolist())
        if not largest.samples:
            return result
        del result
        clear_device_cache(garbage_collection=True)
        old, steps = self.cap, self.run.splitting.cap
        if (new := old.halved(largest)) is None:
            raise MeasurementMemoryError
        self._halved[steps] = new
        if self.trainer.is_world_process_zero():
            logger.warning(
                "A measurement ran out of memory. It is repeated with at most %s per micro-batch instead of %s; steps "
                "keep theirs.",
                *(new, old),
            )
        return None

    def _attempt(self, works: Sequence[Callable[[], Result]], micros: Sequence[MicroBatch]) -> _Attempt:
        """Returns the results, or the largest micro-batch if memory ran out."""
        try:
            return [work() for work in works], Size(0, 0)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
        return None, Size.largest(micros)

    def _attempt_together(self, works: Sequence[Callable[[], Result]], micros: Sequence[MicroBatch]) -> _Attempt:
        """Does the same where forwards and backwards are collectives; any other error on one rank ends all."""
        guard = self._guard = self._guard or ForwardGuard(self.trainer.model_wrapped)
        with contextlib.nullcontext() if self.trainer.args.torch_compile else guard.watching():
            results = [guard.run(work) for work in works]
        reshard(self.trainer.model_wrapped)
        return (None, Size.largest(micros)) if guard.has_failed else (results, Size(0, 0))

    def alone(self, work: Callable[[], Result]) -> Result:
        """Runs work without collectives on every rank.

        Raises:
            MeasurementMemoryError: On all ranks, if memory ran out on one.
        """
        results = self.on_all_ranks(partial(_unless_out_of_memory, work))
        if self.ranks.max_over_ranks(int(not results)):
            del results
            clear_device_cache(garbage_collection=True)
            raise MeasurementMemoryError
        return results[0]

    def items(self, micro: MicroBatch) -> Tensor:
        """Counts the loss terms in each row of a micro-batch: int64 `[num_rows]`."""
        return self.losses.items_per_row(micro)

    def mean_loss(self, micro: MicroBatch, model: nn.Module | None = None) -> Tensor:
        """Computes the mean loss per item of a micro-batch, with its graph, whatever the model divides by.

        Args:
            micro: The micro-batch.
            model: The model to run; `None` for the model as it is trained.

        Returns:
            A scalar; 0 if there are no items.
        """
        normalization = self.losses.normalization_of(micro.first_stream)
        num_items = max(int(self.items(micro).sum()), 1)
        run: Any = self.trainer.model_wrapped if model is None else model
        loss = self._loss(micro, run, num_items if normalization.counts_items else None)
        divisor = normalization.factor(self.trainer.args.world_size) if normalization.counts_items else 1
        divisor = num_items if normalization.is_plain_sum else divisor
        return torch.as_tensor(loss if divisor == 1 else loss / divisor)

    def _loss(self, micro: MicroBatch, model: nn.Module, num_items: int | None) -> Any:
        trainer, first = self.trainer, micro.first_stream
        inputs, device = micro.inputs, trainer.args.device
        if device.type not in ("cpu", "mps"):  # whose copies are not to be relied on before they are waited for
            inputs = send_to_device(dict(inputs), device, non_blocking=True)  # a BatchEncoding would move itself
        inputs = self.prepare_inputs(inputs)
        count = None if num_items is None else torch.full((), num_items, device=device)
        with metrics_restored(trainer), trainer.compute_loss_context_manager(), self.losses.function_of(first):
            return trainer.compute_loss(model, inputs, num_items_in_batch=count)

    def mean_and_row_losses(self, micro: MicroBatch, model: nn.Module | None = None) -> tuple[Tensor, Tensor | None]:
        """Computes the losses of a micro-batch.

        Args:
            micro: The micro-batch.
            model: The model to run; `None` for the model as it is trained.

        Returns:
            A scalar, the mean loss per item; and `[num_rows]`, the sum of each sample's loss terms, without a graph, or
            `None` if rows cannot be separated.
        """
        losses, reader = self.losses, self.losses.reader
        reader.listen(micro.inputs)
        try:
            mean = self.mean_loss(micro, model)
        finally:
            rows = losses.take_row_losses(micro)
        are_known = losses.normalization_of(micro.first_stream).rows_known
        return mean, rows.detach() if are_known and rows is not None and len(rows) == len(micro.stream_ids) else None

    def summed_row_losses(self, micro: MicroBatch) -> Tensor | None:
        """Computes the sum of each sample's loss terms, `[num_rows]`; `None` if rows cannot be separated."""
        mean, rows = self.mean_and_row_losses(micro)
        return self._summed(mean, micro) if rows is None and len(micro.stream_ids) == 1 else rows

    def summed_loss(self, micro: MicroBatch) -> Tensor:
        """Computes the sum of a micro-batch's loss terms, `[1]`, where its rows cannot be separated."""
        return self._summed(self.mean_loss(micro), micro)

    def _summed(self, mean: Tensor, micro: MicroBatch) -> Tensor:
        return mean.detach().to(self.losses.sum_dtype).reshape(1) * int(self.items(micro).sum())

    @property
    def num_parts(self) -> int:
        """In how many micro-batches rows are measured that count together, as each other's negatives; 1 elsewhere."""
        return 1 if self.plan.mixture.one_stream_per is None else _PARTS

    @contextlib.contextmanager
    def without_gradients(self, training: bool) -> Iterator[None]:
        """Allows runs without gradients; restores the model's mode, random numbers and running statistics.

        Args:
            training: The mode meanwhile.
        """
        with self._model_restored(training=training), torch.no_grad():
            yield

    def row_losses(self, batch: StepBatch) -> list[tuple[MicroBatch, Tensor]]:
        """Computes the losses of samples, without gradients and in evaluation mode.

        Returns:
            This rank's micro-batches without padding, and for each `[num_rows]`, the mean loss per item.

        Raises:
            ValueError: If the model's rows cannot be separated.
        """
        losses: list[tuple[MicroBatch, Tensor]] = []
        with self._model_restored(training=False), torch.no_grad():
            for micro in batch.micro_batches:
                self.losses.reader.listen(micro.inputs)
                self.mean_loss(micro)
                rows = self.losses.take_row_losses(micro)
                if micro.is_padding:
                    continue
                if rows is None or len(rows) != len(micro.stream_ids):
                    raise ValueError("The loss of this model cannot be separated by row, so rows have no losses.")
                losses.append((micro, rows / self.items(micro).to(rows.device, non_blocking=True).clamp(min=1)))
        return losses

    def gradient(self, batch: StepBatch, num_items: int) -> list[Tensor | None]:
        """Computes the gradient of the mean loss of samples, over all ranks.

        Args:
            batch: This rank's samples.
            num_items: Number of items over all ranks.

        Returns:
            One entry per parameter; `None` for parameters without a gradient.

        Raises:
            ValueError: If the model is sharded.
            RemoteError: If another rank failed before the gradients were averaged.
        """
        with self.own_gradients(training=True) as parameters:
            self.ranks.run_on_all(partial(self._backward, batch, num_items))
            self.average_own()
            return [parameter.grad for parameter in parameters]

    @contextlib.contextmanager
    def own_gradients(self, training: bool) -> Iterator[Sequence[nn.Parameter]]:
        """Allows runs whose gradients stay on this rank until `average_own`; those of shards are averages at once.

        Args:
            training: The model's mode meanwhile; gradient checkpointing stays on in both.

        Yields:
            The trainable parameters, without gradients.
        """
        model = self.trainer.model_wrapped
        checkpointing = contextlib.nullcontext() if training else checkpointing_kept(model)
        reshard(model)
        alone = contextlib.nullcontext() if self._has_engine else self.trainer.accelerator.no_sync(model=model)
        with self._model_restored(training), checkpointing, gradients_stashed(self.parameters) as parameters:
            finish_forward_sync(model)
            with alone:
                yield parameters

    def backward(self, micro: MicroBatch, weight: float, by_row: bool = False) -> tuple[Tensor, Tensor | None] | None:
        """Adds the gradient of a micro-batch to those of this rank, in `own_gradients`.

        Args:
            micro: The micro-batch.
            weight: Its share of the items over all ranks.
            by_row: Whether the losses of its rows are wanted.

        Returns:
            See `mean_and_row_losses`, without a graph; `None` without weight.
        """
        if not weight and not self.is_sharded:
            return None
        is_beside = self.trainer.is_deepspeed_enabled  # which would take it for one of its steps
        model = self.model if is_beside else None
        loss, rows = self.mean_and_row_losses(micro, model) if by_row else (self.mean_loss(micro, model), None)
        scaled = loss * (weight * self.trainer.args.world_size * float(self.loss_scale()))
        if is_beside:
            self._add_gradients(scaled)
        else:
            torch.autograd.backward(scaled)
        return (loss.detach(), rows) if weight else None  # the mean over no items may be NaN

    def _add_gradients(self, loss: Tensor) -> None:
        """Adds the gradients of a loss without the hooks that an engine has on backwards."""
        parameters = self.parameters
        for parameter, part in zip(parameters, torch.autograd.grad(loss, parameters, allow_unused=True), strict=True):
            if part is not None:
                parameter.grad = part if parameter.grad is None else parameter.grad.add_(part)

    def average_own(self) -> None:
        """Averages over ranks what backwards in `own_gradients` have left; all ranks have to call it."""
        scale = float(self.loss_scale())
        if scale != 1.0:
            for parameter in self.parameters:
                if parameter.grad is not None:
                    parameter.grad.div_(scale)
        world_size = self.trainer.args.world_size
        if self.trainer.is_deepspeed_enabled:
            average_whole(self.parameters, self.ranks, world_size)
        average_gradients(self.trainer.model_wrapped, self.ranks, world_size)

    def product(self, left: Sequence[Tensor | None], right: Sequence[Tensor | None]) -> Tensor:
        """Returns the product of two averaged gradients, entries by parameter; with shards, what this rank adds to it.

        Returns:
            A scalar on the device.
        """
        if not self.is_sharded:
            return product(left, right)
        total = torch.zeros((), dtype=torch.float64, device=self.trainer.args.device)
        for pair in zip(left, right, strict=True):
            parts = [own_part(entry, self.ranks.world_size) for entry in pair if entry is not None]
            if len(parts) == 2:
                (own, num_ranks), (other, _) = parts
                total += product([own], [other]).to(total) / num_ranks
        return total

    def samples(self, wanted: Mapping[int, Int64Array], most: int | None = None) -> list[MicroBatch]:
        """Reads and collates samples of map-style streams; random transforms and collators as in training.

        Args:
            wanted: int64 `[num_samples]` by stream: positions in the stream.
            most: Most samples of a micro-batch; `None` for those that fit.
        """
        cap = self.cap
        size = min(most or cap.max_samples, cap.max_samples)
        splitting = replace(self.run.splitting, cap=replace(cap, max_samples=size))
        return self.run.present_loader.samples(wanted, splitting)

    def split(self, samples: Sequence[Any]) -> list[slice]:
        """Splits samples of any data set into micro-batches that fit."""
        return self.run.present_loader.split_others(samples, self.cap)

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer, without accelerate's wrapper."""
        optimizer = self.trainer.optimizer
        assert optimizer is not None, "there is an optimizer in every run"  # noqa: S101
        inner: torch.optim.Optimizer = getattr(optimizer, "optimizer", optimizer)
        return inner

    def check_own_gradients(self, model: nn.Module, what: str) -> None:
        """Refuses a model whose ranks have no gradients of their own.

        Args:
            model: The model as it is trained.
            what: What the policy does with them, for the error.

        Raises:
            ValueError: If `own_gradients` cannot run it.
        """
        reason = obstacle(model, self.trainer.args.world_size)
        if reason is not None and not self._has_engine:
            text = f"={self.plan.policy.name} {what}, but {reason}. Use DDP, or a policy that uses evaluations."
            raise wrong_value("mixing", text)

    def _backward(self, batch: StepBatch, num_items: int) -> None:
        for micro in batch.micro_batches:
            own_items = 0 if micro.is_padding else int(self.items(micro).sum())
            self.backward(micro, own_items / max(num_items, 1))

    @contextlib.contextmanager
    def on_one_rank(self) -> Iterator[nn.Module]:
        """Lets one rank run the model in evaluation mode and compute gradients, which are discarded afterwards.

        Yields:
            The model, not wrapped for distributed training.
        """
        with self._model_restored(training=False), checkpointing_kept(self.model), gradients_stashed(self.parameters):
            yield self.model

    def _model_restored(self, training: bool) -> contextlib.AbstractContextManager[None]:
        trainer = self.trainer
        return model_restored(trainer.model_wrapped, trainer.args, training)


def _unless_out_of_memory(work: Callable[[], Result]) -> list[Result]:
    """Returns the result, or nothing if memory ran out."""
    try:
        return [work()]
    except Exception as error:
        if not is_out_of_memory(error):
            raise
    return []
