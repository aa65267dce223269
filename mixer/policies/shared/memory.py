"""How much streams' rows are learned by heart, from losses of rows that are trained on and of rows that never are."""

import numpy as np

from mixer.measurements import TargetStatistics
from mixer.policies.contract import Mixture
from mixer.policies.objective import Objective
from mixer.policies.shared.repeated import passes
from mixer.utils.arrays import FloatArray, Int64Array
from mixer.utils.saved_state import HasState

_KEPT = 0.5  # of what is known, at each measurement
_PRIOR_PASSES = 1.0  # squared, that the expected rate counts as


class Memory(HasState):
    """Measures in the run how much less each further pass over a stream teaches.

    A row that is learned by heart has a low loss and a small gradient: near 0, a cross entropy is as large as the
    gradient of its logits. So what a trained row still teaches, beside a row that was never trained on, is the ratio of
    their losses. The *gap* is its logarithm, `log(loss of development rows / loss of the stream's rows)`, above the
    mean of the first pass, in which the stream's rows are new too; for a stream that is a target the development rows
    are its own, for others those of the objective. A gap that grows evenly by pass has a *rate*, the worth of each
    further pass falls by `exp(−rate)`. It is found by least squares over `gap = rate · (passes − 1)`, in which late
    measurements count most, and the expected rate as one measurement after the second pass.

    It cannot see the memory of a stream before its second pass; and a stream that is no target, is repeated, and whose
    own loss falls faster than that of the development rows because it is easier, seems to be learned by heart.

    Args:
        mixture: The streams of the run.
        objective: The objective, with its targets by name.
        repeat_passes: Passes in which the worth is expected to fall to 1/e.
    """

    remembered = ("_first", "_num_first", "_products", "_squares")

    def __init__(self, mixture: Mixture, objective: Objective, repeat_passes: float):
        self._num_samples, self._expected, count = mixture.num_samples, 1.0 / repeat_passes, len(mixture.names)
        names = objective.names
        self._target_of = np.array([names.index(name) if name in names else -1 for name in mixture.names])
        self._first, self._num_first = np.zeros(count), np.zeros(count)
        self._products, self._squares = np.zeros(count), np.zeros(count)

    @property
    def rates(self) -> FloatArray:
        """`[num_streams]`: by how much the logarithm of the worth falls at each pass after the first."""
        return self._rates(self._expected)

    def _rates(self, expected: float) -> FloatArray:
        found = (_PRIOR_PASSES * expected + self._products) / (_PRIOR_PASSES + self._squares)
        rates: FloatArray = np.maximum(found, 0.0)
        return rates

    def discounted(self, scores: FloatArray, num_passes: FloatArray) -> FloatArray:
        """Brings scores of streams whose rows are repeated closer to 0, by `exp(−rate · passes after the first)`.

        Positive ones fall by the expected rate from the start. Negative ones only by what is measured: rows that harm
        are avoided until it is seen that more of them changes nothing.

        Args:
            scores: `[num_streams]`; NaN stays.
            num_passes: `[num_streams]`: passes over each.
        """
        rates = np.where(scores > 0.0, self.rates, self._rates(0.0))
        found: FloatArray = scores * np.exp(-rates * np.maximum(num_passes - 1.0, 0.0))
        return found

    def take(self, targets: TargetStatistics, importance: FloatArray, seen: Int64Array) -> None:
        """Takes a measurement.

        Args:
            targets: The measurement.
            importance: `[num_targets]`: weights of the targets' losses in the objective.
            seen: int64 `[num_streams]`: samples so far.
        """
        if targets.stream_losses is None:
            return
        used = importance > 0.0
        whole = float(importance[used] @ targets.losses[used]) / max(float(importance[used].sum()), 1e-12)
        unseen = np.where(self._target_of >= 0, targets.losses[self._target_of], whole)
        with np.errstate(divide="ignore", invalid="ignore"):
            gaps = np.log(unseen / targets.stream_losses)
        known, num_passes = np.isfinite(gaps), passes(seen, self._num_samples)
        is_first = known & (num_passes < 1.0)
        self._num_first = self._num_first + is_first
        news = np.where(is_first, gaps - self._first, 0.0)
        self._first = self._first + news / np.maximum(self._num_first, 1.0)
        is_later = known & (num_passes > 1.0) & (self._num_first > 0.0)
        after = np.where(is_later, num_passes - 1.0, 0.0)
        growth = np.where(is_later, gaps - self._first, 0.0)
        self._products = np.where(is_later, _KEPT * self._products + after * growth, self._products)
        self._squares = np.where(is_later, _KEPT * self._squares + after**2, self._squares)
