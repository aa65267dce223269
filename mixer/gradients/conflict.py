"""Weights for conflicting gradients: the methods of the package `torchjd`, by name or as objects of it."""

import importlib
import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mixer.utils.arrays import FloatArray
from mixer.utils.random_state import seeded
from mixer.utils.text import did_you_mean

Weighting = Callable[[Tensor], Tensor]

# Names of the papers: torchjd's class, and arguments that it has no default for. CAGrad's c is that of the authors'
# runs on NYU-v2 (github.com/Cranial-XIX/CAGrad, nyuv2/run.sh).
_CLASSES: dict[str, tuple[str, dict[str, Any]]] = {
    "pcgrad": ("PCGradWeighting", {}),
    "cagrad": ("CAGradWeighting", {"c": 0.4}),
    "mgda": ("MGDAWeighting", {}),
    "upgrad": ("UPGradWeighting", {}),
}
NAMES = tuple(_CLASSES)
_OF_EVERY_MODULE = frozenset(vars(nn.Module()))


class Aggregator:
    """Weights the streams' gradients by their Gramian, so only products of gradients are needed.

    Weights are scaled to a mean of 1 for gradients that are orthogonal and equally long: these are added up, as without
    an aggregator, whether torchjd's weights are those of a sum or of a mean. The Gramian is divided by its trace first,
    so the scale of the gradients does not matter (torchjd ignores conflicts if the trace is below 1e-4).

    Args:
        method: A name of `NAMES`, or an aggregator or weighting of torchjd that only needs the Gramian.
        num_streams: Number of streams.

    Raises:
        ValueError: If the name is unknown, torchjd or a solver of it is not installed, or the aggregator needs more
            than the Gramian, or has a state or an entry per stream.
        TypeError: If `method` is of another type.

    Example:
        >>> aggregator = Aggregator("pcgrad", num_streams=2)  # doctest: +SKIP
        >>> aggregator.weigh(np.array([[1.0, -1.0], [-1.0, 2.0]]), key=[0])  # doctest: +SKIP
        array([2. , 1.5])
    """

    def __init__(self, method: Any, num_streams: int):
        self.name, self._weighting = _weighting_of(method)
        self.description = _description(self._weighting)  # before its use, which may change its counters
        self._scales: dict[int, float] = {}
        if num_streams > 1:  # fails now rather than in the first step
            self._scale(num_streams)

    def weigh(self, gramian: FloatArray, key: Sequence[int]) -> FloatArray:
        """Computes the weights of the gradients.

        Args:
            gramian: `[num_present, num_present]`: products of the gradients, finite, with a positive diagonal.
            key: Seed of the random numbers; global generators are left as they are.

        Returns:
            `[num_present]`: the weights.

        Raises:
            ValueError: If torchjd fails.
        """
        with seeded(*key):
            weights = self._solve(gramian / np.trace(gramian))
        return weights * self._scale(len(gramian))

    def _scale(self, num_present: int) -> float:
        """Factor that gives orthogonal gradients of equal length a mean weight of 1."""
        if num_present not in self._scales:
            with seeded(0):
                total = float(self._solve(np.eye(num_present) / num_present).sum())
            if total <= 0.0:
                raise ValueError(
                    f"conflict={self.name}: weights of orthogonal gradients must add up to more than 0, got {total:g}."
                )
            self._scales[num_present] = num_present / total
        return self._scales[num_present]

    def _solve(self, gramian: FloatArray) -> FloatArray:
        try:
            with torch.no_grad():
                weights: FloatArray = self._weighting(torch.from_numpy(gramian)).detach().double().cpu().numpy()
        except Exception as error:  # solvers fail in many ways
            raise ValueError(
                f"conflict={self.name} found no weights for the Gramian {gramian.tolist()}: {error}"
            ) from error
        if weights.shape != (len(gramian),) or not np.isfinite(weights).all():
            raise ValueError(
                f"conflict={self.name} must give {len(gramian)} finite weights for the Gramian {gramian.tolist()}, got "
                f"{weights.tolist()}."
            )
        return weights


