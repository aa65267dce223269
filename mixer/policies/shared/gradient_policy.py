"""What policies have in common that weigh the streams by products of their gradients."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from mixer.policies.contract import Decision, Mixture, Observation, Policy, Unit
from mixer.policies.gradient_statistics import GradientStatistics
from mixer.policies.shared.least_share import share_out
from mixer.policies.shared.ranges import check_count
from mixer.policies.shared.stream_average import StreamAverage
from mixer.utils.arrays import BoolArray, FloatArray


@dataclass(frozen=True)
class Gradients:
    """Statistics of the gradients of those streams that can be weighed.

    Args:
        known: bool `[num_streams]`: which streams these are.
        gram: `[num_known, num_known]`: products; those of a pair that was never in one batch are 0. The diagonal is
            without noise where the policy has the variance measured, else that of the batch.
        variance: `[num_known]`: of one sample, 0 or more; NaN where the policy does not have it measured.
        weights: `[num_known]`: present weights among these streams; they sum to 1.
        batch_size: Samples of a step.
    """

    known: BoolArray
    gram: FloatArray
    variance: FloatArray
    weights: FloatArray
    batch_size: int


class GradientPolicy(Policy):
    """Averages the products of the streams' gradients and weighs the streams anew every `interval_steps` steps.

    A stream that was never measured keeps its share, and one that is not there its own weight. Each that is there keeps
    `min_samples` samples of the batch, or nothing more would be learned of it; one whose own weight is 0 has none.

    Args:
        interval_steps: Steps from a measurement to the next.
        min_samples: Least samples of each stream in a batch; equal shares where the batch is too small for all.
        decay: Share of the old averages that stays at each measurement, in [0, 1).
        unit: Whether the weights are shares of samples or of tokens; `min_samples` counts samples in both.

    Raises:
        ValueError: If a value is outside its range.
    """

    needs = frozenset({"gradient_variance"})

    def __init__(self, interval_steps: int, min_samples: int, decay: float, *, unit: Unit = "samples"):
        super().__init__(unit=unit)
        check_count("interval_steps", interval_steps, 1, "1 decides after every step")
        check_count("min_samples", min_samples, 0, "with less than 2 a variance may not be measured again")
        self.interval_steps, self.min_samples = interval_steps, min_samples
        self._gram, self._variance = StreamAverage(decay), StreamAverage(decay)

    def start(self, mixture: Mixture) -> Decision:
        """Forgets all gradients and gives the streams' own weights; see `Policy.start`."""
        self._own = self._weights = mixture.weights
        self._gram.start(len(mixture.names) ** 2)
        self._variance.start(len(mixture.names))
        return self._decision(self._weights, mixture.is_active)

    def update(self, observation: Observation) -> Decision:
        """Takes new gradients into the averages, and weighs the streams anew when it is time; see `Policy.update`."""
        batch_size = observation.batch_size or max(1, int(observation.counts.sum()))
        active = observation.is_active & (self._own > 0)
        least, lengths = self.min_samples / batch_size, observation.tokens_per_sample
        if observation.gradients is not None:
            self._measure(observation.gradients, active, batch_size)
            if observation.step % self.interval_steps == 0:
                self._decide(active, batch_size)
                self._weights = share_out(self._weights, self._own, active, least, lengths)
        return self._decision(share_out(self._weights, self._own, active, least, lengths), active)

    def _measure(self, gradients: GradientStatistics, active: BoolArray, batch_size: int) -> None:
        gram, variance = self._products(gradients)
        self._gram.take(gram.ravel())
        self._variance.take(variance)

    def _products(self, gradients: GradientStatistics) -> tuple[FloatArray, FloatArray]:
        """Gives a measurement's products and variances, NaN for what was not measured."""
        gram = np.array(gradients.gram)
        if "gradient_variance" not in self.needs:
            return gram, np.full(len(gram), np.nan)
        is_whole = np.isfinite(gradients.squared_norm) & np.isfinite(gradients.variance)
        np.fill_diagonal(gram, np.where(is_whole, gradients.squared_norm, np.nan))
        return gram, np.where(is_whole, gradients.variance, np.nan)

    def _decide(self, active: BoolArray, batch_size: int) -> None:
        gradients = self._averages(active, batch_size)
        found = None if gradients is None else self._weigh(gradients)
        if gradients is None or found is None:
            return
        weights = self._weights.copy()
        weights[gradients.known] = weights[gradients.known].sum() * found
        self._weights = weights

    def _averages(self, active: BoolArray, batch_size: int) -> Gradients | None:
        gram = self._gram.values.reshape(len(active), -1)
        known = active & np.isfinite(np.diagonal(gram))
        total = float(self._weights[known].sum())
        if not total > 0.0:
            return None
        products = np.nan_to_num(gram[np.ix_(known, known)], nan=0.0)
        variance = np.maximum(self._variance.values[known], 0.0)
        return Gradients(known, products, variance, self._weights[known] / total, batch_size)

    @abstractmethod
    def _weigh(self, gradients: Gradients) -> FloatArray | None:
        """Weighs the streams that are known among each other.

        Args:
            gradients: Their statistics.

        Returns:
            `[num_known]` on the simplex; `None` leaves the weights as they are.
        """

    def _decision(self, weights: FloatArray, active: BoolArray) -> Decision:
        """Makes a decision of weights, for a subclass that weighs losses too."""
        return Decision(weights)

    def state_dict(self) -> dict[str, Any]:
        """Gives weights and averages; see `Policy.state_dict`."""
        averages = {"gram": self._gram.state_dict(), "variance": self._variance.state_dict()}
        return {"weights": self._weights.tolist(), **averages}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes up weights and averages; see `Policy.load_state_dict`."""
        super().load_state_dict(state)
        self._weights = np.array(state["weights"], dtype=np.float64)
        self._gram.load_state_dict(state["gram"])
        self._variance.load_state_dict(state["variance"])


def scaled_to_one(values: FloatArray) -> tuple[FloatArray, float]:
    """Divides by the largest magnitude, so that sums and squares cannot overflow.

    Args:
        values: Any finite numbers.

    Returns:
        The quotients, and the divisor; zeros alone are left as they are, with 1.
    """
    largest = float(np.abs(values).max(initial=0.0)) or 1.0
    return values / largest, largest
