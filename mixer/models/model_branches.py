"""Branches of a model: weights or adapters that are trained from the same start, and mixed."""

import contextlib
import copy
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

_RATE_OF_ADAPTERS = 10.0  # of the weights' own: "LoRA Without Regret" (Schulman and others 2025)
_USUAL_RATE = 1e-3  # of adapters, where the weights have a rate that means something else


class WeightBranches:
    """Branches of the trained weights themselves, by the optimizer of the run with a copy of its state.

    Args:
        parameters: The trained weights.
        optimizer: Their optimizer.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], optimizer: torch.optim.Optimizer):
        self._parameters, self._optimizer = list(parameters), optimizer
        self._start = [parameter.detach().clone() for parameter in self._parameters]
        self._ends: list[list[Tensor]] = []

    @contextlib.contextmanager
    def training(self) -> Iterator[tuple[Sequence[nn.Parameter], torch.optim.Optimizer]]:
        """Starts a branch from the model as it is; it is kept when the context ends, and the model is as before.

        Yields:
            The parameters that the branch trains, and their optimizer.
        """
        kept, groups = self._optimizer.state, [dict(group) for group in self._optimizer.param_groups]
        copies = {parameter: copy.deepcopy(state) for parameter, state in kept.items()}
        self._optimizer.state = defaultdict(dict, copies)
        try:
            yield self._parameters, self._optimizer
            self._ends.append([parameter.detach().clone() for parameter in self._parameters])
        finally:
            self._optimizer.state = kept
            for group, before in zip(self._optimizer.param_groups, groups, strict=True):
                group.update(before)
            self._restore()

    @contextlib.contextmanager
    def mixed(self, shares: Sequence[float]) -> Iterator[None]:
        """Makes the model the mixture of the branches inside the context.

        Args:
            shares: Share of each branch, in the order in which they were trained.
        """
        try:
            with torch.no_grad():
                for place, (parameter, start) in enumerate(zip(self._parameters, self._start, strict=True)):
                    ends = [end[place] for end in self._ends]
                    mean = sum(share * (end - start) for share, end in zip(shares, ends, strict=True))
                    parameter.copy_(start + mean)
            yield
        finally:
            self._restore()

    def _restore(self) -> None:
        with torch.no_grad():
            for parameter, start in zip(self._parameters, self._start, strict=True):
                parameter.copy_(start)


class AdapterBranches:
    """Branches of low-rank adapters (Hu et al. 2021, LoRA, arXiv:2106.09685) in all linear layers, by AdamW.

    They take little memory for each branch. Layers add the adapters' output by hooks, which mixing leaves as they are.

    Args:
        model: The model, whose weights stay as they are.
        rank: Rank of an adapter.
        learning_rate: Of the run, if its optimizer is Adam's kind: adapters have ten times that; `None` takes 0.001.

    Raises:
        ValueError: If there is no linear layer.
    """

    def __init__(self, model: nn.Module, rank: int, learning_rate: float | None):
        self._layers = [module for module in model.modules() if isinstance(module, nn.Linear | Conv1D)]
        if not self._layers:
            raise ValueError("adapter_rank: the model has no linear layers; use 0 to branch the weights themselves.")
        self._rank, self._rate = rank, _USUAL_RATE if learning_rate is None else _RATE_OF_ADAPTERS * learning_rate
        self._branches: list[list[tuple[Tensor, Tensor]]] = []

    @contextlib.contextmanager
    def training(self) -> Iterator[tuple[Sequence[nn.Parameter], torch.optim.Optimizer]]:
        """Trains a branch; see `WeightBranches.training`."""
        factors = [self._new(layer) for layer in self._layers]
        parameters = [parameter for pair in factors for parameter in pair]
        with self._added([factors], [1.0]):
            yield parameters, torch.optim.AdamW(parameters, lr=self._rate, weight_decay=0.0)
        self._branches.append([(down.detach(), up.detach()) for down, up in factors])

    def mixed(self, shares: Sequence[float]) -> contextlib.AbstractContextManager[None]:
        """Adds the adapters' outputs; see `WeightBranches.mixed`."""
        return self._added(self._branches, shares)

    def _new(self, layer: nn.Module) -> tuple[nn.Parameter, nn.Parameter]:
        weight: Any = layer.weight
        # Packed weights of few bits have another shape than the layer.
        num_in, num_out = (layer.in_features, layer.out_features) if isinstance(layer, nn.Linear) else weight.shape
        down = torch.randn(self._rank, num_in, device=weight.device) / num_in**0.5
        return nn.Parameter(down), nn.Parameter(torch.zeros(num_out, self._rank, device=weight.device))

    @contextlib.contextmanager
    def _added(self, branches: Sequence[Sequence[tuple[Tensor, Tensor]]], shares: Sequence[float]) -> Iterator[None]:
        def add(layer: int, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
            given = inputs[0]
            for share, factors in zip(shares, branches, strict=True):
                down, up = (factor.to(given.dtype) for factor in factors[layer])
                output = output + share * (given @ down.T @ up.T)
            return output

        handles = [
            module.register_forward_hook(lambda _, inputs, output, layer=layer: add(layer, inputs, output))
            for layer, module in enumerate(self._layers)
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


Branches = WeightBranches | AdapterBranches
