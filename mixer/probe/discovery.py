"""Which parameters of a model a probe can read, and by which layers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch

import torch
from torch import nn

from mixer.probe.captures import KINDS, Capture
from mixer.probe.reading import Reading
from mixer.probe.sums import Target

_WRAPPERS = ("module", "_orig_mod")  # what DDP and torch.compile put before every name
_NOT_BY_ROW = ("relative_attention_bias",)  # embeddings that the rows of a batch share (T5)


@dataclass(frozen=True)
class Covered:
    """What a probe reads of a model.

    Args:
        parameters: The parameters, in the order of the targets.
        targets: What is known of them.
        captures: The layers that hold them; none where whole gradients are read.
        missed: Names of trainable parameters that were wanted and cannot be read, with their numbers of elements.
        share: Share of all trainable parameters that is read.
    """

    parameters: tuple[nn.Parameter, ...]
    targets: tuple[Target, ...]
    captures: tuple[Capture, ...]
    missed: dict[str, int]
    share: float


@dataclass
class _Owners:
    name: str
    modules: list[tuple[str, nn.Module]]


def discover(
    model: nn.Module, layers: Sequence[str] | None, reading: Callable[[], Reading | None], any_kind: bool
) -> Covered:
    """Finds the parameters that can be read.

    Args:
        model: The model, wrapped or not.
        layers: Patterns of names of layers (`"*.mlp.*"`); `None` for all.
        reading: Gives what reads the present micro-batch, or `None`.
        any_kind: Whether whole gradients are read, which needs no known kind of layer.

    Returns:
        What is read.

    Raises:
        ValueError: If no layer matches, or none that does can be read.
    """
    owners = _owners_of(model)
    trainable = {one: own for one, own in owners.items() if one.requires_grad}
    wanted = {one: own for one, own in trainable.items() if layers is None or _matches(own, layers)}
    if not wanted:
        raise ValueError(
            f"layers={layers} matches no trainable parameter; layers are named like "
            f"{sorted({name for own in trainable.values() for name, _ in own.modules})[:5]}."
        )
    kinds = {module: _kind(name, module) for own in wanted.values() for name, module in own.modules}
    readable = [one for one, own in wanted.items() if any_kind or all(kinds[module] for _, module in own.modules)]
    if not readable:
        found = sorted({type(module).__name__ for own in wanted.values() for _, module in own.modules})
        raise ValueError(
            f"None of the layers can be read: they are of kinds {found}, and what is known is Linear, Conv1D, "
            "Embedding, LayerNorm and RMSNorm. Use homogeneous=True, with micro-batches of one stream each."
        )
    targets = tuple(_target(index, wanted[one].name, one) for index, one in enumerate(readable))
    numbers = {one: index for index, one in enumerate(readable)}
    missed = {own.name: one.numel() for one, own in wanted.items() if one not in numbers}
    captures = () if any_kind else tuple(_captures(kinds, numbers, reading))
    total = sum(one.numel() for one in trainable)
    return Covered(tuple(readable), targets, captures, missed, sum(one.numel() for one in readable) / total)


def _owners_of(model: nn.Module) -> dict[nn.Parameter, _Owners]:
    owners: dict[nn.Parameter, _Owners] = {}
    for path, module in model.named_modules():
        path = ".".join(part for part in path.split(".") if part not in _WRAPPERS)
        for name, parameter in module.named_parameters(recurse=False):
            own = owners.setdefault(parameter, _Owners(f"{path}.{name}" if path else name, []))
            own.modules.append((path, module))
    return owners


def _matches(owners: _Owners, layers: Sequence[str]) -> bool:
    return any(fnmatch(name, pattern) for name, _ in owners.modules for pattern in layers)


def _kind(name: str, module: nn.Module) -> type[Capture] | None:
    if "forward" in module.__dict__ or name.endswith(_NOT_BY_ROW):  # something else already runs in its place
        return None
    return next((kind for kind in KINDS if kind.knows(module)), None)


def _captures(
    kinds: dict[nn.Module, type[Capture] | None],
    numbers: dict[nn.Parameter, int],
    reading: Callable[[], Reading | None],
) -> list[Capture]:
    captures = []
    for module, kind in kinds.items():
        own = dict(module.named_parameters(recurse=False))
        indices = {name: numbers[one] for name, one in own.items() if one in numbers}
        # A layer is read as a whole: what of it is trained has to be readable.
        if kind is not None and all(name in indices for name, one in own.items() if one.requires_grad):
            captures.append(kind(module, indices, reading))
    return captures


def _target(index: int, name: str, parameter: nn.Parameter) -> Target:
    dtype = torch.promote_types(parameter.dtype, torch.float32)
    return Target(index, name, tuple(parameter.shape), parameter.device, dtype)
