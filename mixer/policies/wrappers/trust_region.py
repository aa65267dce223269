"""A limit on the change of weights per step."""

import math
from dataclasses import replace

import numpy as np

from mixer.policies.contract import Decision, Mixture, Observation, Policy
from mixer.policies.shared.decisions import in_batch, mean_factor, with_mean_factor
from mixer.policies.shared.shares import shares
from mixer.policies.shared.wrapper import Wrapper
from mixer.utils.arrays import FloatArray
from mixer.utils.errors import wrong_value
from mixer.utils.ranges import check_range

_NUM_BISECTIONS = 60  # halves an interval of 1 down to the resolution of a float


class TrustRegion(Wrapper):
    """Moves towards new weights as far as a limit allows: `w' ← w' + λ(w − w')` with the largest such λ ≤ 1.

    The limit is on the change of the logarithm of any weight, or on the Kullback-Leibler divergence `Σ_k w'_k log(w'_k
    / w_k)` from the old weights to the new, or on both. Weights below `least` count as `least`, as otherwise a weight
    could neither leave 0 nor reach it (the divergence is then that of positive numbers, `Σ_k w'_k log(w'_k / w_k) −
    w'_k + w_k`, which is the same if all weights are above). It keeps the coming samples similar to those in the
    optimizer's moments, however the inner policy jumps: Algorithm 1 of PiKE (arXiv:2502.06244) takes multiplicative
    steps for that reason. Such limits are those of mirror descent and of trust regions in reinforcement learning
    (Schulman et al. 2015, arXiv:1502.05477); the interpolation is ours. A constant target is reached in finitely many
    steps.

    Each step is a decision, even if the inner policy keeps its own; wrap this in `Hold` for rarer ones. Factors on
    losses are limited through the streams' parts of the gradient (weight times factor, as shares), and their mean over
    the samples stays the inner policy's. Samples on top of the batch size are passed on.

    Args:
        policy: The inner policy.
        max_log_change: Largest change of a `log w_k` per step, above 0; `None` for no such limit. 0.5 lets a weight
            grow by two thirds or fall by two fifths.
        max_divergence: Largest divergence per step in nats, above 0; `None` for no such limit.
        least: Smallest weight that counts, above 0.

    Raises:
        ValueError: If a value is outside its range, or there is no limit.
        TypeError: If the inner policy is no policy.
    """

    remembered = ("_last",)

    def __init__(
        self,
        policy: Policy,
        max_log_change: float | None = 0.5,
        max_divergence: float | None = None,
        least: float = 0.01,
    ):
        super().__init__(policy)
        if max_log_change is None and max_divergence is None:
            raise wrong_value(
                "max_log_change", "TrustRegion needs a limit, got None for both; give max_log_change or max_divergence."
            )
        if max_log_change is not None:
            check_range("max_log_change", max_log_change, 1e-9, 700, "0.5 lets a weight grow by two thirds")
        if max_divergence is not None:
            check_range("max_divergence", max_divergence, 1e-9, math.inf, "0.01 moves about a tenth of the weight")
        check_range("least", least, 1e-9, 1, "0.01 lets a weight of 0 become a bit more than 1 in 100 at once")
        self.max_log_change, self.max_divergence, self.least = max_log_change, max_divergence, least

    def start(self, mixture: Mixture) -> Decision:
        """Starts from the inner policy's first weights; see `Policy.start`."""
        decision = super().start(mixture)
        self._last = replace(decision, weights=decision.weights / np.sum(decision.weights))
        return self._last

    def update(self, observation: Observation) -> Decision:
        """Moves towards the inner policy's weights; see `Policy.update`."""
        decision = super().update(observation)
        old = in_batch(self._last.weights, decision.additional)
        part = self._part(old, decision.weights)
        weights = _between(shares(old), shares(decision.weights), part)
        moved = replace(decision, weights=weights, loss_weights=self._factors(old, decision))
        active = observation.is_active
        self._last = with_mean_factor(moved, mean_factor(decision, active), active)
        return self._last

    def _factors(self, old: FloatArray, decision: Decision) -> FloatArray | None:
        """`[num_streams]`: factors on the losses, limited by the streams' parts of the gradient."""
        if decision.loss_weights is None and self._last.loss_weights is None:
            return None
        ones = np.ones(len(old))
        last = ones if self._last.loss_weights is None else self._last.loss_weights
        target = ones if decision.loss_weights is None else decision.loss_weights
        return _between(last, target, self._part(shares(old) * last, shares(decision.weights) * target))

    def _part(self, old: FloatArray, new: FloatArray) -> float:
        """λ: the allowed part of the way; all of it from or to zero weights."""
        if not (np.sum(old) > 0.0 and np.sum(new) > 0.0):
            return 1.0
        old, new = shares(old), shares(new)
        return min(self._part_by_logarithms(old, new), self._part_by_divergence(old, new))

    def _part_by_logarithms(self, old: FloatArray, new: FloatArray) -> float:
        if self.max_log_change is None:
            return 1.0
        # Between old and new each weight is monotonic, so it meets its bound once.
        level, factor = np.maximum(old, self.least), math.exp(self.max_log_change)
        low = np.where(level / factor >= self.least, level / factor, 0.0)
        bound = np.where(new > old, level * factor, low)
        passes = np.where(new > old, new > bound, new < bound)
        parts = (bound - old)[passes] / (new - old)[passes]
        return float(parts.min()) if len(parts) else 1.0

    def _part_by_divergence(self, old: FloatArray, new: FloatArray) -> float:
        if self.max_divergence is None or self._divergence(old, new) <= self.max_divergence:
            return 1.0
        low, high = 0.0, 1.0  # the divergence is 0 at 0 and increasing, as each of its terms is
        for _ in range(_NUM_BISECTIONS):
            middle = (low + high) / 2
            if self._divergence(old, (1.0 - middle) * old + middle * new) <= self.max_divergence:
                low = middle
            else:
                high = middle
        return low

    def _divergence(self, old: FloatArray, new: FloatArray) -> float:
        old, new = np.maximum(old, self.least), np.maximum(new, self.least)
        return float((old * np.log(old / new) - old + new).sum())


def _between(old: FloatArray, new: FloatArray, part: float) -> FloatArray:
    return new if part >= 1.0 else (1.0 - part) * old + part * new
