"""DWA (dynamic weight average): more of the streams that learn slowly."""

import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from mixer.measurements import Loss
from mixer.policies.contract import Decision, Mixture, Observation, PolicyWithOptions
from mixer.policies.shared.decisions import ActsOn, decide
from mixer.policies.shared.exponentiated import HUGE
from mixer.policies.shared.shares import softmax
from mixer.utils.arrays import FloatArray
from mixer.utils.ranges import check_count, check_range


@dataclass(eq=False, repr=False)
class DWA(PolicyWithOptions):
    """Raises the factor of a stream with a slowly falling loss: `K · softmax(r / T)` with `r_k = L_k(t−1) / L_k(t−2)`.

    Dynamic weight average of Liu, Johns and Davison 2019, "End-to-End Multi-Task Learning with Attention",
    arXiv:1803.10704, eq. 7. `L_k(t)` is the mean training loss of stream k over window t; in the paper a window is an
    epoch, here `window_steps` steps (ours). As in the paper all ratios are 1 until there are two windows.

    The paper multiplies losses. By default this policy changes the sampling instead, in proportion to the streams' own
    weights times the same factors: the same mean gradient without micro-batches of a single stream; `acts_on="loss"` is
    the paper's form.

    A stream without a loss in a window keeps its last mean and has the ratio 1 for that window; the same holds for
    losses of 0 or less, for which a ratio has no meaning (ours). Ratios are near 1, so at T = 2 the weights are near
    the streams' own; lower T for more.

    Args:
        temperature: T, above 0; the paper's is 2.
        window_steps: Steps per average.
        acts_on: Whether the factors change the sampling, or multiply the losses.
        unit: Whether the weights are shares of samples or of tokens.

    Raises:
        ValueError: If a value is outside its range.
    """

    remembered = ("_ratios", "_last", "_means", "_counts", "_num_steps")

    needs = (Loss(),)

    temperature: Annotated[float, check_range, 1e-9, math.inf, "2 is the paper's, a high one is uniform"] = 2.0
    window_steps: Annotated[int, check_count, 1, "an epoch of the smallest stream is in the paper's spirit"] = 100
    acts_on: ActsOn = "sampling"

    def start(self, mixture: Mixture) -> Decision:
        """Discards all losses and returns your weights; see `Policy.start`."""
        num_streams = len(mixture.names)
        self._own = mixture.weights
        self._last = np.full(num_streams, np.nan)  # L(t-1)
        self._ratios = np.ones(num_streams)
        self._begin_window(num_streams)
        return decide(self._ratios, self._own, self._own > 0, self.acts_on)

    def _begin_window(self, num_streams: int) -> None:
        self._num_steps = 0
        self._means, self._counts = np.zeros(num_streams), np.zeros(num_streams, dtype=np.int64)

    def update(self, observation: Observation) -> Decision:
        """Records the new losses, and computes ratios at the end of a window; see `Policy.update`."""
        self._take(observation.by_stream(Loss))
        if self._num_steps >= self.window_steps:  # above it after a resume with shorter windows
            self._close_window()
        active = observation.is_active
        factors = softmax(self._ratios / self.temperature, active & (self._own > 0))
        return decide(factors, self._own, active, self.acts_on)

    def _take(self, losses: FloatArray) -> None:
        new = np.isfinite(losses)
        self._counts[new] += 1
        # A running mean, as a sum could overflow.
        weight = 1.0 / self._counts[new]
        self._means[new] = (1.0 - weight) * self._means[new] + weight * losses[new]
        self._num_steps += 1

    def _close_window(self) -> None:
        seen = self._counts > 0
        known = seen & (self._means > 0) & (self._last > 0)
        self._ratios = np.ones(len(seen))
        with np.errstate(over="ignore"):
            self._ratios[known] = np.minimum(self._means[known] / self._last[known], HUGE)
        self._last = np.where(seen, self._means, self._last)
        self._begin_window(len(seen))
