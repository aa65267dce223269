"""Weights that move no further than so far at once."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from mixer.policies.contract import Decision, Mixture, Observation, Policy
from mixer.policies.shared.decisions import in_batch, mean_factor, with_mean_factor
from mixer.policies.shared.ranges import check_range
from mixer.policies.shared.wrapper import Wrapper
from mixer.utils.arrays import FloatArray

_NUM_BISECTIONS = 60  # halves an interval of 1 to what a float tells apart


class TrustRegion(Wrapper):
    """Moves towards new weights, each time as far as a limit allows: `w' ← w' + λ(w − w')` with the largest such λ ≤ 1.

    The limit is on how much the logarithm of any weight changes, or on the Kullback-Leibler divergence `Σ_k w'_k
    log(w'_k / w_k)` from the old weights to the new, or on both. Weights below `least` count as `least`, or a weight
    could neither leave 0 nor come to it (the divergence is then that of positive numbers, `Σ_k w'_k log(w'_k / w_k) −
    w'_k + w_k`, which is the same where all weights are above). It keeps the samples that the optimizer's moments have
    seen close to those that come, however the inner policy jumps: Algorithm 1 of PiKE (arXiv:2502.06244) steps
    multiplicatively for that reason. Limits of this kind are those of mirror descent and of trust regions in
    reinforcement learning (Schulman et al. 2015, arXiv:1502.05477); the interpolation is ours. With a target that stays
    the weights get there in finitely many steps.

    Each step is a decision, also those for which the inner policy stays with its own; `Hold` around this one makes
    the steps rarer. Factors on losses are limited by what they come to, the streams' parts of the gradient (weight
    times factor, as shares), and their mean over the samples stays what the inner policy makes it. Samples on top of
    the batch size are passed on. A policy that plans probes (`Aioli`) is refused: it would learn of other mixtures than
    it believes.

    Args:
        policy: The inner policy.
        max_log_change: Most by which a `log w_k` changes at a step, above 0; `None` for no such limit. 0.5 lets a
            weight grow by two thirds or fall by two fifths.
        max_divergence: Most divergence at a step in nats, above 0; `None` for no such limit.
        least: The least weight that counts, above 0.

    Raises:
        ValueError: If a value is outside its range, or there is no limit.
        TypeError: If the inner policy is no policy.
    """

    def __init__(
        self,
        policy: Policy,
        max_log_change: float | None = 0.5,
        max_divergence: float | None = None,
        least: float = 0.01,
    ):
        super().__init__(policy)
        if max_log_change is None and max_divergence is None:
            raise ValueError("TrustRegion needs a limit, got None for both; give max_log_change or max_divergence.")
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
        weights = _between(_shares(old), _shares(decision.weights), part)
        moved = replace(decision, weights=weights, loss_weights=self._factors(old, decision))
        active = observation.is_active
        self._last = with_mean_factor(moved, mean_factor(decision, active), active)
        return self._last

    def _factors(self, old: FloatArray, decision: Decision) -> FloatArray | None:
        """`[num_streams]`: factors on the losses, as far on the way as the streams' parts of the gradient may move."""
        if decision.loss_weights is None and self._last.loss_weights is None:
            return None
        ones = np.ones(len(old))
        last = ones if self._last.loss_weights is None else self._last.loss_weights
        target = ones if decision.loss_weights is None else decision.loss_weights
        return _between(last, target, self._part(_shares(old) * last, _shares(decision.weights) * target))

    def _part(self, old: FloatArray, new: FloatArray) -> float:
        """λ: how much of the way the limits allow; all of it from or to nothing."""
        if not (np.sum(old) > 0.0 and np.sum(new) > 0.0):
            return 1.0
        old, new = _shares(old), _shares(new)
        return min(self._part_by_logarithms(old, new), self._part_by_divergence(old, new))

    def _part_by_logarithms(self, old: FloatArray, new: FloatArray) -> float:
        if self.max_log_change is None:
            return 1.0
        # On the way from old to new each weight moves in one direction, so that it meets its bound once.
        level, factor = np.maximum(old, self.least), math.exp(self.max_log_change)
        low = np.where(level / factor >= self.least, level / factor, 0.0)
        bound = np.where(new > old, level * factor, low)
        passes = np.where(new > old, new > bound, new < bound)
        parts = (bound - old)[passes] / (new - old)[passes]
        return float(parts.min()) if len(parts) else 1.0

    def _part_by_divergence(self, old: FloatArray, new: FloatArray) -> float:
        if self.max_divergence is None or self._divergence(old, new) <= self.max_divergence:
            return 1.0
        low, high = 0.0, 1.0  # the divergence is 0 at 0 and only rises from there, as each of its terms does
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

    def state_dict(self) -> dict[str, Any]:
        """Gives the last decision too; see `Policy.state_dict`."""
        return {**super().state_dict(), "last": self._last.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes up the last decision too; see `Policy.load_state_dict`."""
        super().load_state_dict(state)
        self._last = Decision.from_state(state["last"])


def _shares(weights: FloatArray) -> FloatArray:
    total = np.sum(weights)
    shares: FloatArray = weights / total if total > 0.0 else weights
    return shares


def _between(old: FloatArray, new: FloatArray, part: float) -> FloatArray:
    return new if part >= 1.0 else (1.0 - part) * old + part * new