def known_name(name: str) -> str:
    """Finds a name of `NAMES`, ignoring case, `_` and `-`.

    Raises:
        ValueError: If the name is unknown.
    """
    keys = {_key(known): known for known in NAMES}
    if _key(name) not in keys:
        hint = did_you_mean(name.lower(), NAMES)
        raise ValueError(f"conflict: no aggregator is called {name!r}; choose one of {list(NAMES)}.{hint}")
    return keys[_key(name)]


def _key(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()


def _description(weighting: Any) -> str:
    """Name and settings of a weighting, the same for a name and for the equal object of torchjd."""
    names = {class_name: known for known, (class_name, _) in _CLASSES.items()}
    name, settings = names.get(type(weighting).__name__, type(weighting).__name__), dict[str, Any]()
    for module in weighting.modules():
        settings |= {key.lstrip("_"): value for key, value in vars(module).items() if key not in _OF_EVERY_MODULE}
    text = ", ".join(f"{key}={_value_text(value)}" for key, value in sorted(settings.items()) if value is not None)
    return f"{name}({text})" if text else name


def _value_text(value: Any) -> str:
    """Formats a value without addresses, which differ between processes."""
    return str(value.tolist()) if isinstance(value, Tensor) else re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def _torchjd(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "torchjd":
            raise
        raise ValueError(
            "conflict needs torchjd, which is not installed: pip install 'adaptive-mixer[conflict]'."
        ) from None


def _weighting_of(method: Any) -> tuple[str, Weighting]:
    """Name and weighting `[num_present, num_present] -> [num_present]` of the option `conflict`."""
    if isinstance(method, str):
        return known_name(method), _create(known_name(method))
    if inspect.isclass(method):
        raise TypeError(f"conflict is the class {method.__name__}; give an instance: conflict={method.__name__}(...).")
    name = type(method).__name__
    return name, _extract(method, name)


def _create(name: str) -> Weighting:
    class_name, defaults = _CLASSES[name]
    try:
        weighting: Weighting = getattr(_torchjd("torchjd.aggregation"), class_name)(**defaults)
    except ImportError as error:
        raise ValueError(
            f"conflict={name!r} needs a solver ({str(error).partition('. ')[0]}): pip install "
            "'adaptive-mixer[conflict-solvers]' (some is copyleft), or choose 'pcgrad' or 'mgda', which need none."
        ) from None
    return weighting


def _extract(method: Any, name: str) -> Weighting:
    """Returns the stateless Gramian weighting of a torchjd object."""
    torchjd = _torchjd("torchjd.aggregation")
    if not isinstance(method, (torchjd.Aggregator, torchjd.Weighting)):
        raise TypeError(f"conflict must be one of {list(NAMES)}, or an aggregator of torchjd, got {name}.")
    if any(isinstance(part, _torchjd("torchjd").Stateful) for part in method.modules()):
        raise ValueError(
            f"conflict={name} remembers earlier gradients, which no checkpoint holds: a resumed run would differ. "
            "Choose an aggregator without a state."
        )
    weighting = getattr(method, "gramian_weighting", method)
    if getattr(weighting, "pref_vector", None) is not None or isinstance(weighting, torchjd.ConstantWeighting):
        raise ValueError(
            f"conflict={name} has an entry per stream, but not every step has every stream. Leave pref_vector out, and "
            "weight streams by loss_weight."
        )
    if isinstance(weighting, torchjd.Weighting):
        return weighting  # type: ignore[no-any-return]
    raise ValueError(
        f"conflict={name} needs the whole gradients, not only their products. Choose an aggregator that works on the "
        "Gramian (torchjd.aggregation.GramianWeightedAggregator), such as 'upgrad'."
    )
