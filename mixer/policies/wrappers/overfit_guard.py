"""OverfitGuard: less of the streams that a model learns by heart."""

import logging
from dataclasses import replace
from typing import Literal

import numpy as np

from mixer.measurements import EvaluationLoss, Loss
from mixer.policies.contract import Decision, Mixture, Observation, Policy, Terms
from mixer.policies.shared.decisions import mean_factor, with_mean_factor
from mixer.policies.shared.shares import shares
from mixer.policies.shared.slopes import LARGEST
from mixer.policies.shared.wrapper import Wrapper
from mixer.utils.arrays import BoolArray, FloatArray
from mixer.utils.errors import require
from mixer.utils.ranges import check_count, check_range

_LEAST_FALL = 0.01  # of the training loss
_logger = logging.getLogger(__name__)


class OverfitGuard(Wrapper):
    """Takes share from a stream whose evaluation loss rises while its training loss falls, around any policy.

    Small tasks of a mixture overfit long before the large ones have been learned. A stream overfits if its evaluation
    loss is `min_rise` or more above its least and still rises, `patience` evaluations in a row, and its training loss,
    averaged between evaluations, is lower than it was at that least. Then its share is halved; again if that goes on.
    It is doubled again, up to what the policy gives, at a new least evaluation loss, and if both losses are higher than
    they were: then the stream is being forgotten.

    With `action="leave"` it leaves instead, and comes back at `returns_at` of the run, for the last steps of a low
    learning rate. That a task leaves the mixture when it overfits is of mSFT (arXiv:2603.21606), which also goes back
    to the weights of that moment; ours are the halving, the return, and what counts as overfitting. Where all streams
    overfit, shares say nothing: the log says so, and early stopping helps.

    It needs an evaluation set of the name of each stream that it is to guard, and evaluations that are frequent enough:
    about twenty in a run.

    Args:
        policy: The inner policy.
        action: `"reduce"` halves the share, `"leave"` takes all of it until `returns_at`.
        patience: Evaluations in a row that have to show it.
        min_rise: Rise of the evaluation loss above its least, relative to it, that counts.
        least: Smallest factor on a share by halving.
        returns_at: Progress of the run at which streams that left come back; 1 for never.

    Raises:
        ValueError: If a value is outside its range.
    """

    remembered = (
        *("_best", "_at_best", "_last", "_sums", "_counts", "_num_worse", "_factors"),
        "_has_warned",
    )

    needs = (Loss(), EvaluationLoss())
    limits_mixture = True

    def __init__(
        self,
        policy: Policy,
        action: Literal["reduce", "leave"] = "reduce",
        patience: int = 1,
        min_rise: float = 0.01,
        least: float = 1 / 64,
        returns_at: float = 0.8,
    ):
        super().__init__(policy)
        require(action in ("reduce", "leave"), "action", "'reduce' or 'leave'", action)
        check_count("patience", patience, 1, "1 acts on the first sign")
        check_range("min_rise", min_rise, 0, 10, "0.01 is 1 % above the least loss")
        check_range("least", least, 0, 1, "1/64 leaves a stream a few samples")
        check_range("returns_at", returns_at, 0, 1, "0.8 lets streams come back for the last fifth of the run")
        self.action, self.patience, self.min_rise = action, patience, min_rise
        self.least, self.returns_at = least, returns_at

    def start(self, mixture: Mixture) -> Decision:
        """Forgets all losses; see `Policy.start`."""
        num_streams = len(mixture.names)
        self._names, self._takes_part = mixture.names, mixture.weights > 0.0
        self._best, self._at_best, self._last = (np.full(num_streams, np.nan) for _ in range(3))
        self._sums, self._counts = np.zeros(num_streams), np.zeros(num_streams)
        self._num_worse = np.zeros(num_streams, dtype=np.int64)
        self._factors, self._has_warned = np.ones(num_streams), False
        return super().start(mixture)

    def update(self, observation: Observation) -> Decision:
        """Takes share from streams that overfit; see `Policy.update`."""
        decision = super().update(observation)
        losses, evaluated = observation.by_stream(Loss), observation[EvaluationLoss]
        known = np.isfinite(losses)
        self._sums[known] += np.clip(losses[known], -LARGEST, LARGEST)
        self._counts[known] += 1.0
        if evaluated is not None:
            self._judge(np.clip(evaluated, -LARGEST, LARGEST), observation.step)
        if self.action == "leave" and observation.progress >= self.returns_at:
            self._factors = np.ones(len(self._factors))
        return self._applied(decision, observation.is_active)

    def _judge(self, evaluated: FloatArray, step: int) -> None:
        with np.errstate(invalid="ignore"):
            trained = self._sums / self._counts
            is_best = np.isfinite(evaluated) & ~(evaluated >= self._best)
            is_worse = (evaluated > self._best + self.min_rise * np.abs(self._best)) & (evaluated >= self._last)
            falls = trained < self._at_best - _LEAST_FALL * np.abs(self._at_best)
            is_forgotten = trained > self._at_best
        self._num_worse = np.where(is_worse, self._num_worse + 1, 0)
        is_told = self._num_worse >= self.patience
        self._reduce(is_told & falls, step, evaluated, trained)
        if self.action == "reduce":
            comes_back = is_best | (is_told & is_forgotten)
            self._factors = np.where(comes_back, np.minimum(2.0 * self._factors, 1.0), self._factors)
        self._best = np.where(is_best, evaluated, self._best)
        self._at_best = np.where(is_best & np.isfinite(trained), trained, self._at_best)
        self._last = np.where(np.isfinite(evaluated), evaluated, self._last)
        self._sums, self._counts = np.zeros(len(self._sums)), np.zeros(len(self._counts))

    def _reduce(self, overfits: BoolArray, step: int, evaluated: FloatArray, trained: FloatArray) -> None:
        for stream in np.flatnonzero(overfits & (self._factors == 1.0)).tolist():
            _logger.warning(
                "Step %d: %s overfits: its evaluation loss rose from %.4g to %.4g while its training loss fell from "
                "%.4g to %.4g. It %s.",
                *(step, self._names[stream], self._best[stream], evaluated[stream]),
                *(self._at_best[stream], trained[stream]),
                "leaves the mixture"
                if self.action == "leave"
                else "gets half of its share, and less if that continues",
            )
        less = 0.0 if self.action == "leave" else np.maximum(self._factors / 2.0, self.least)
        self._factors = np.where(overfits, less, self._factors)
        if (self._factors[self._takes_part] < 1.0).all() and not self._has_warned:
            self._has_warned = True
            _logger.warning("All streams overfit, which shares cannot change: train for fewer steps, or stop early.")

    def _applied(self, decision: Decision, active: BoolArray) -> Decision:
        weights = np.asarray(decision.weights) * self._factors
        if (self._factors == 1.0).all() or not weights[active].any():  # or all that is left has left the mixture
            return decision
        # The scale of the loss stays the inner policy's.
        return with_mean_factor(replace(decision, weights=shares(weights)), mean_factor(decision, active), active)

    def explain(self) -> Terms:
        """Returns the factors on the shares, and the losses that they go by; see `Policy.explain`."""
        return {"factor": self._factors, "least evaluation loss": self._best, "training loss then": self._at_best}
