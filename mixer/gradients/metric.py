"""The metric of an optimizer: how far it moves each parameter for the same gradient."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

# The entry of a parameter's state with the running mean of its squared gradient, by the optimizers that have it.
_SQUARES = {"adam": "exp_avg_sq", "rmsprop": "square_avg"}


class OptimizerMetric:
    """The diagonal D by which an optimizer scales gradients: `1 / (√v + ε)` for Adam and RMSprop, 1 for others.

    As in the optimizer's next step, `v` includes the gradient that is scaled: `β v + (1 − β) g²`. Otherwise parameters
    that had no gradient so far, such as the embedding of a rare token, would outweigh all others. D also includes each
    parameter group's share of the learning rate.

    Args:
        optimizer: The optimizer, wrapped or not.
    """

    def __init__(self, optimizer: Any):
        inner: torch.optim.Optimizer = getattr(optimizer, "optimizer", optimizer)
        self._state = inner.state
        self._largest_rate = max((float(group["lr"]) for group in inner.param_groups), default=0.0)
        self._group_of = {id(parameter): group for group in inner.param_groups for parameter in group["params"]}

    def name(self, parameters: Sequence[nn.Parameter]) -> str:
        """Names the metric of most of the parameters: `"adam"`, `"rmsprop"` or `"plain"`."""
        sizes: dict[str, int] = {}
        for parameter in parameters:
            kind = self._kind(parameter)
            sizes[kind] = sizes.get(kind, 0) + parameter.numel()
        return max(sizes, key=lambda kind: sizes[kind], default="plain")

    def scale(self, parameters: Sequence[nn.Parameter], gradients: Sequence[Tensor | None]) -> None:
        """Multiplies gradients by D, in place.

        Args:
            parameters: The parameters.
            gradients: Their gradients; `None` for none.
        """
        for parameter, gradient in zip(parameters, gradients, strict=True):
            if gradient is not None:
                self._scale(parameter, gradient)

    def _scale(self, parameter: nn.Parameter, gradient: Tensor) -> None:
        group = self._group_of.get(id(parameter))
        if group is None:  # the optimizer does not move it
            gradient.zero_()
            return
        kind, state = self._kind(parameter), self._state.get(parameter, {})
        if kind != "plain":
            is_adam = kind == "adam"
            decay = float(group["betas"][1] if is_adam else group["alpha"])
            squares = torch.lerp(gradient.square(), state[_SQUARES[kind]].to(gradient), decay)
            correction = 1.0 - decay ** (float(state["step"]) + 1.0) if is_adam else 1.0
            gradient.div_(squares.div_(correction).sqrt_().add_(float(group["eps"])))
        if self._largest_rate > 0.0:
            gradient.mul_(float(group["lr"]) / self._largest_rate)

    def _kind(self, parameter: nn.Parameter) -> str:
        state, group = self._state.get(parameter, {}), self._group_of.get(id(parameter), {})
        for kind, needed in (("adam", {"betas", "eps"}), ("rmsprop", {"alpha", "eps"})):
            squares = state.get(_SQUARES[kind])
            fits = isinstance(squares, Tensor) and squares.shape == parameter.shape and needed <= group.keys()
            if fits and (kind != "adam" or "step" in state):
                return kind
        return "plain"
