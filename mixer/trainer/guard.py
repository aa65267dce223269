"""The guard of the weights: no step whose gradient is not finite is made, and no such weights are saved."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers.utils import logging

from mixer.loading.loaded_step import StepResult
from mixer.run.state import Basis
from mixer.trainer.methods import MethodList
from mixer.utils.device import to_host

logger = logging.get_logger(__name__)

# Steps that may be left out in a row; more if losses are scaled, since the scale is found by leaving out steps.
_MOST_IN_A_ROW, _MOST_IF_SCALED = 10, 50


class NonFiniteLossError(RuntimeError):
    """A loss or a gradient is not finite, and `nonfinite='raise'`; or too many steps in a row were skipped."""


class NonFiniteWeightsError(RuntimeError):
    """Weights are not finite, so that they are not saved."""


class WeightGuard:
    """Leaves out steps that would destroy the weights.

    Args:
        basis: The trainer, the plan of the run, the run and its ranks.
        methods: Its methods, whose terms are part of the gradient.
    """

    def __init__(self, basis: Basis, methods: MethodList):
        self._trainer, plan, self._run, _ = basis
        self._methods, self._nonfinite = methods, plan.config.nonfinite
        self._num_in_a_row = 0

    def begin_run(self) -> None:
        """Begins a run."""
        self._num_in_a_row = 0

    def check(self, model: nn.Module, result: StepResult, norm: float | None) -> None:
        """Decides whether a step is made, once its gradient is complete and clipped.

        Losses and norm are the same on all ranks.

        Args:
            model: The model as it is trained.
            result: The step.
            norm: Norm of its gradient before clipping; `None` if the engine does not tell it.

        Raises:
            NonFiniteLossError: Before the optimizer step, if a loss or the gradient is not finite and
                `nonfinite='raise'`, or if too many steps in a row were left out.
        """
        is_broken = norm is not None and not math.isfinite(norm)
        bad = [self._run.mixing.names[stream_id] for stream_id in result.bad_streams()]
        self._run.step.is_left_out = is_broken or (self._nonfinite == "skip" and bool(bad))
        if not self._run.step.is_left_out:
            self._num_in_a_row = 0
        if bad or is_broken:
            self._react(model, result, bad)

    def _react(self, model: nn.Module, result: StepResult, bad: list[str]) -> None:
        why = f"the loss of {bad} is not finite" if bad else self._of_gradient(result)
        # A gradient that is too large for the scale of losses is usual.
        is_usual = self._scales_losses and not bad
        if self._nonfinite == "raise" and not is_usual:
            raise NonFiniteLossError(f"Step {result.plan.step}: {why}.")
        if not self._run.step.is_left_out:
            logger.warning("Step %d: %s. It is made, since its gradient is finite.", result.plan.step, why)
            return
        if not is_usual:
            logger.warning("Step %d is skipped: %s.", result.plan.step, why)
        if not getattr(self._trainer, "is_deepspeed_enabled", False):  # it leaves out such steps by itself
            model.zero_grad(set_to_none=True)
        self._num_in_a_row += 1
        if self._num_in_a_row >= (_MOST_IF_SCALED if self._scales_losses else _MOST_IN_A_ROW):
            raise NonFiniteLossError(
                f"Step {result.plan.step} is the {self._num_in_a_row}th skipped in a row: {why}. The weights are those "
                "before these steps. Find the samples (nonfinite='raise'), or resume with a lower learning rate."
            )

    def _of_gradient(self, result: StepResult) -> str:
        names = [name for name, count in zip(self._run.mixing.names, result.plan.counts, strict=True) if count]
        methods = [method.name for method in self._methods]
        of_methods = f"; terms of the methods {methods} are part of it" if methods else ""
        return f"the gradient of {names} is not finite, though their losses are{of_methods}"

    @property
    def _scales_losses(self) -> bool:
        """Whether losses are scaled for half precision, by accelerate or by DeepSpeed."""
        accelerator = self._trainer.accelerator
        plugin = getattr(accelerator.state, "deepspeed_plugin", None)
        is_scaled = plugin is not None and plugin.deepspeed_config.get("fp16", {}).get("enabled") is True
        return accelerator.scaler is not None or is_scaled

    def check_weights(self) -> None:
        """Refuses weights that are not finite, before they are saved.

        Raises:
            NonFiniteWeightsError: With the name of a parameter.
        """
        model: Any = self._trainer.model
        named = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        are_finite = to_host([torch.isfinite(_held(parameter)).all() for parameter in named.values()])
        bad = [name for name, is_finite in zip(named, are_finite, strict=True) if not is_finite]
        if bad:
            raise NonFiniteWeightsError(
                f"After step {self._trainer.state.global_step} {len(bad)} parameters are not finite ({bad[0]!r} is the "
                "first), so no checkpoint is written. Resume from the newest one, with a lower learning rate."
            )


def _held(parameter: nn.Parameter) -> Tensor:
    """Returns what this rank holds of a parameter."""
    own: Tensor = getattr(parameter, "ds_tensor", parameter)  # of ZeRO-3
    return own.to_local() if isinstance(own, DTensor) else own
