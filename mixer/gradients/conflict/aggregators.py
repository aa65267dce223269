"""What streams' gradients are multiplied by where they are at odds, on one scale whatever the aggregator."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mixer.gradients.conflict.weightings import Weighting, described, weighting_of
from mixer.utils.arrays import FloatArray
from mixer.utils.random_state import seeded


class Aggregator:
    """Weighs streams' gradients by their Gramian, so that no more than products of gradients is needed.

    Weights are scaled such that gradients that are orthogonal and equally long are multiplied by 1 on average: they are
    added up, as without an aggregator, whether torchjd's weights are those of a sum or of a mean. They are found from
    the Gramian over its trace, so that it does not matter how long gradients are (torchjd ignores conflicts where their
    squared lengths add up to less than 1e-4).

    Where it has an entry for each stream (`pref_vector`), and those of the streams that are present add up to no more
    than 0, such as `[1, 0, 0]` once the first stream has left, the weights are 1: the ordinary gradient, as for one
    stream.

    Args:
        given: A name of `NAMES`, or an aggregator or a weighting of torchjd that goes by the Gramian.
        options: What the class that a name stands for is made with, such as `{"c": 0.4}` for `"cagrad"`.
        num_streams: Number of streams.

    Raises:
        ValueError: If there is none of that name, torchjd or a solver of it is not installed, or the aggregator needs
            more than the Gramian, or a state.
        TypeError: If it is something else.

    Example:
        >>> aggregator = Aggregator("pcgrad", {}, num_streams=2)  # doctest: +SKIP
        >>> aggregator.weigh(np.array([[1.0, -1.0], [-1.0, 2.0]]), stream_ids=[0, 1], key=[0])  # doctest: +SKIP
        array([2. , 1.5])
    """

    def __init__(self, given: Any, options: Mapping[str, Any], num_streams: int):
        self._num_streams = num_streams
        self.name, self._weighting = weighting_of(given, options)
        self.description = described(self._weighting, options)  # before it is used, which may change what it counts
        self._vector = _vector_name(self._weighting)
        if self._vector is not None and len(getattr(self._weighting, self._vector)) != num_streams:
            found = len(getattr(self._weighting, self._vector))
            raise ValueError(
                f"conflict={self.name}: {self._vector} must have an entry a stream ({num_streams}), got {found}."
            )
        self._scales: dict[tuple[int, ...], float] = {}
        if num_streams > 1:  # finds out at once whether it works
            self._scale(tuple(range(num_streams)))

    def weigh(self, gramian: FloatArray, stream_ids: Sequence[int], key: Sequence[int]) -> FloatArray:
        """Finds what gradients are multiplied by.

        Args:
            gramian: `[num_present, num_present]`: their products, finite, of gradients that are not 0.
            stream_ids: `[num_present]`: the streams that they are of.
            key: What random numbers are drawn for; global generators stay as they are.

        Returns:
            `[num_present]`: the weights.

        Raises:
            ValueError: If torchjd finds none.
        """
        present = tuple(stream_ids)
        if not self._are_wanted(present):
            return np.ones(len(present))
        with seeded(*key):
            weights = self._found(gramian / np.trace(gramian), present)
        return weights * self._scale(present)

    def _are_wanted(self, present: tuple[int, ...]) -> bool:
        """Whether the entries of some of the streams leave something of their gradients."""
        if self._vector is None or len(present) == self._num_streams:
            return True
        return float(self._entries(present).sum()) > 0.0

    def _entries(self, present: tuple[int, ...]) -> Tensor:
        whole: Tensor = getattr(self._weighting, str(self._vector)).detach().double().cpu()
        return whole[list(present)]

    def _scale(self, present: tuple[int, ...]) -> float:
        """Gives what makes the weights of orthogonal gradients of one length 1 on average."""
        if present not in self._scales:
            with seeded(0):
                total = float(self._found(np.eye(len(present)) / len(present), present).sum())
            if total <= 0.0:
                raise ValueError(
                    f"conflict={self.name}: weights of orthogonal gradients must add up to more than 0, got "
                    f"{total:g}: the step would go uphill."
                )
            self._scales[present] = len(present) / total
        return self._scales[present]

    def _found(self, gramian: FloatArray, present: tuple[int, ...]) -> FloatArray:
        try:
            with torch.no_grad():
                found = self._restricted(present)(torch.from_numpy(gramian))
            weights: FloatArray = found.detach().double().cpu().numpy()
        except Exception as error:  # solvers fail in many ways
            raise ValueError(
                f"conflict={self.name} found no weights for the Gramian {gramian.tolist()}: {error}"
            ) from error
        if weights.shape != (len(present),) or not np.isfinite(weights).all():
            raise ValueError(
                f"conflict={self.name} must give {len(present)} finite weights for the Gramian {gramian.tolist()}, got "
                f"{weights.tolist()}."
            )
        return weights

    def _restricted(self, present: tuple[int, ...]) -> Weighting:
        """Gives the weighting for the streams that are present, where it holds an entry for each stream."""
        if self._vector is None:
            return self._weighting
        weighting = copy.deepcopy(self._weighting)
        setattr(weighting, self._vector, self._entries(present))
        return weighting


def _vector_name(weighting: Any) -> str | None:
    """Says which attribute of a weighting has an entry for each stream."""
    if type(weighting).__name__ == "ConstantWeighting":
        return "weights"
    return None if getattr(weighting, "pref_vector", None) is None else "pref_vector"
