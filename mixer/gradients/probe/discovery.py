"""Which parameters of a model a probe can read, and by which layers."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch

from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor import DTensor

from mixer.gradients.probe.coverage import Covered
from mixer.gradients.probe.layers.captures import Capture, LinearCapture, own_forward
from mixer.gradients.probe.layers.embeddings import EmbeddingCapture
from mixer.gradients.probe.layers.norms import NormCapture
from mixer.gradients.probe.reading import Desk
from mixer.gradients.probe.rows import at_least_float32
from mixer.gradients.probe.sums import Target

_KINDS: tuple[type[Capture], ...] = (LinearCapture, EmbeddingCapture, NormCapture)

_WRAPPERS = ("module", "_orig_mod", "_checkpoint_wrapped_module")  # what DDP and torch put between names
_NOT_BY_ROW = ("relative_attention_bias",)  # embeddings that the rows of a batch share (T5)


@dataclass
class _Owners:
    name: str
    modules: list[tuple[str, nn.Module]]


def discover(
    model: nn.Module, layers: Sequence[str] | None, desk: Desk, any_kind: bool, told: set[str] | None = None
) -> Covered:
    """Finds the parameters that can be read, and warns of those that cannot.

    Args:
        model: The model, wrapped or not.
        layers: Patterns of names of layers (`"*.mlp.*"`); `None` for all.
        desk: Where layers find what reads the present micro-batch.
        any_kind: Whether whole gradients are read, which needs no known kind of layer.
        told: Names of parameters that a warning has named already; new ones are added.

    Returns:
        What is read.

    Raises:
        ValueError: If no layer matches, none that does can be read, or the model is sharded in a way that hides it.
    """
    owners = {one: own for one, own in _owners_of(model).items() if one.requires_grad}
    wanted = {one: own for one, own in owners.items() if layers is None or _matches(own, layers)}
    _check(model, owners, wanted, layers, any_kind)
    kinds = {module: _kind(name, module) for own in wanted.values() for name, module in own.modules}
    readable = [one for one, own in wanted.items() if any_kind or _is_readable(one, own, kinds)]
    reason = _replaced(kinds)
    if not readable:
        found = sorted({type(module).__name__ for own in wanted.values() for _, module in own.modules})
        raise ValueError(
            f"None of the layers can be read: they are of kinds {found}, and what is known is Linear, Conv1D, "
            f"Embedding, LayerNorm and RMSNorm. {reason}Use homogeneous=True, with micro-batches of one stream each."
        )
    targets = tuple(_target(index, wanted[one].name, one) for index, one in enumerate(readable))
    captures = () if any_kind else _captures(kinds, readable, desk)
    covered = Covered(tuple(readable), targets, captures, sum(one.numel() for one in owners))
    covered.told = covered.told if told is None else told
    covered.warn(((own.name, one) for one, own in wanted.items() if one not in set(readable)), reason)
    return covered


def _check(
    model: nn.Module,
    owners: dict[nn.Parameter, _Owners],
    wanted: dict[nn.Parameter, _Owners],
    layers: Sequence[str] | None,
    any_kind: bool,
) -> None:
    modules = list(model.modules())
    if any(isinstance(module.__dict__.get("forward"), Capture) for module in modules):
        raise ValueError("another GradientProbe is reading this model: call its finish() or cancel() first.")
    is_fsdp1 = any(isinstance(module, FullyShardedDataParallel) for module in modules)
    if is_fsdp1 or (owners and not any(map(_size, owners))):
        raise ValueError(
            "FSDP1 or DeepSpeed ZeRO-3 shards the parameters so that their layers cannot be read. Use FSDP2 "
            "(fully_shard, fsdp_version=2), or DDP."
        )
    if not owners:
        raise ValueError(
            "The model has no trainable parameters, so there is no gradient to measure: set requires_grad on some."
        )
    if not wanted:
        names = sorted({name for own in owners.values() for name, _ in own.modules})
        raise ValueError(f"layers={layers} matches no trainable parameter; layers are named like {names[:5]}.")
    if any_kind and any(isinstance(one, DTensor) for one in wanted):
        raise ValueError(
            "homogeneous=True reads each rank's own gradients, and FSDP2 shards them. Use homogeneous=False with "
            "mode='sketch', or DDP."
        )


def _size(parameter: nn.Parameter) -> int:
    return parameter.numel()


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
    if name.endswith(_NOT_BY_ROW) or _is_replaced(module):
        return None
    return next((kind for kind in _KINDS if kind.knows(module)), None)


def _is_replaced(module: nn.Module) -> bool:
    return bool(module.__dict__.get("forward", own_forward(module)) != own_forward(module))


def _replaced(modules: Iterable[nn.Module]) -> str:
    found = sorted({type(module).__name__ for module in modules if _is_replaced(module)})
    return f"Something else (hooks of accelerate?) runs in place of the forward of some {found}. " if found else ""


def _is_readable(parameter: nn.Parameter, owners: _Owners, kinds: dict[nn.Module, type[Capture] | None]) -> bool:
    known = [kinds[module] is not None for _, module in owners.modules]
    # Where a layer of unknown kind holds it too but does not use it (heads of masked models hold their decoder's bias),
    # `PieceCheck` sees to it that it is so. That needs whole gradients.
    return any(known) and (all(known) or not isinstance(parameter, DTensor))


def _captures(
    kinds: dict[nn.Module, type[Capture] | None], readable: Sequence[nn.Parameter], desk: Desk
) -> tuple[Capture, ...]:
    numbers = {one: index for index, one in enumerate(readable)}
    captures = []
    for module, kind in kinds.items():
        indices = {name: numbers[one] for name, one in module.named_parameters(recurse=False) if one in numbers}
        if kind is not None and indices:
            captures.append(kind(module, indices, desk))
    return tuple(captures)


def _target(index: int, name: str, parameter: nn.Parameter) -> Target:
    return Target(index, name, tuple(parameter.shape), parameter.device, at_least_float32(parameter.dtype))
