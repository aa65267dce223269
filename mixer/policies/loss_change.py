"""LossChange: more of the streams with a changing loss."""

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from mixer.measurements import EvaluationLoss, Loss, Needs
from mixer.policies.contract import Decision, Mixture, Observation, PolicyWithOptions, Terms
from mixer.policies.shared.dominant import DominantStream
from mixer.policies.shared.shares import resolve_least, softmax
from mixer.utils.arrays import FloatArray
from mixer.utils.errors import wrong_value
from mixer.utils.ranges import check_count, check_decay, check_range, check_temperature

_USUAL_FLOOR = 0.05


@dataclass(eq=False, repr=False)
class LossChange(PolicyWithOptions):
    """Samples a stream by the rate of change of its loss: `w ∝ softmax(progress / T)`, mixed with a floor.

    The progress of a stream is the distance between a fast and a slow moving average of its loss, `|fast_k − slow_k|`.
    It stands for the slope of the learning curve, the criterion of teacher-student curriculum learning (Matiisen et al.
    2017, arXiv:1707.00183): streams that learn fastest, and by the absolute value also streams that are forgotten. The
    two averages, their softmax and the floor are ours. The temperature is in units of the mean progress over the
    streams, so the unit of the losses does not matter.

    The starting weights apply until every stream has `num_warmup_observations` losses.

    Args:
        temperature: T; a low one selects only the fastest stream, a high one is uniform.
        fast_decay: Decay of the fast average per observation.
        slow_decay: Decay of the slow average per observation; above `fast_decay`.
        floor: Least share of each stream, at most 1/K; `None` is 0.05, or 1/(2K) for more than ten streams.
        num_warmup_observations: Observations of each stream before the averages count.
        loss: The training loss of each step, or the losses of evaluations.
        unit: Whether the weights are shares of samples or of tokens.

    Raises:
        ValueError: If a value is outside its range; at the start of the run if the floors exceed 1.
    """

    remembered = ("_fast", "_slow", "_num_observations")

    needs = Needs((Loss(),))
    compares_losses = True

    temperature: Annotated[
        float, check_temperature, "a low one selects only the fastest stream, a high one is uniform"
    ] = 1.0
    fast_decay: Annotated[float, check_decay, "0.9 averages over about 10 observations"] = 0.9
    slow_decay: Annotated[float, check_decay, "0.98 averages over about 50 observations"] = 0.98
    floor: Annotated[float | None, check_range, 0, 1, "0 is no floor"] = None
    num_warmup_observations: Annotated[int, check_count, 1, "1 starts with the first losses"] = 10
    loss: Literal["train", "evaluation"] = "train"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.fast_decay < self.slow_decay:
            raise wrong_value(
                "fast_decay", f"must be below slow_decay={self.slow_decay}, got {self.fast_decay}. Use 0.9 and 0.98."
            )
        self._dominant = DominantStream(self.name)
        if self.loss == "evaluation":
            self.needs = (EvaluationLoss(),)

    def start(self, mixture: Mixture) -> Decision:
        """Discards all losses and returns your weights; see `Policy.start`."""
        num_streams = len(mixture.names)
        self._least = resolve_least(self.floor, _USUAL_FLOOR, num_streams, "LossChange", "floor")
        self._initial = mixture.weights
        self._dominant.start(mixture.names)
        self._fast, self._slow = np.zeros(num_streams), np.zeros(num_streams)
        self._num_observations = np.zeros(num_streams, dtype=np.int64)
        return Decision(self._initial)

    def update(self, observation: Observation) -> Decision:
        """Updates the averages and computes new weights; see `Policy.update`."""
        self._dominant.take(observation, observation.weights)
        losses = observation.by_stream(Loss) if self.loss == "train" else observation[EvaluationLoss]
        if losses is not None:
            self._take(losses)
        observed = self._num_observations >= self.num_warmup_observations
        return Decision(self._weigh() if observed.all() else self._initial)

    def _take(self, losses: FloatArray) -> None:
        new = np.isfinite(losses)
        self._num_observations[new] += 1
        self._fast[new] += (1.0 - self.fast_decay) * (losses[new] - self._fast[new])
        self._slow[new] += (1.0 - self.slow_decay) * (losses[new] - self._slow[new])

    def _weigh(self) -> FloatArray:
        scores = self.explain()["score"]
        weights: FloatArray = self._least + (1.0 - self._least * len(self._fast)) * softmax(np.asarray(scores))
        return weights

    def explain(self) -> Terms:
        """Returns both averages without bias, `progress` relative to the largest, and the softmax's `score`.

        NaN for a stream without an observation; see `Policy.explain`.
        """
        # Averages that start at 0 are too small by 1 - decay^n (Kingma and Ba 2015, arXiv:1412.6980, sec. 3).
        with np.errstate(invalid="ignore"):
            fast = self._fast / (1.0 - self.fast_decay**self._num_observations)
            slow = self._slow / (1.0 - self.slow_decay**self._num_observations)
        progress = np.abs(fast - slow)
        progress = progress / (progress.max() or 1.0)  # before the mean, which could under- or overflow
        scores = progress / (self.temperature * (progress.mean() or 1.0))
        return {
            "observations": self._num_observations.astype(np.float64),
            "fast": fast,
            "slow": slow,
            "progress": progress,
            "score": scores,
            "floor": self._least,
        }
