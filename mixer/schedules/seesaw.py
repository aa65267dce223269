"""Seesaw: a larger batch in place of half of the learning-rate decay."""

import math
from dataclasses import KW_ONLY, dataclass, field
from typing import Annotated

from mixer.measurements import LearningRate, Rates
from mixer.schedules.base import BatchDecision, BatchObservation, LearningRateRule, ScheduleWithOptions
from mixer.schedules.limits import check_above


@dataclass(eq=False, repr=False)
class Seesaw(ScheduleWithOptions):
    """Replaces a fall of the learning rate by `factor` with a fall by its root and a batch larger by `factor`.

    Seesaw (Meterez et al. 2025, arXiv:2510.14717, Algorithm 1). With c the run's own learning rate over its peak, the
    largest one so far, and k = ⌊−log c / log factor⌋ the number of whole cuts since then,

        batch = initial · factor^k,    learning rate = peak · factor^(−k/2),

    both constant between cuts, and k never falls. During warm-up k is 0 and the learning rate the run's own.

    When c reaches initial / maximum the batch grows to the maximum, with a smaller cut if necessary, and the rest of
    the decay is the run's own: from then on the learning rate is `peak · c · √(maximum / initial)`, which continues
    from the last cut and falls further. If the run's own rate rises again, it does not exceed that.

    The bounds (`initial`, `minimum`, `maximum`, `granularity`, `max_growth`) are those of `Schedule`.

    Args:
        factor: Factor of a cut, above 1.
        smooth: Whether to multiply the run's own learning rate by `√(batch / initial)` throughout, so it falls between
            cuts too and rises at each of them.
        maximum: Largest size: cosine schedules fall to 0, for which the batch would be infinite.

    Raises:
        ValueError: If a value is outside its range.
    """

    remembered = ("_peak", "_growth")

    needs = (LearningRate(),)

    factor: Annotated[float, check_above, 1] = 2.0
    _: KW_ONLY
    smooth: bool = False
    maximum: int = field()
    learning_rate: LearningRateRule = field(init=False, default="none")

    def start(self, initial: int) -> BatchDecision:
        """Discards the peak and the cuts; see `Schedule.start`."""
        self._peak = 0.0
        self._growth = 1.0
        super().start(initial)
        return BatchDecision(initial, 1.0)

    def update(self, observation: BatchObservation) -> BatchDecision:
        """Grows the batch once the run's learning rate has fallen enough; see `Schedule.update`."""
        most = max(self.limits.clamp(math.inf) / self._initial, 1.0)
        rates: Rates = observation[LearningRate] or Rates()
        own, last = rates
        # An unknown rate, or one of 0 from the start, says nothing about cuts.
        share = math.nan
        if math.isfinite(own) and own >= 0.0:
            self._peak = max(self._peak, own, last if math.isfinite(last) else 0.0)
            share = own / self._peak if self._peak else math.nan
            self._growth = max(self._growth, self._growth_at(share, most))
        return BatchDecision(self._initial * self._growth, self._learning_rate_factor(share, most))

    def _growth_at(self, share: float, most: float) -> float:
        # 1e-9, as rounding must not delay a cut at a step of the schedule.
        if math.isnan(share):
            return 1.0
        if share * most <= 1.0 + 1e-9:
            return most
        return self.factor ** math.floor(-math.log(share) / math.log(self.factor) + 1e-9)

    def _learning_rate_factor(self, share: float, most: float) -> float:
        root = math.sqrt(self._growth)
        is_capped = self._growth >= most and share * most <= 1.0
        return root if self.smooth or is_capped or math.isnan(share) else 1.0 / (share * root)
