"""A stand-in for a GPU: tensors that say they are elsewhere, and how often the host waits for their values."""

import os
from collections import Counter
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

DEVICE = torch.device("meta")
_ATEN = torch.ops.aten
_READS = {  # they give a number, or a shape that depends on values
    *(_ATEN._local_scalar_dense, _ATEN.is_nonzero, _ATEN.equal),
    *(_ATEN.nonzero, _ATEN.masked_select, _ATEN.bincount, _ATEN.repeat_interleave),
    *(_ATEN._unique, _ATEN._unique2, _ATEN.unique_consecutive, _ATEN.unique_dim),
}
_BY_INDEX = {_ATEN.index, _ATEN.index_put, _ATEN.index_put_, _ATEN._index_put_impl_, _ATEN._unsafe_index}
_COPIES = {_ATEN._to_copy, _ATEN.copy_}
_OF_AUTOCAST = ("autocast", "is_autocast_enabled", "get_autocast_dtype")


class DeviceTensor(Tensor):
    """A tensor on the stand-in; its values are those of a tensor on the CPU, which only `StandIn` reaches."""

    values: Tensor

    @staticmethod
    def __new__(cls, values: Tensor) -> "DeviceTensor":
        is_dense = values.layout == torch.strided
        place = {"strides": values.stride(), "storage_offset": values.storage_offset()} if is_dense else {}
        own: DeviceTensor = Tensor._make_wrapper_subclass(
            cls, values.size(), dtype=values.dtype, device=DEVICE, **place
        )
        own.values = values
        return own

    def __repr__(self, **_: Any) -> str:
        return f"DeviceTensor({self.values!r})"

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{function} of a tensor on the stand-in, which is not active")


class StandIn(TorchDispatchMode):
    """While active, the stand-in computes, and is the device of new training arguments without `use_cpu`.

    It counts what makes the host wait for a GPU: a value or a shape that is read off it, and a copy to or from it
    without `non_blocking`. An operation on tensors of both sides is an error, as on a GPU, but for scalars and indices.

    Attributes:
        waits: Number of waits by operation.
        num_pinned: Number of tensors that were pinned.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waits: Counter[str] = Counter()
        self.num_pinned = 0
        module = SimpleNamespace(get_rng_state=torch.get_rng_state, set_rng_state=torch.set_rng_state)
        self._held = [
            patch.dict(os.environ, {"ACCELERATE_TORCH_DEVICE": DEVICE.type}),
            patch.object(torch, DEVICE.type, module, create=True),
            *(patch.object(torch, name, _as_on_cpu(getattr(torch, name))) for name in _OF_AUTOCAST),
            _Copying(self),
        ]

    def __enter__(self) -> "StandIn":
        for held in self._held:
            held.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        for held in reversed(self._held):
            held.__exit__(*error)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [value for value in tree_flatten((args, kwargs))[0] if isinstance(value, Tensor)]
        own = {id(value.values): value for value in tensors if isinstance(value, DeviceTensor)}
        goes_to = kwargs.get("device")
        if not own and goes_to != DEVICE:
            return function(*args, **kwargs)
        operation = function.overloadpacket
        is_on_device = isinstance(args[0], DeviceTensor) if operation is _ATEN.copy_ else goes_to in (None, DEVICE)
        if why := _why_it_waits(operation, args, kwargs, tensors, is_on_device):
            self.waits[why] += 1
        result = function(*tree_map(_on_cpu, args), **tree_map(_on_cpu, kwargs))
        if operation is _ATEN.copy_:
            return args[0]
        return tree_map(lambda value: _on_device(value, own), result) if is_on_device else result


class _Copying(TorchFunctionMode):
    """Makes tensors of Python's numbers, and lists of tensors, as for a GPU: on the CPU, with a copy."""

    def __init__(self, stand_in: StandIn):
        super().__init__()
        self._stand_in = stand_in

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if function in (torch.tensor, torch.as_tensor) and kwargs.get("device") == DEVICE:
            kwargs["device"] = None
            return function(*args, **kwargs).to(DEVICE)
        if function is Tensor.pin_memory:
            self._stand_in.num_pinned += 1
            return args[0].clone()
        if function is Tensor.tolist and isinstance(args[0], DeviceTensor):
            return args[0].cpu().tolist()
        return function(*args, **kwargs)


def _why_it_waits(operation: Any, args: Any, kwargs: Any, tensors: list[Tensor], is_on_device: bool) -> str | None:
    others = [value for value in tensors if not isinstance(value, DeviceTensor)]
    name = operation.__name__
    if operation in _COPIES:
        is_from_device = isinstance(args[int(operation is _ATEN.copy_)], DeviceTensor)
        blocks = not (kwargs.get("non_blocking") or (operation is _ATEN.copy_ and args[2:] == (True,)))
        return f"{name} {'from' if is_from_device else 'to'}" if blocks and is_from_device != is_on_device else None
    if operation in _BY_INDEX:
        indices = [index for index in args[1] if index is not None]
        is_mask = any(index.dtype in (torch.bool, torch.uint8) for index in indices)
        return f"{name} by mask" if is_mask else f"{name} by indices of the CPU" if others else None
    assert all(value.dim() == 0 for value in others), f"{name} of a tensor on the device and another on the CPU"
    return name if operation in _READS and kwargs.get("output_size") is None else None


def _as_on_cpu(function: Any) -> Any:
    """Makes a function of a type of device take the stand-in for the CPU."""
    return lambda kind="cpu", *args, **kwargs: function("cpu" if kind == DEVICE.type else kind, *args, **kwargs)


def _on_cpu(value: Any) -> Any:
    if isinstance(value, DeviceTensor):
        return value.values
    return torch.device("cpu") if isinstance(value, torch.device) and value == DEVICE else value


def _on_device(value: Any, own: Mapping[int, DeviceTensor]) -> Any:
    if not isinstance(value, Tensor):
        return value
    return own[id(value)] if id(value) in own else DeviceTensor(value)
