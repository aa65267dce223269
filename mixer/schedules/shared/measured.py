"""The common part of schedules that follow the gradient noise."""

import math
from collections.abc import Mapping
from typing import Any, Unpack

from mixer.schedules.base import AllBounds, BatchDecision, GradientNoise, LearningRateRule, Schedule
from mixer.schedules.shared.average import Average


class MeasuredSchedule(Schedule):
    """A schedule that smooths the measured signal and noise of the gradient, and divides after that.

    The order matters: the ratio of two noisy estimates is biased, and the unbiased estimate of `||g||²` may be negative
    in a single step (McCandlish et al. 2018, arXiv:1812.06162, app. A.1).

    Two things measure it. On several ranks it is how their parts of the gradient differ, in every step: two readings
    of the gradient and one of its results from the device, no extra pass, but from few ranks a coarse estimate. The
    parts are taken as independent draws from one mixture. All ranks have the same share of every stream, to about a
    sample, so that only noise within streams counts; of a stream with fewer samples than that in a step, what it
    differs by from the others counts too, which makes the noise too large, and so does dealing samples out to ranks by
    length.

    On a single rank it is a probe of the gradient, in every `interval_steps`-th step, which counts noise within
    streams alone. What is averaged are measurements, so that `decay` looks back over that many times more steps.

    Args:
        decay: Share of the old averages that stays at each measurement, in [0, 1); 0 takes the last one alone.
        interval_steps: Number of steps from one measurement to the next where measuring costs something.
        learning_rate: How the learning rate follows the size; see `Schedule`.
        **bounds: See `Schedule`.

    Raises:
        ValueError: If a value is outside its range.
    """

    needs = frozenset({"gradient_noise"})

    def __init__(
        self,
        decay: float,
        interval_steps: int,
        *,
        learning_rate: LearningRateRule = "none",
        **bounds: Unpack[AllBounds],
    ):
        super().__init__(learning_rate=learning_rate, **bounds)
        if interval_steps < 1:
            raise ValueError(f"interval_steps must be at least 1, got {interval_steps}.")
        self.decay = decay
        self.interval_steps = interval_steps
        self._forget()

    def start(self, initial: int) -> BatchDecision:
        """Forgets all measurements; see `Schedule.start`."""
        self._forget()
        return super().start(initial)

    def _forget(self) -> None:
        self._squared_norm, self._variance = Average(self.decay), Average(self.decay)

    def _take(self, noise: GradientNoise | None) -> None:
        # Negative estimates count: without them the average of an unbiased estimate would be biased.
        if noise is not None and math.isfinite(noise.squared_norm) and math.isfinite(noise.variance):
            self._squared_norm.take(noise.squared_norm)
            self._variance.take(noise.variance)

    def _noise_scale(self) -> float | None:
        """Gives `tr Σ / ||g||²`, or `None` while the averages are no estimate of it."""
        squared_norm, variance = self._squared_norm.value, self._variance.value
        return variance / squared_norm if squared_norm > 0.0 and variance > 0.0 else None

    def state_dict(self) -> dict[str, Any]:
        """Gives the averages too; see `Schedule.state_dict`."""
        averages = {"squared_norm": self._squared_norm.state_dict(), "variance": self._variance.state_dict()}
        return {**super().state_dict(), **averages}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes up the averages too; see `Schedule.load_state_dict`."""
        super().load_state_dict(state)
        self._squared_norm.load_state_dict(state["squared_norm"])
        self._variance.load_state_dict(state["variance"])
