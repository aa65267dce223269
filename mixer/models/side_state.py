"""State of a model around auxiliary passes: mode, gradients, buffers and attributes are restored."""

import contextlib
import copy
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import TrainingArguments
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.utils import logging

from mixer.utils.attributes import attributes_held
from mixer.utils.random_state import RandomState

logger = logging.get_logger(__name__)
# Total size of the copied buffers, smallest first: quantised weights, which no forward changes, are buffers too.
_MOST_BYTES = 2**28
# Modules of these libraries keep state of their own forwards: DDP, for one, sets itself up in the first.
_KEEP_THEIR_OWN = ("torch.", "deepspeed.", "accelerate.")
_OF_EVERY_MODULE = frozenset(vars(nn.Module())) - {"training"}
# Not those of state dicts: engines register them in the first forward, and need them to save.
_HOOKS = {name for name in _OF_EVERY_MODULE if name.startswith(("_forward", "_backward"))}
_CACHES = {"past_key_values", "layer_past"}  # recomputing a layer would append to them twice


class Snapshot:
    """A copy of the random states, the device's too, and of the state that a model's forward may change.

    That state is the buffers (statistics of batch normalisation, counters, codebooks), even if a forward rebinds their
    names, and the attributes and hooks of the model's own modules: transformers installs hooks that capture hidden
    states in the first forward, and marks that by an attribute.

    Args:
        model: The model in training; `None` for the random states alone.
        device: Its device.
    """

    def __init__(self, model: nn.Module | None, device: torch.device):
        self._generators = RandomState.capture()
        self._device: Any = None if device.type == "cpu" else torch.get_device_module(device)
        self._device_generator = None if self._device is None else self._device.get_rng_state()
        self._copy(nn.Module() if model is None else model)

    def _copy(self, model: nn.Module) -> None:
        """Copies the buffers and attributes of a model's modules."""
        modules = list(model.modules())
        self._bound = [(module, dict(_buffers(module))) for module in modules]
        own = [module for module in modules if not type(module).__module__.startswith(_KEEP_THEIR_OWN)]
        self._attributes = [(module, _attributes(module)) for module in own]
        self._hooks = [(hooks, hooks.copy()) for module in own for hooks in _hooks(module)]
        tensors = {id(buffer): (name, buffer) for name, buffer in model.named_buffers()}
        for _, attributes in self._attributes:
            tensors |= {id(value): (name, value) for name, value in attributes.items() if isinstance(value, Tensor)}
        self._copies: list[tuple[Tensor, Tensor]] = []
        self._watched: list[tuple[str, Tensor, int]] = []
        num_bytes = 0
        for name, tensor in sorted(tensors.values(), key=lambda named: named[1].nbytes):
            num_bytes += tensor.nbytes
            if num_bytes <= _MOST_BYTES:
                self._copies.append((tensor, tensor.detach().clone()))
            else:
                self._watched.append((name, tensor, _version(tensor)))

    def restore(self) -> None:
        """Restores the copied state."""
        self._generators.restore()
        if self._device is not None:
            self._device.set_rng_state(self._device_generator)
        for module, buffers in self._bound:
            _buffers(module).clear()
            _buffers(module).update(buffers)
        for module, attributes in self._attributes:
            for name in _attributes(module).keys() - attributes.keys():
                del module.__dict__[name]
            module.__dict__.update(attributes)
        for hooks, before in self._hooks:
            hooks.clear()
            hooks.update(before)
        for tensor, value in self._copies:
            tensor.data.copy_(value)  # keeps autograd's version: graphs that hold the tensor stay valid
        changed = [name for name, tensor, version in self._watched if _version(tensor) != version]
        if changed:
            logger.warning(
                "A forward beside the training changed the buffers %s, which are too large to restore.", changed
            )


def _buffers(module: nn.Module) -> dict[str, Tensor | None]:
    return module._buffers  # noqa: SLF001  # to rebind names as well as to copy values


def _version(tensor: Tensor) -> int:
    return tensor._version  # noqa: SLF001  # autograd's count of changes in place has no public name


def _attributes(module: nn.Module) -> dict[str, Any]:
    return {name: value for name, value in vars(module).items() if name not in _OF_EVERY_MODULE}


def _hooks(module: nn.Module) -> list[dict[int, Any]]:
    return [hooks for name, hooks in vars(module).items() if name in _HOOKS and isinstance(hooks, dict)]


@contextlib.contextmanager
def gradients_stashed(parameters: Sequence[nn.Parameter]) -> Iterator[Sequence[nn.Parameter]]:
    """Stashes gradients inside the context, and restores them afterwards.

    Yields:
        The parameters, without gradients.
    """
    kept = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    try:
        yield parameters
    finally:
        for parameter, gradient in zip(parameters, kept, strict=True):
            parameter.grad = gradient


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Runs a model in evaluation mode without gradients; the mode of each module is restored."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes:
            module.training = mode


@contextlib.contextmanager
def undisturbed(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Runs a model as `evaluating` does; random states and what its forwards change are restored, too."""
    before = Snapshot(model, device)
    try:
        with evaluating(model):
            yield
    finally:
        before.restore()


def frozen_copy(model: nn.Module) -> nn.Module:
    """Copies a model as it is now; the copy is in evaluation mode and is not trained."""
    return copy.deepcopy(model).eval().requires_grad_(requires_grad=False)


@contextlib.contextmanager
def checkpointing_kept(model: nn.Module) -> Iterator[None]:
    """Keeps gradient checkpointing in evaluation mode, where transformers switches it off.

    Its layers stay in evaluation mode, so they drop nothing. Code of others tests the mode of the module that holds the
    layers: this module alone is in training mode.
    """
    with contextlib.ExitStack() as stack:
        for module in model.modules():
            if _is_checkpointed(module):
                forward = partial(_checkpointed, module, module.forward)
                stack.enter_context(attributes_held(module, forward=forward))
            elif _checkpoints_itself(module):
                stack.enter_context(attributes_held(module, training=True))
        yield


def _is_checkpointed(module: nn.Module) -> bool:
    return isinstance(module, GradientCheckpointingLayer) and module.gradient_checkpointing


def _checkpoints_itself(module: nn.Module) -> bool:
    is_others = not type(module).__module__.startswith("transformers.")
    is_on = is_others and bool(getattr(module, "gradient_checkpointing", False))
    return is_on and not any(map(_is_checkpointed, module.modules()))


def _checkpointed(module: Any, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    kwargs |= dict.fromkeys(kwargs.keys() & _CACHES)
    return module._gradient_checkpointing_func(partial(forward, **kwargs), *args)  # noqa: SLF001


@contextlib.contextmanager
def model_restored(model: Any, args: TrainingArguments, training: bool) -> Iterator[None]:
    """Restores mode, random state, running statistics and the Trainer's own settings afterwards.

    Args:
        model: The model in training.
        args: The Trainer's arguments; inside, losses count the items of their argument.
        training: The mode inside.
    """
    was_training = model.training
    averages, args.average_tokens_across_devices = args.average_tokens_across_devices, True
    start = Snapshot(model, args.device)
    try:
        model.train(training)
        yield
    finally:
        start.restore()
        model.train(was_training)
        args.average_tokens_across_devices = averages
