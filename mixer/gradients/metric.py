"""The metric of an optimizer: how far it moves each parameter for the same gradient."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mixer.distributed.gradient_sync import add_up

# Optimizers with a running mean of squared gradients: the entry of a parameter's state, and options of its group. The
# second are those of bitsandbytes, paged or not.
_KINDS = (
    ("adam", "exp_avg_sq", {"betas", "eps"}),
    ("adam", "state2", {"betas", "eps"}),
    ("rmsprop", "square_avg", {"alpha", "eps"}),
)
_BLOCK = 256  # numbers that have one scale in an 8-bit state of bitsandbytes


class OptimizerMetric:
    """The diagonal D by which an optimizer scales gradients: `1 / (√v + ε)` for Adam and RMSprop, 1 for others.

    As in the optimizer's next step, `v` includes the gradient that is scaled: `β v + (1 − β) g²`. Otherwise parameters
    that had no gradient so far, such as the embedding of a rare token, would outweigh all others. D also includes each
    parameter group's share of the learning rate.

    DeepSpeed's ZeRO-1 and ZeRO-2 divide each group's state among the ranks, as one long vector. It is gathered by
    parameter, so all ranks have to call `scale`.

    Args:
        optimizer: The optimizer, wrapped or not.
    """

    def __init__(self, optimizer: Any):
        self.optimizer: torch.optim.Optimizer = getattr(optimizer, "optimizer", optimizer)
        groups = self.optimizer.param_groups
        divided = getattr(optimizer, "bit16_groups", getattr(optimizer, "bf16_groups", None))
        self._is_divided = divided is not None
        members = [group["params"] for group in groups] if divided is None else divided
        self._largest_rate = max((float(group["lr"]) for group in groups), default=0.0)
        self._group_of = {id(one): group for group, own in zip(groups, members, strict=True) for one in own}

    def name(self, parameters: Sequence[nn.Parameter]) -> str:
        """Names the metric of most of the parameters: `"adam"`, `"rmsprop"` or `"plain"`."""
        sizes: dict[str, int] = {}
        for parameter in parameters:
            kind, _ = self._kind(parameter)
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
        (kind, name), state = self._kind(parameter), self._state_of(parameter)
        if kind != "plain":
            is_adam = kind == "adam"
            decay = float(group["betas"][1] if is_adam else group["alpha"])
            running = _gathered(parameter, state[name]) if self._is_divided else _read(state, name)
            squares = torch.lerp(gradient.square(), running.to(gradient), decay)
            correction = 1.0 - decay ** (float(state["step"]) + 1.0) if is_adam else 1.0
            gradient.div_(squares.div_(correction).sqrt_().add_(float(group["eps"])))
        if self._largest_rate > 0.0:
            gradient.mul_(float(group["lr"]) / self._largest_rate)

    def _kind(self, parameter: nn.Parameter) -> tuple[str, str]:
        """Returns the optimizer's kind, and the entry with the squares."""
        state, group = self._state_of(parameter), self._group_of.get(id(parameter), {})
        for kind, name, needed in _KINDS:
            squares = state.get(name)
            is_its = isinstance(squares, Tensor) and (self._is_divided or squares.shape == parameter.shape)
            if is_its and not squares.is_floating_point():
                is_its = not self._is_divided and len(state.get("absmax2", ())) == -(-squares.numel() // _BLOCK)
            if is_its and needed <= group.keys() and (kind != "adam" or "step" in state):
                return kind, name
        return "plain", ""

    def _state_of(self, parameter: nn.Parameter) -> Any:
        group = self._group_of.get(id(parameter))
        return self.optimizer.state.get(group["params"][0] if self._is_divided and group else parameter, {})


def _read(state: Any, name: str) -> Tensor:
    """Returns an entry of a parameter's state, from 8 bits if need be: places in a table, scaled by block."""
    entry: Tensor = state[name]
    if entry.is_floating_point():
        return entry
    scales = state["absmax2"].repeat_interleave(_BLOCK)[: entry.numel()]
    numbers: Tensor = state["qmap2"][entry.flatten().long()] * scales
    return numbers.view_as(entry)


def _gathered(parameter: Any, state: Tensor) -> Tensor:
    """Returns the state of a parameter from what the ranks have of it, by the places that DeepSpeed notes of both."""
    whole, part = torch.zeros_like(parameter, dtype=state.dtype).flatten(), parameter._hp_mapping  # noqa: SLF001
    if part is not None:
        place, source = part.lp_fragment_address, part.hp_fragment_address
        whole[place.start : place.start + place.numel] = state[source.start : source.start + source.numel]
    add_up([whole])
    return whole.view_as(parameter)
