"""Discovery of the parameters that a probe can read, and of those it has to leave out."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch

import numpy as np
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor import DTensor
from transformers.utils import logging

from mixer.gradients.probe.layers.captures import Capture, LinearCapture, own_forward
from mixer.gradients.probe.layers.embeddings import EmbeddingCapture
from mixer.gradients.probe.layers.norms import NormCapture
from mixer.gradients.probe.reading import Desk
from mixer.gradients.probe.sums import Target
from mixer.utils.arrays import FloatArray
from mixer.utils.errors import InvalidValueError, wrong_value
from mixer.utils.text import first_of, listed

logger = logging.get_logger(__name__)

_KINDS: tuple[type[Capture], ...] = (LinearCapture, EmbeddingCapture, NormCapture)

_WRAPPERS = ("module", "_orig_mod", "_checkpoint_wrapped_module")  # added to names by DDP and torch
_NOT_BY_ROW = ("relative_attention_bias",)  # embeddings that the rows of a batch share (T5)


class Covered:
    """The probed part of a model: the parameters that can be read; it warns of the others.

    Args:
        model: The model, wrapped or not.
        layers: Patterns of names of layers (`"*.mlp.*"`); `None` for all.
        desk: Access to the reading of the present micro-batch, for the layers.
        any_kind: Whether whole gradients are read, which works for any kind of layer.
        warned: Names of parameters that a warning has named; new ones are added.

    Attributes:
        parameters: The parameters, in the order of the targets.
        targets: Their descriptions.
        captures: The layers that hold them; empty if whole gradients are read.
        left_out: Numbers of the parameters that could not be read in the last measurement.

    Raises:
        ValueError: If no layer matches, no matching layer can be read, or the model is sharded in an unsupported way.
    """

    def __init__(
        self, model: nn.Module, layers: Sequence[str] | None, desk: Desk, any_kind: bool, warned: set[str] | None = None
    ):
        owners = {parameter: own for parameter, own in _owners_of(model).items() if parameter.requires_grad}
        wanted = {parameter: own for parameter, own in owners.items() if layers is None or own.match(layers)}
        _check(model, owners, wanted, layers, any_kind)
        kinds = {module: _kind(name, module) for own in wanted.values() for name, module in own.modules}
        readable = {
            parameter: own for parameter, own in wanted.items() if any_kind or _is_readable(parameter, own, kinds)
        }
        self.parameters = tuple(readable)
        reason = _replaced(kinds)
        if not self.parameters:
            kinds_here = sorted({type(module).__name__ for module in kinds})
            text = f"None of the layers can be read, of kinds {kinds_here}. {reason}Use homogeneous=True."
            raise InvalidValueError(text, option="model")
        self.targets = tuple(
            Target.of(number, own.name, parameter) for number, (parameter, own) in enumerate(readable.items())
        )
        self.captures = () if any_kind else _captures(kinds, self.parameters, desk)
        self.left_out: set[int] = set()
        self._num_elements = sum(parameter.numel() for parameter in owners)  # of all trainable parameters
        self._warned = set() if warned is None else warned
        self.warn(((own.name, parameter) for parameter, own in wanted.items() if parameter not in readable), reason)

    @property
    def read(self) -> list[int]:
        """Numbers of the parameters that count."""
        return [target.index for target in self.targets if target.index not in self.left_out]

    @property
    def share(self) -> float:
        """Probed share of the elements of all trainable parameters."""
        return sum(self.parameters[index].numel() for index in self.read) / self._num_elements

    def leave_out(self, failures: FloatArray) -> None:
        """Leaves parameters out of this measurement, and warns of new ones.

        Later measurements are not affected: the content of one batch must not change later statistics, or a resumed run
        would differ.

        Args:
            failures: `[num_parameters]`: not 0 for a parameter that could not be read; the same on all ranks.

        Raises:
            ValueError: If no parameter remains.
        """
        self.left_out = set(np.flatnonzero(failures).tolist())
        self.warn((self.targets[index].name, self.parameters[index]) for index in self.left_out)
        if not self.read:
            text = "has no readable layer: give one of stream_ids per row of the inputs, and run a backward; or use"
            raise wrong_value("model", f"{text} homogeneous=True.")

    def warn(self, missed: Iterable[tuple[str, nn.Parameter]], reason: str = "") -> None:
        """Warns once of each parameter that is left out.

        Args:
            missed: Names and parameters.
            reason: A possible reason, besides the kind of the layer.
        """
        sizes = {name: parameter.numel() for name, parameter in missed if name not in self._warned}
        if not sizes:
            return
        self._warned.update(sizes)
        names = sorted(sizes, key=lambda name: -sizes[name])
        logger.warning(
            "The gradient probe cannot tell the streams apart in %s: %.1f %% of the trainable parameters, left out of "
            "its statistics. %shomogeneous=True reads any kind of layer.",
            *(listed(first_of(names, 5)), 100.0 * sum(sizes.values()) / self._num_elements, reason),
        )


@dataclass
class _Owners:
    """The layers that hold a parameter."""

    name: str
    modules: list[tuple[str, nn.Module]]

    def match(self, layers: Sequence[str]) -> bool:
        """Whether the name of one of the layers has one of some patterns."""
        return any(fnmatch(name, pattern) for name, _ in self.modules for pattern in layers)


def _check(
    model: nn.Module,
    owners: dict[nn.Parameter, _Owners],
    wanted: dict[nn.Parameter, _Owners],
    layers: Sequence[str] | None,
    any_kind: bool,
) -> None:
    modules = list(model.modules())
    if any(isinstance(module.__dict__.get("forward"), Capture) for module in modules):
        raise InvalidValueError(
            "another GradientProbe is reading this model: call its finish() or cancel() first.", option="model"
        )
    is_fsdp1 = any(isinstance(module, FullyShardedDataParallel) for module in modules)
    if is_fsdp1 or (owners and not any(parameter.numel() for parameter in owners)):
        text = "FSDP1 or DeepSpeed ZeRO-3 shards the parameters in a way that hides them from their layers. Use FSDP2"
        raise InvalidValueError(f"{text} (fully_shard, fsdp_version=2), or DDP.", option="model")
    if not owners:
        raise wrong_value(
            "model", "has no trainable parameters, so there is no gradient to measure: set requires_grad on some."
        )
    if not wanted:
        names = sorted({name for own in owners.values() for name, _ in own.modules})
        raise wrong_value("layers", f"={layers} matches no trainable parameter; layers are named like {names[:5]}.")
    if any_kind and any(isinstance(parameter, DTensor) for parameter in wanted):
        raise wrong_value(
            "homogeneous", "=True reads each rank's own gradients, and FSDP2 shards them. Use mode='sketch'."
        )


def _owners_of(model: nn.Module) -> dict[nn.Parameter, _Owners]:
    owners: dict[nn.Parameter, _Owners] = {}
    for path, module in model.named_modules():
        path = ".".join(part for part in path.split(".") if part not in _WRAPPERS)
        for name, parameter in module.named_parameters(recurse=False):
            own = owners.setdefault(parameter, _Owners(f"{path}.{name}" if path else name, []))
            own.modules.append((path, module))
    return owners


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
    # A layer of unknown kind may hold the parameter without using it (heads of masked models hold their decoder's
    # bias). `PieceCheck` verifies that, which needs whole gradients.
    return any(known) and (all(known) or not isinstance(parameter, DTensor))


def _captures(
    kinds: dict[nn.Module, type[Capture] | None], readable: Sequence[nn.Parameter], desk: Desk
) -> tuple[Capture, ...]:
    numbers = {parameter: number for number, parameter in enumerate(readable)}
    captures = []
    for module, kind in kinds.items():
        parameters = dict(module.named_parameters(recurse=False))
        indices = {name: numbers[own] for name, own in parameters.items() if own in numbers}
        if kind is not None and indices:
            captures.append(kind(module, indices, desk))
    return tuple(captures)
