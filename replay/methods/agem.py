"""Averaged gradient episodic memory: gradients must not conflict with the gradient of the memory."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from accelerate.state import GradientState
from torch import Tensor, nn

from mixer.distributed.gradient_sync import add_up, obstacle
from mixer.loading.loaded_step import StepBatch
from mixer.mixture.step_plan import StepPlan
from mixer.run.hooks import ForwardResult
from mixer.trainer.method import Method, RunContext
from mixer.utils.arrays import FloatArray, Int64Array
from mixer.utils.errors import InvalidValueError
from replay.methods.memories import factors_of_means, find_memory, refuse_second_draws


class AGEM(Method):
    """Projects the gradient of new samples so that it does not conflict with the gradient of the memory.

    Chaudhry et al. 2019, "Efficient Lifelong Learning with A-GEM", arXiv:1812.00420, equation 11: with g the mean
    gradient of the new samples and r that of the samples drawn from memory, `g ← g - <g, r>/||r||² r` where
    `<g, r> < 0`. The memory is used for this projection only. The paper draws 256 samples per step.

    The method holds a second gradient in memory, which is averaged over the ranks as well. Inner products use the whole
    gradient before clipping; if one is not finite, the gradient is left to the gradient scaler. Micro-batches contain
    one stream each, memory first. Log entries contain the share of projected steps.

    Args:
        memory: Name of the buffer's stream.

    Raises:
        ValueError: At construction of the trainer, if the memory is no replay buffer, a stream is a second draw, or
            micro-batches are cut by tokens on several ranks; at the start of training, if no rank has a whole gradient.

    Example:
        >>> trainer = MixingTrainer(  # doctest: +SKIP
        ...     model, args, train_dataset={"new": new, "memory": ReplayBuffer(1000)},
        ...     mixing=ReplayRatio(0.5), methods=[AGEM("memory")],
        ... )
    """

    needs = frozenset({"one stream each", "whole gradients"})

    def __init__(self, memory: str = "memory"):
        self.memory = memory
        self._reference: list[Tensor | None] | None = None
        self._were_projected: list[Tensor] = []

    def attach(self, run: RunContext) -> None:
        """Finds the memory; see `Method.attach`."""
        self._run = run
        self._reference, self._were_projected = None, []
        self._memory_id, _, _ = find_memory(run, self.memory, self.name)
        refuse_second_draws(run, self.name, f"Leave them out: {self.name} draws {self.memory!r} once.")
        if run.world_size > 1 and run.passes.is_cut_by_tokens:
            text = "A rank may have samples of memory alone. Use per_device_train_batch_size instead."
            raise InvalidValueError.about("max_tokens_per_micro_batch", text)

    def prepare(self, model: nn.Module) -> None:
        """Refuses models of which no rank has a gradient of its own; see `Method.prepare`."""
        reason = obstacle(model, self._run.world_size)
        if reason is not None:
            text = f"{self.name} needs the gradients of memory and of new samples apart: {reason}. Use plain DDP."
            raise InvalidValueError(text, option="model")
        if self._run.world_size > 1 and GradientState().plugin_kwargs.get("sync_each_batch", False):
            text = f"must not be set with {self.name}, which averages the gradients of memory and of new samples."
            raise InvalidValueError.about("sync_each_batch", text)

    @property
    def log_state(self) -> dict[str, Any]:
        """Which steps since the last log entry were projected; see `Method`."""
        return {"projected": [bool(was_projected) for was_projected in self._were_projected]}

    @log_state.setter
    def log_state(self, state: Mapping[str, Any]) -> None:
        projected = state.get("projected", [])
        self._were_projected = [torch.tensor(was_projected, device=self._run.device) for was_projected in projected]

    def factors(self, plan: StepPlan, items: Int64Array) -> FloatArray:
        """Takes means over new samples and over those of memory; see `Method.factors`."""
        return factors_of_means(items, {self._memory_id: 1.0})

    def has_priority(self, stream_id: int) -> bool:
        """Has memory go first; see `Method.has_priority`."""
        return stream_id == self._memory_id

    def begin_step(self, model: nn.Module, batch: StepBatch) -> None:
        """Forgets what was noted of a step that is repeated; see `Method.begin_step`."""
        self._reference = None

    def end_micro_batch(self, model: nn.Module, trained: ForwardResult, ends_priority: bool) -> None:
        """Takes the gradient of memory aside once it is complete; see `Method.end_micro_batch`."""
        if ends_priority:
            parameters = _trained(model)
            self._reference = [parameter.grad for parameter in parameters]
            for parameter in parameters:
                if parameter.grad is not None:  # DDP counts on a gradient of what a forward has used
                    parameter.grad = torch.zeros_like(parameter.grad)

    def end_backward(self, model: nn.Module) -> None:
        """Projects the gradient; see `Method.end_backward`."""
        parameters, reference, self._reference = _trained(model), self._reference, None
        was_projected = torch.zeros((), dtype=torch.bool, device=self._run.device)
        if reference is not None and any(parameter.grad is not None for parameter in parameters):
            pairs = self._pairs(parameters, reference)
            was_projected = project([own for own, _ in pairs], [other for _, other in pairs])
        self._were_projected.append(was_projected.to(self._run.device))

    def _pairs(self, parameters: Sequence[nn.Parameter], reference: list[Tensor | None]) -> list[tuple[Tensor, Tensor]]:
        """Returns gradients of new samples and of memory, over all ranks, where memory has one on any of them."""
        are_present = np.array([gradient is not None for gradient in reference], dtype=np.int64)
        pairs = []
        for number in np.flatnonzero(self._run.rank_sync.all_reduce_sum(are_present)).tolist():
            parameter, other = parameters[number], reference[number]
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            pairs.append((parameter.grad, torch.zeros_like(parameter) if other is None else other))
        if self._run.world_size > 1:
            add_up([other for _, other in pairs])  # its length does not matter
        return pairs

    def log_entries(self) -> dict[str, float]:
        """Returns the share of steps since the last log entry that were projected; see `Method.log_entries`."""
        if not self._were_projected:
            return {}
        share = float(torch.stack(self._were_projected).double().mean())
        self._were_projected.clear()
        return {f"projected/{self.memory}": share}


def project(gradients: Sequence[Tensor], reference: Sequence[Tensor]) -> Tensor:
    """Removes from a gradient, in place, its part against another one (arXiv:1812.00420, equation 11).

    Nothing is read from the device. Where a product is not finite, nothing is done.

    Args:
        gradients: The gradient, by parameter.
        reference: The other one, of the same shapes and types; overwritten.

    Returns:
        A boolean scalar: whether it was projected.

    Example:
        >>> gradient = torch.tensor([1.0, -1.0])
        >>> bool(project([gradient], [torch.tensor([0.0, 2.0])])), gradient.tolist()
        (True, [1.0, 0.0])
    """
    product, squared_norm = _product(gradients, reference), _product(reference, reference)
    applies = (product < 0) & product.isfinite() & squared_norm.isfinite() & (squared_norm > 0)
    factor = torch.where(applies, -product / squared_norm, 0.0)
    for gradient, other in zip(gradients, reference, strict=True):
        other.masked_fill_(~applies.to(other.device), 0.0)  # 0 times infinity would not be 0
        gradient.addcmul_(other, factor.to(gradient.device, gradient.dtype))
    return applies


def _product(left: Sequence[Tensor], right: Sequence[Tensor]) -> Tensor:
    parts: list[Tensor] = []
    for gradient, other in zip(left, right, strict=True):
        dtype = torch.promote_types(gradient.dtype, torch.float32)
        part = torch.dot(gradient.reshape(-1).to(dtype), other.reshape(-1).to(dtype))
        parts.append(part.to(parts[0]) if parts else part)
    return torch.stack(parts).sum() if parts else torch.zeros(())


def _trained(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]
