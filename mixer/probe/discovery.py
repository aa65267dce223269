"""Which parameters of a model a probe can read, and by which layers."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch

import numpy as np
from numpy.typing import NDArray
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor import DTensor
from transformers.utils import logging

from mixer.probe.captures import Capture, EmbeddingCapture, LinearCapture, own_forward
from mixer.probe.norms import NormCapture
from mixer.probe.reading import Desk
from mixer.probe.rows import at_least_float32
from mixer.probe.sums import Target

logger = logging.get_logger(__name__)

_KINDS: tuple[type[Capture], ...] = (LinearCapture, EmbeddingCapture, NormCapture)

_WRAPPERS = ("module", "_orig_mod", "_checkpoint_wrapped_module")  # what DDP and torch put between names
_NOT_BY_ROW = ("relative_attention_bias",)  # embeddings that the rows of a batch share (T5)


@dataclass
class Covered:
    """What a probe reads of a model.

    Args:
        parameters: The parameters, in the order of the targets.
        targets: What is known of them.
        captures: The layers that hold them; none where whole gradients are read.
        num_elements: Number of elements of all trainable parameters.
        left_out: Numbers of the parameters that turned out not to be readable.
    """

    parameters: tuple[nn.Parameter, ...]
    targets: tuple[Target, ...]
    captures: tuple[Capture, ...]
    num_elements: int
    left_out: set[int] = field(default_factory=set)

    @property
    def read(self) -> list[int]:
        """Numbers of the parameters that count."""
        return [target.index for target in self.targets if target.index not in self.left_out]

    @property
    def share(self) -> float:
        """Share of the elements of all trainable parameters that is read."""
        return sum(self.parameters[index].numel() for index in self.read) / self.num_elements

    def leave_out(self, failures: NDArray[np.float64]) -> None:
        """Leaves parameters out from now on, and warns of those that are new.

        Args:
            failures: `[num_parameters]`: not 0 where a parameter could not be read; the same on all ranks.

        Raises:
            ValueError: If nothing is left.
        """
        found = set(np.flatnonzero(failures).tolist()) - self.left_out
        self.left_out |= found
        self.warn((self.targets[index].name, self.parameters[index]) for index in found)
        if not self.read:
            raise ValueError(
                "The gradient probe could read no layer: no inputs have the rows of the batch, one for each of the "
                "stream_ids given to start(), as their first axis. Give one id for each row of the inputs, or use "
                "homogeneous=True, with micro-batches of one stream each."
            )

    def warn(self, missed: Iterable[tuple[str, nn.Parameter]]) -> None:
        """Names parameters that are left out.

        Args:
            missed: Their names, and they.
        """
        sizes = {name: parameter.numel() for name, parameter in missed}
        if not sizes:
            return
        names = sorted(sizes, key=lambda name: -sizes[name])
        logger.warning(
            "The gradient probe cannot tell the streams apart in %s%s: %.1f %% of the trainable parameters, left out "
            "of its figures. homogeneous=True reads any kind of layer.",
            ", ".join(names[:5]),
            f" and {len(names) - 5} more" if len(names) > 5 else "",
            100.0 * sum(sizes.values()) / self.num_elements,
        )


@dataclass
class _Owners:
    name: str
    modules: list[tuple[str, nn.Module]]


def discover(model: nn.Module, layers: Sequence[str] | None, desk: Desk, any_kind: bool) -> Covered:
    """Finds the parameters that can be read, and warns of those that cannot.

    Args:
        model: The model, wrapped or not.
        layers: Patterns of names of layers (`"*.mlp.*"`); `None` for all.
        desk: Where layers find what reads the present micro-batch.
        any_kind: Whether whole gradients are read, which needs no known kind of layer.

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
    if not readable:
        found = sorted({type(module).__name__ for own in wanted.values() for _, module in own.modules})
        raise ValueError(
            f"None of the layers can be read: they are of kinds {found}, and what is known is Linear, Conv1D, "
            "Embedding, LayerNorm and RMSNorm. Use homogeneous=True, with micro-batches of one stream each."
        )
    targets = tuple(_target(index, wanted[one].name, one) for index, one in enumerate(readable))
    captures = () if any_kind else _captures(kinds, readable, desk)
    covered = Covered(tuple(readable), targets, captures, sum(one.numel() for one in owners))
    covered.warn((own.name, one) for one, own in wanted.items() if one not in set(readable))
    return covered


def _check(
    model: nn.Module,
    owners: dict[nn.Parameter, _Owners],
    wanted: dict[nn.Parameter, _Owners],
    layers: Sequence[str] | None,
    any_kind: bool,
) -> None:
    if any(isinstance(module, FullyShardedDataParallel) for module in model.modules()) or not any(map(_size, owners)):
        raise ValueError(
            "The model has no trainable parameters, or FSDP1 or DeepSpeed ZeRO-3 shards them so that their layers "
            "cannot be read. Use FSDP2 (fully_shard, fsdp_version=2), or DDP."
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
    if name.endswith(_NOT_BY_ROW) or module.__dict__.get("forward", own_forward(module)) != own_forward(module):
        return None  # in the second case something else already runs in its place
    return next((kind for kind in _KINDS if kind.knows(module)), None)


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
