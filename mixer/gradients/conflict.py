"""Weights for conflicting gradients, by an aggregator of the package `torchjd`."""

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from mixer.utils.arrays import FloatArray
from mixer.utils.errors import InvalidTypeError, InvalidValueError, require
from mixer.utils.random_state import seeded

# torchjd's classes, and arguments without a default there. CAGrad's c is that of the authors' runs on NYU-v2
# (github.com/Cranial-XIX/CAGrad, nyuv2/run.sh).
_CLASSES: dict[str, dict[str, Any]] = {"PCGrad": {}, "CAGrad": {"c": 0.4}, "MGDA": {}}
NAMES = tuple(name.lower() for name in _CLASSES)


class Aggregator:
    """Weights the streams' gradients by their Gramian, so only products of gradients are needed.

    Weights are scaled to a mean of 1 for gradients that are orthogonal and equally long: these are added up, as without
    an aggregator, whether torchjd's weights are those of a sum or of a mean. The Gramian is divided by its trace first,
    so the scale of the gradients does not matter (torchjd ignores conflicts if the trace is below 1e-4).

    Args:
        method: A name of `NAMES`, or an aggregator of torchjd that only needs the Gramian.
        num_streams: Number of streams.

    Raises:
        ValueError: If the name is unknown, torchjd or a solver of it is not installed, or the aggregator has a state or
            an entry per stream.
        TypeError: If `method` is no such aggregator.

    Example:
        >>> aggregator = Aggregator("pcgrad", num_streams=2)  # doctest: +SKIP
        >>> aggregator.weigh(np.array([[1.0, -1.0], [-1.0, 2.0]]), key=[0])  # doctest: +SKIP
        array([2. , 1.5])
    """

    def __init__(self, method: Any, num_streams: int):
        aggregator = _checked(method)
        self._weighting, self.description = aggregator.gramian_weighting, repr(aggregator)
        self.name = method if isinstance(method, str) else type(method).__name__
        self._scales: dict[int, float] = {}  # by number of gradients
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
        """Returns the factor that gives orthogonal gradients of equal length a mean weight of 1."""
        if num_present in self._scales:
            return self._scales[num_present]
        with seeded(0):
            total = float(self._solve(np.eye(num_present) / num_present).sum())
        expected = "an aggregator whose weights of orthogonal gradients add up to more than 0"
        require(total > 0.0, "conflict", expected, f"{self.name}, with {total:g}")
        return self._scales.setdefault(num_present, num_present / total)

    def _solve(self, gramian: FloatArray) -> FloatArray:
        try:
            with torch.no_grad():
                weights: FloatArray = self._weighting(torch.from_numpy(gramian)).detach().double().cpu().numpy()
            if weights.shape != (len(gramian),) or not np.isfinite(weights).all():
                raise ValueError(f"its weights {weights.tolist()} are not {len(gramian)} finite numbers")
        except Exception as error:  # solvers fail in many ways
            expected = f"an aggregator that finds weights for the Gramian {gramian.tolist()} ({error})"
            raise InvalidValueError(option="conflict", expected=expected, found=self.name) from error
        return weights


def known_name(name: str) -> str:
    """Finds a name of `NAMES`, in any case.

    Raises:
        ValueError: If the name is unknown.
    """
    hint = "Others of torchjd are objects, such as conflict=torchjd.aggregation.UPGrad()."
    require(name.lower() in NAMES, "conflict", f"one of {list(NAMES)}", name, hint)
    return name.lower()


def _checked(method: Any) -> Any:
    """Makes the aggregator of a name, and refuses what a step, or a resumed run, could not use."""
    try:
        torchjd, aggregation = map(importlib.import_module, ("torchjd", "torchjd.aggregation"))
        if isinstance(method, str):
            name = list(_CLASSES)[NAMES.index(known_name(method))]
            method = getattr(aggregation, name)(**_CLASSES[name])
    except ImportError as error:
        extra = "conflict-solvers" if "requires" in str(error) else "conflict"
        expected = f"an aggregator whose packages are installed ({str(error).partition('. ')[0]})"
        hint = f"Run pip install 'adaptive-mixer[{extra}]'."
        raise InvalidValueError(option="conflict", expected=expected, found=method, hint=hint) from None
    if not isinstance(method, aggregation.GramianWeightedAggregator):
        expected = f"one of {list(NAMES)}, or an object of a torchjd.aggregation.GramianWeightedAggregator"
        raise InvalidTypeError(option="conflict", expected=expected, found=method)
    has_state = any(isinstance(part, torchjd.Stateful) for part in method.modules())
    is_fit = not has_state and getattr(method, "pref_vector", None) is None
    expected = "an aggregator without a state, which no checkpoint holds, and without a pref_vector"
    require(is_fit, "conflict", expected, method, "Weight streams by loss_weight.")
    return method
