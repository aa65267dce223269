"""Replay in proportion to the rise of the losses of the memories."""

from typing import Any

import numpy as np

from mixer.measurements import Loss
from mixer.policies import Mixture, Observation, Policy
from mixer.policies.shared.stream_average import StreamAverage
from mixer.utils.arrays import FloatArray
from mixer.utils.ranges import check_range
from replay.policies.base import Past, Replay, ReplayPolicy

_ROUNDING = 1e-9


class ForgettingAware(ReplayPolicy):
    """Replays more the more is forgotten, and most of what is forgotten most, by the rise of each memory's loss.

    `e_m ← s·e_m + (1 - s)·ℓ_m` (smoothed loss, bias-corrected), `e*_m = min e_m` so far (as well as it was ever known),
    `f_m = max(0, e_m - e*_m) / (max(0, e_m - e*_m) + |e*_m|)` (forgotten, in [0, 1]; 1/2 where the loss has doubled),
    `ρ = minimum + (maximum - minimum) · mean_m f_m` and `p_m ∝ exp(f_m / T)`.

    That forgetting is estimated by a moving average of how the loss rises, and what is replayed drawn from a Boltzmann
    distribution over it, is of Smith et al. 2024, "Adaptive Memory Replay for Continual Learning", arXiv:2404.12526,
    where clusters of past data are the arms of a bandit. Ours are the reference, which is the memory's own loss before
    (no forward is spent on it), the relative form, in which T has no unit, and that `ρ` follows it too.

    It tells memories apart, so it is for a memory a task: the loss of one for all tasks also rises as harder samples
    come into it. For the first `1 / (1 - s)` losses of a stream the reference follows the average, so that a lucky
    first batch is not taken for what was once known. In a continual run each earlier task has its own memory, and the
    reference of a memory begins with the loss that its task ended with.

    Args:
        minimum: Least `ρ`, above 0: what is never replayed shows no loss.
        maximum: Largest `ρ`, below 1.
        temperature: T; a low one picks what is forgotten most alone, a high one shares equally.
        smoothing: s, in [0, 1).
        policy: The policy of the other streams; see `ReplayPolicy`.
        additional: Whether replayed samples are added to the batch size instead of being a part of it.

    Raises:
        ValueError: If `0 < minimum <= maximum < 1` does not hold, or a value is outside its range; at the start of the
            run if the mixture has no replay buffer.
    """

    _remembered = ("_average", "_lowest", "_num_losses")  # of all streams: an earlier task's go to its memory
    needs_memory_per_task = True

    needs = (Loss(),)

    def __init__(
        self,
        minimum: float = 0.05,
        maximum: float = 0.5,
        temperature: float = 0.25,
        smoothing: float = 0.95,
        policy: Policy | str | dict[str, float] | None = None,
        *,
        additional: bool = False,
    ):
        super().__init__(policy, additional=additional)
        if not 0.0 < minimum <= maximum < 1.0:
            raise ValueError(
                f"0 < minimum <= maximum < 1 must hold, got {minimum} and {maximum}: they bound the part of the whole "
                "mix that is replayed, and forgetting shows only in replayed samples."
            )
        check_range("temperature", temperature, 1e-9, np.inf, "0.25 replays what has doubled its loss 7 times as often")
        self.minimum, self.maximum = minimum, maximum
        self.temperature = temperature
        self._average = StreamAverage(smoothing, "smoothing")

    def start_replay(self, mixture: Mixture) -> Replay:
        """Forgets all losses but those of earlier runs, and replays the least; see `ReplayPolicy.start_replay`."""
        self._names = mixture.names
        self._average.start(len(self._names))
        self._lowest = np.zeros(len(self._names))
        self._num_losses = np.zeros(len(self._names), dtype=np.int64)
        if self.past is not None:
            self._take_up(self.past)
        return self._weigh()

    def _take_up(self, past: Past) -> None:
        for place, name in enumerate(self._names):
            known = past.state.get(name) or past.state.get(past.sources.get(name, ""))
            if known is not None:
                self._average.set(place, known["loss"], known["num_losses"])
                self._lowest[place], self._num_losses[place] = known["lowest"], known["num_losses"]

    def lasting_state(self) -> dict[str, Any]:
        """Returns the losses of all streams, those of earlier runs too; see `ReplayPolicy.lasting_state`."""
        rows = zip(self._names, self._smoothed, self._lowest, self._num_losses, strict=True)
        own = {
            name: {"loss": float(loss), "lowest": float(lowest), "num_losses": int(count)}
            for name, loss, lowest, count in rows
            if count
        }
        return own if self.past is None else {**self.past.state, **own}

    def update_replay(self, observation: Observation) -> Replay:
        """Takes the losses into the averages and weighs anew; see `ReplayPolicy.update_replay`."""
        losses = observation.by_stream(Loss)
        self._average.take(losses)
        self._num_losses += np.isfinite(losses)
        is_young = self._num_losses * (1.0 - self._average.decay) <= 1.0 + _ROUNDING
        smoothed = self._smoothed
        self._lowest = np.where(is_young, smoothed, np.minimum(self._lowest, smoothed))
        return self._weigh()

    @property
    def forgotten(self) -> FloatArray:
        """`[num_memories]`: `f_m`, in [0, 1]; 0 for a memory of which too little was seen."""
        smoothed, lowest = self._smoothed[self.memories], self._lowest[self.memories]
        scale = np.maximum(np.abs(smoothed), np.abs(lowest))
        scale[scale == 0.0] = 1.0
        # Scaled first, as the difference of large losses could overflow.
        lowest = lowest / scale
        rise = np.maximum(0.0, smoothed / scale - lowest)
        forgotten: FloatArray = np.divide(rise, rise + np.abs(lowest), out=np.zeros(len(rise)), where=rise > 0.0)
        return forgotten

    @property
    def _smoothed(self) -> FloatArray:
        return np.nan_to_num(self._average.values, nan=0.0)

    def _weigh(self) -> Replay:
        forgotten = self.forgotten
        if not len(forgotten):
            return Replay(0.0, forgotten)
        shares = np.exp((forgotten - forgotten.max()) / self.temperature)
        return Replay(self.minimum + (self.maximum - self.minimum) * float(forgotten.mean()), shares / shares.sum())
