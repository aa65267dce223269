"""What an optimizer step changes: the trained weights and the optimizer's state, to be restored to the bit."""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn


class TrainedState:
    """A copy of trained weights and of their optimizer's state, on their device.

    Args:
        parameters: The trainable parameters.
        optimizer: Their optimizer, without a wrapper.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], optimizer: torch.optim.Optimizer):
        self._optimizer = optimizer
        self._weights = [(parameter, parameter.detach().clone()) for parameter in parameters]
        self._state = {
            key: {name: (value, _copied(value)) for name, value in own.items()} for key, own in _items(optimizer)
        }
        self._groups = [
            {name: (value, _copied(value)) for name, value in _options(group)} for group in optimizer.param_groups
        ]

    def restore(self) -> None:
        """Restores the copied values in the tensors that held them."""
        for parameter, weights in self._weights:
            parameter.data.copy_(weights)
        for key in [key for key, _ in _items(self._optimizer) if key not in self._state]:
            del self._optimizer.state[key]
        for key, kept in self._state.items():
            self._optimizer.state[key] = {name: _restored(*pair) for name, pair in kept.items()}
        for group, options in zip(self._optimizer.param_groups, self._groups, strict=True):
            group.update({name: _restored(*pair) for name, pair in options.items()})


def _items(optimizer: torch.optim.Optimizer) -> list[tuple[Any, dict[str, Any]]]:
    return list(optimizer.state.items())


def _options(group: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(name, value) for name, value in group.items() if name != "params"]


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else copy.deepcopy(value)


def _restored(value: Any, kept: Any) -> Any:
    """Puts a kept value back into the tensor that held it; other values are copied."""
    return value.copy_(kept) if isinstance(value, Tensor) else copy.deepcopy(kept)
