"""Base class of policies that compute weights from the products of the streams' gradients."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from mixer.measurements import Gradients, GradientStatistics, Needs, asked
from mixer.policies.contract import Decision, Mixture, Observation, PolicyWithOptions
from mixer.policies.shared.shares import divided_anew, share_out
from mixer.policies.shared.stream_average import StreamAverage
from mixer.utils.arrays import BoolArray, FloatArray


@dataclass(frozen=True)
class KnownGradients:
    """Gradient statistics of the streams with measurements.

    Args:
        known: bool `[num_streams]`: these streams.
        gram: `[num_known, num_known]`: products; 0 for a pair that was never in one batch. The diagonal is corrected
            for noise if the policy needs the variance, otherwise that of the batch.
        variance: `[num_known]`: of one sample, 0 or more; NaN if the policy does not need it.
        weights: `[num_known]`: present weights among these streams; they sum to 1.
        batch_size: Samples of a step.
    """

    known: BoolArray
    gram: FloatArray
    variance: FloatArray
    weights: FloatArray
    batch_size: int


class GradientPolicy(PolicyWithOptions):
    """Averages the products of the streams' gradients and computes new weights every `interval_steps` steps.

    A stream without a measurement keeps its share, and an absent one its own weight. Each present stream keeps
    `min_samples` samples of the batch, as otherwise it would not be measured again; one with an own weight of 0 has
    none.

    Args:
        interval_steps: Steps between measurements.
        min_samples: Least samples of each stream in a batch; equal shares if the batch is too small.
        decay: Share of the old averages that stays at each measurement, in [0, 1).
        unit: Whether the weights are shares of samples or of tokens; `min_samples` always counts samples.

    Raises:
        ValueError: If a value is outside its range.
    """

    remembered: ClassVar[tuple[str, ...]] = ("_weights", "_gram", "_variance")

    needs = Needs((Gradients(variance=True),))

    interval_steps, decay = 1, 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        self._gram, self._variance = StreamAverage(self.decay), StreamAverage(self.decay)

    def start(self, mixture: Mixture) -> Decision:
        """Discards all gradients and returns your weights; see `Policy.start`."""
        self._own = self._weights = mixture.weights
        self._gram.start(len(mixture.names) ** 2)
        self._variance.start(len(mixture.names))
        return self._decision(self._weights, mixture.is_active)

    def update(self, observation: Observation) -> Decision:
        """Updates the averages, and computes new weights when they are due; see `Policy.update`."""
        batch_size = observation.batch_size or max(1, int(observation.counts.sum()))
        active = observation.is_active & (self._own > 0)
        least, lengths = self.min_samples / batch_size, observation.tokens_per_sample
        gradients = observation[Gradients] if asked(self.needs, Gradients) else None
        if gradients is not None:
            self._measure(gradients, active, batch_size)
            if observation.step % self.interval_steps == 0:
                self._decide(active, batch_size)
                self._weights = share_out(self._weights, self._own, active, least, lengths)
        return self._decision(share_out(self._weights, self._own, active, least, lengths), active)

    def _measure(self, gradients: GradientStatistics, active: BoolArray, batch_size: int) -> None:
        gram, variance = self._products(gradients)
        self._gram.take(gram.ravel())
        self._variance.take(variance)

    def _products(self, gradients: GradientStatistics) -> tuple[FloatArray, FloatArray]:
        """Products and variances of a measurement, NaN for missing values."""
        gram = np.array(gradients.gram)
        if not any(need.variance for need in asked(self.needs, Gradients)):
            return gram, np.full(len(gram), np.nan)
        is_whole = np.isfinite(gradients.squared_norm) & np.isfinite(gradients.variance)
        np.fill_diagonal(gram, np.where(is_whole, gradients.squared_norm, np.nan))
        return gram, np.where(is_whole, gradients.variance, np.nan)

    def _decide(self, active: BoolArray, batch_size: int) -> None:
        gradients = self._averages(active, batch_size)
        among_known = None if gradients is None else self._weigh(gradients)
        if gradients is None or among_known is None:
            return
        self._weights = divided_anew(self._weights, gradients.known, among_known)

    def _averages(self, active: BoolArray, batch_size: int) -> KnownGradients | None:
        gram = self._gram.values.reshape(len(active), -1)
        known = active & np.isfinite(np.diagonal(gram))
        total = float(self._weights[known].sum())
        if not total > 0.0:
            return None
        products = np.nan_to_num(gram[np.ix_(known, known)], nan=0.0)
        variance = np.maximum(self._variance.values[known], 0.0)
        return KnownGradients(known, products, variance, self._weights[known] / total, batch_size)

    @abstractmethod
    def _weigh(self, gradients: KnownGradients) -> FloatArray | None:
        """Computes the weights of the known streams.

        Args:
            gradients: Their statistics.

        Returns:
            `[num_known]` on the simplex; `None` keeps the present weights.
        """

    def _decision(self, weights: FloatArray, active: BoolArray) -> Decision:
        """Creates a decision from weights; a subclass may add loss weights."""
        return Decision(weights)


def scaled_to_one(values: FloatArray) -> tuple[FloatArray, float]:
    """Divides by the largest magnitude, so sums and squares cannot overflow.

    Args:
        values: Any finite numbers.

    Returns:
        The quotients, and the divisor; 1 if all are 0.
    """
    largest = float(np.abs(values).max(initial=0.0)) or 1.0
    return values / largest, largest
