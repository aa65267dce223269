"""The metric of an optimizer: how far it moves each parameter for the same gradient."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import (
    Tensor,
    _foreach_add_,
    _foreach_div_,
    _foreach_lerp_,
    _foreach_mul,
    _foreach_mul_,
    _foreach_sqrt_,
    _foreach_zero_,
    nn,
)

from mixer.distributed.gradient_sync import add_up, local
from mixer.utils.device import to_host

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
        self.is_divided = divided is not None
        members = [group["params"] for group in groups] if divided is None else divided
        self._largest_rate = max((float(group["lr"]) for group in groups), default=0.0)
        self._group_of = {id(one): group for group, own in zip(groups, members, strict=True) for one in own}
        states = [state for state in self.optimizer.state.values() if _has_step(state)]
        # Of a fused optimizer they are on the device: read one by one, the host would wait for each parameter.
        steps = to_host([torch.as_tensor(state["step"]) for state in states])
        self._steps = {id(state): float(step) for state, step in zip(states, steps, strict=True)}

    def name(self, parameters: Sequence[nn.Parameter]) -> str:
        """Names the metric of most of the parameters: `"adam"`, `"rmsprop"` or `"plain"`."""
        sizes: dict[str, int] = {}
        for parameter in parameters:
            kind, _ = self._kind(parameter)
            sizes[kind] = sizes.get(kind, 0) + parameter.numel()
        return max(sizes, key=lambda kind: sizes[kind], default="plain")

    def scale(self, parameters: Sequence[nn.Parameter], gradients: Sequence[Tensor | None]) -> None:
        """Multiplies gradients by D, in place.

        Those that have the same factors are scaled at once: each operation costs a GPU's host some microseconds. A
        copy of the gradients is in memory meanwhile.

        Args:
            parameters: The parameters.
            gradients: Their gradients; `None` for none.
        """
        alike: dict[Any, list[tuple[nn.Parameter, Tensor]]] = {}
        for parameter, gradient in zip(parameters, gradients, strict=True):
            if gradient is not None:
                own, kind, group = local(gradient), self._kind(parameter), id(self._group_of.get(id(parameter)))
                key = kind, self._step(parameter), group, own.dtype, own.device
                alike.setdefault(key, []).append((parameter, own))
        for (kind, step, *_), members in alike.items():
            self._scale(members, kind, step)

    def _scale(self, members: Sequence[tuple[nn.Parameter, Tensor]], kind: tuple[str, str], step: float) -> None:
        gradients = [gradient for _, gradient in members]
        group = self._group_of.get(id(members[0][0]))
        if group is None:  # the optimizer does not move it
            _foreach_zero_(gradients)
            return
        if kind[0] != "plain":
            is_adam = kind[0] == "adam"
            decay = float(group["betas"][1] if is_adam else group["alpha"])
            running = [self._squares(parameter, kind[1]).to(gradient) for parameter, gradient in members]
            squares = _foreach_mul(gradients, gradients)
            _foreach_lerp_(squares, running, decay)
            if is_adam:
                _foreach_div_(squares, 1.0 - decay ** (step + 1.0))
            _foreach_sqrt_(squares)
            _foreach_add_(squares, float(group["eps"]))
            _foreach_div_(gradients, squares)
        if self._largest_rate > 0.0 and float(group["lr"]) != self._largest_rate:
            _foreach_mul_(gradients, float(group["lr"]) / self._largest_rate)

    def _squares(self, parameter: nn.Parameter, name: str) -> Tensor:
        state = self._state_of(parameter)
        return _gathered(parameter, state[name]) if self.is_divided else local(_read(state, name))

    def _step(self, parameter: nn.Parameter) -> float:
        return self._steps.get(id(self._state_of(parameter)), 0.0)

    def _kind(self, parameter: nn.Parameter) -> tuple[str, str]:
        """Returns the optimizer's kind, and the entry with the squares."""
        state, group = self._state_of(parameter), self._group_of.get(id(parameter), {})
        for kind, name, needed in _KINDS:
            squares = state.get(name)
            is_its = isinstance(squares, Tensor) and (self.is_divided or squares.shape == parameter.shape)
            if is_its and not squares.is_floating_point():
                is_its = not self.is_divided and len(state.get("absmax2", ())) == -(-squares.numel() // _BLOCK)
            if is_its and needed <= group.keys() and (kind != "adam" or id(state) in self._steps):
                return kind, name
        return "plain", ""

    def _state_of(self, parameter: nn.Parameter) -> Any:
        group = self._group_of.get(id(parameter))
        return self.optimizer.state.get(group["params"][0] if self.is_divided and group else parameter, {})


def _read(state: Any, name: str) -> Tensor:
    """Returns an entry of a parameter's state, from 8 bits if need be: places in a table, scaled by block."""
    entry: Tensor = state[name]
    if entry.is_floating_point():
        return entry
    scales = state["absmax2"].repeat_interleave(_BLOCK)[: entry.numel()]
    numbers: Tensor = state["qmap2"][entry.flatten().long()] * scales
    return numbers.view_as(entry)


def _has_step(state: Any) -> bool:
    step = state.get("step") if isinstance(state, Mapping) else None  # an optimizer may keep other entries there
    return isinstance(step, int | float) or (isinstance(step, Tensor) and step.numel() == 1)


def _gathered(parameter: Any, state: Tensor) -> Tensor:
    """Returns the state of a parameter from what the ranks have of it, by the places that DeepSpeed notes of both."""
    whole, part = torch.zeros_like(parameter, dtype=state.dtype).flatten(), parameter._hp_mapping  # noqa: SLF001
    if part is not None:
        place, source = part.lp_fragment_address, part.hp_fragment_address
        whole[place.start : place.start + place.numel] = state[source.start : source.start + source.numel]
    add_up([whole])
    return whole.view_as(parameter)
