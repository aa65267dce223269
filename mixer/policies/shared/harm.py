"""Signs that a mixture does an objective harm, from measurements of its targets."""

import math

import numpy as np

from mixer.measurements import TargetStatistics, Worth
from mixer.utils.arrays import FloatArray
from mixer.utils.saved_state import HasState

LEAST_KEPT = 3  # measurements: fewer have no spread
_HUGE = 1e100
_LEAST_RISE = 0.01  # of the loss: less is no harm worth a policy
_OF_TARGETS = 4.0 / 3.0  # of the variance: rows of the targets move all scores alike, so they add only a third
_NOISE = 2.0  # standard errors that are no evidence
_LEAST_GAP = 0.1  # growth of a loss on test rows against that on development rows


class Harm(HasState):
    """The signs of harm that `Safeguard` goes by.

    Args:
        num_targets: Number of targets.
        threshold: `z`: standard errors that would count as harm in a single comparison.
        num_kept: Measurements of worth that are averaged.
    """

    remembered = (
        *("_gains", "_errors", "_num_gains", "_losses", "_lowest", "_squares", "_num_losses"),
        *("_first_gaps", "_gap", "_test_loss"),
    )

    def __init__(self, num_targets: int, threshold: float, num_kept: int):
        self._threshold, self._num_kept = threshold, num_kept
        self._num_gains, self._num_losses, self._squares, self._gap = 0, 0, 0.0, 0.0
        self._first_gaps, self._test_loss = np.full(num_targets, np.nan), np.full(1, np.nan)
        self.forget()

    def forget(self) -> None:
        """Starts the comparisons by worth and by loss anew."""
        self._gains, self._errors, self._losses, self._lowest = np.zeros(0), np.zeros(0), np.zeros(0), _HUGE

    @property
    def terms(self) -> dict[str, float]:
        """The figures by name; a gain of 1 is one that counts as sure."""
        loss = float(self._losses[-1]) if len(self._losses) else math.nan
        found = {"gain": self.gain, "development loss": loss, "test loss": float(self._test_loss[0])}
        return {**found, "gap": self._gap}

    @property
    def trust(self) -> float:
        """The share of the gain over your weights that noise does not explain, in [−1, 1]; below 0 for a loss.

        0 for less than two standard errors.
        """
        total, errors = float(self._gains.sum()), float(self._errors.sum())
        is_seen = total**2 > _NOISE**2 * errors
        return math.copysign(1.0 - errors / total**2, total) if is_seen else 0.0

    @property
    def gain(self) -> float:
        """What the mixture is worth above your weights, in units of what counts as sure."""
        total, errors = float(self._gains.sum()), math.sqrt(self._errors.sum())
        if len(self._gains) < LEAST_KEPT or total == 0.0:
            return 0.0
        return total / (self._sure(self._num_gains) * errors) if errors > 0.0 else math.copysign(9.0, total)

    def take_worth(self, worth: Worth, change: FloatArray) -> None:
        """Takes what the change of the mixture from your weights is worth, `[num_streams]`."""
        if worth.largest > 0.0:
            known = np.isfinite(worth.scores)
            # Few rows have errors that vary themselves: that of all streams is surer.
            gain, error = change[known] @ worth.scores[known], (change[known] ** 2).sum() * worth.variance[known].mean()
            self._gains = np.append(self._gains, gain)[-self._num_kept :]
            self._errors = np.append(self._errors, _OF_TARGETS * error)[-self._num_kept :]
            self._num_gains += 1

    def by_loss(self, loss: float, is_followed: bool) -> str | None:
        """Takes the objective's loss; says so if it has risen and the mixture is not surely worth more.

        A rise while your weights train is not the policy's: the comparison begins when that is followed.
        """
        if not is_followed:
            self._losses, self._lowest = np.zeros(0), _HUGE
        if math.isnan(loss):
            return None
        losses = self._losses = np.append(self._losses, np.clip(loss, -_HUGE, _HUGE))[-LEAST_KEPT - 1 :]
        if len(losses) >= LEAST_KEPT:
            self._squares += float(losses[-1] - 2.0 * losses[-2] + losses[-3]) ** 2 / 6.0  # a trend cancels out
            self._num_losses += 1
        if len(losses) <= LEAST_KEPT:
            return None
        self._lowest = min(self._lowest, float(losses[:LEAST_KEPT].mean()))
        mean, lowest = float(losses[1:].mean()), self._lowest
        error = math.sqrt(2.0 * self._squares / self._num_losses / LEAST_KEPT)
        has_risen = mean > lowest + _LEAST_RISE * abs(lowest) + self._sure(self._num_losses**2) * error
        return (
            f"the objective's loss has risen from {lowest:.4g} to {mean:.4g}"
            if has_risen and self.gain <= 1.0
            else None
        )

    def by_gap(self, targets: TargetStatistics, importance: FloatArray) -> int | None:
        """Takes the losses on test rows; returns the target whose gap to development rows has grown."""
        if targets.test_losses is None or targets.gap_error is None:
            return None
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            gaps = np.where(importance > 0.0, np.log(targets.test_losses / targets.losses), np.nan)
            self._test_loss[0] = importance @ np.where(importance > 0.0, targets.test_losses, 0.0)
        gaps[~np.isfinite(gaps)], self._test_loss[~np.isfinite(self._test_loss)] = np.nan, np.nan
        self._first_gaps = np.where(np.isnan(self._first_gaps), gaps, self._first_gaps)
        growth = gaps - self._first_gaps
        if np.isnan(growth).all():
            return None
        target = int(np.nanargmax(growth))
        self._gap = float(growth[target])
        error = math.sqrt(2.0) * float(targets.gap_error[target])  # of two gaps
        return target if self._gap > max(_LEAST_GAP, self._sure(self._num_losses + 1) * error) else None

    def _sure(self, num_comparisons: int) -> float:
        return math.sqrt(self._threshold**2 + 2.0 * math.log(num_comparisons))
