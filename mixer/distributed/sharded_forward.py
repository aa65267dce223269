"""Forwards of a model sharded by FSDP2, which a rank without memory finishes for the others."""

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

from mixer.utils.attributes import attributes_held
from mixer.utils.device import is_out_of_memory

Result = TypeVar("Result")


class ForwardGuard:
    """Lets a rank that runs out of memory in a forward without gradients take part in the rest of its collectives.

    FSDP2 gathers the weights of each of its modules before that module's forward. A rank that left the forward by an
    error would leave the others waiting in the next gathering. So the error is caught inside the module. From there on
    this rank computes nothing: modules that the model still calls return at once, and those that it does not reach any
    more are called in the order of the last complete forward, before there is one in that of the model's modules. The
    hooks that gather run around all of them.

    Forwards with gradients are only watched: their backward has collectives that cannot be made up for. Nor is a loss
    of several forwards helped.

    Args:
        model: The model as it is trained.

    Attributes:
        has_failed: Whether this rank ran out of memory, but has taken part in all collectives since.
    """

    def __init__(self, model: nn.Module):
        self._model = model
        self._units: list[nn.Module] = [
            module for module in model.modules() if isinstance(module, FSDPModule) and module is not model
        ]
        self._order = self._units  # of a complete forward
        self._reached: list[nn.Module] | None = None  # in the present forward; `None` outside of one
        self.has_failed = self._is_complete = self._has_gradients = False

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Watches the forwards inside."""
        self.has_failed, self._reached = False, None
        with contextlib.ExitStack() as stack:
            for unit in self._units:
                forward = partial(self._of_unit, unit, unit.forward)
                stack.enter_context(attributes_held(unit, forward=forward))
            whole = partial(self._whole, self._model.forward)
            stack.enter_context(attributes_held(self._model, forward=whole))
            yield

    def run(self, work: Callable[[], Result]) -> Result | None:
        """Runs work of one forward; `None` if memory ran out in it, or has done so before."""
        self._is_complete = False
        try:
            return work()
        except Exception as error:
            ran_out = self.has_failed or (is_out_of_memory(error) and not torch.is_grad_enabled())
            if not (self._is_complete and ran_out):
                raise
            self.has_failed = True
        return None

    def _of_unit(self, unit: nn.Module, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self._reached is not None:  # otherwise checkpointing computes it again
            self._reached.append(unit)
        return self._guarded(forward, *args, **kwargs)

    def _whole(self, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._reached, self._has_gradients = [], torch.is_grad_enabled()
        try:
            result = self._guarded(forward, *args, **kwargs)
            if self.has_failed:
                for unit in self._order[len(self._reached) :]:
                    unit()
            else:
                self._order = self._reached
            self._is_complete = True
        finally:
            self._reached = None
        return result

    def _guarded(self, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Runs a forward; gives `None` if memory runs out in it, or has done so before."""
        if self.has_failed:
            return None
        try:
            return forward(*args, **kwargs)
        except Exception as error:
            # Checkpointing may turn gradients off inside of a forward with them.
            if self._has_gradients or not (self.has_failed or is_out_of_memory(error)):
                raise
            self.has_failed = True  # the error, and the tensors that its traceback holds, go with this block
        return None
