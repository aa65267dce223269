"""Replay in bursts at growing intervals, measured by the distance that the model has moved."""

import math
from typing import Any

import numpy as np

from mixer.measurements import UpdateNorm
from mixer.policies import Mixture, Observation, Policy
from mixer.utils.ranges import check_count, check_range
from replay.policies.base import Replay, ReplayPolicy
from replay.policies.ratios import check_ratio

_HUGE = 1e300  # with which one can still calculate, and which JSON holds


class Spaced(ReplayPolicy):
    """Replays in bursts, at intervals that grow after each one and begin anew with each task: spaced repetition.

    Time is the model's own, `τ = Σ_t ||θ_{t+1} - θ_t||`, as what is forgotten goes by how far the parameters move, not
    by steps. A burst of `burst_steps` steps with a part `ρ` of memory is due when `τ` since the last burst reaches
    the interval `I_i = growth^i · I_0`; i is 0 after a task's first samples. `I_0` is the model time of the first
    `first_interval_steps` steps of the run: as many steps, at the speed that the run began with.

    The clock of update norms and replay along a forgetting curve are of Feng et al. 2026, "FOREVER",
    arXiv:2601.03938; replay at intervals that follow how memory lasts is also of Lu et al. 2026, "MSSR",
    arXiv:2603.09892. Ours are the geometric intervals, the unit of `I_0`, and bursts of a given length, whose own
    steps do not count.

    The first steps set the unit, so `first_interval_steps` should reach beyond a warm-up of the learning rate. A
    burst that finds all memories empty passes unused.

    Args:
        ratio: `ρ` during a burst, above 0 and below 1; there is no replay between bursts.
        first_interval_steps: Steps before the first burst, which say what `I_0` is.
        growth: Factor on the interval at each burst, at least 1; 1 keeps it.
        burst_steps: Steps of a burst.
        policy: The policy of the other streams; see `ReplayPolicy`.
        additional: Whether replayed samples are added to the batch size instead of being a part of it.

    Raises:
        ValueError: If a value is outside its range; at the start of the run if the mixture has no replay buffer.
    """

    _remembered = ("_num_measured", "_first_interval", "_elapsed", "_factor", "_num_tasks", "_num_left")

    needs = (UpdateNorm(),)

    def __init__(
        self,
        ratio: float = 0.3,
        first_interval_steps: int = 100,
        growth: float = 2.0,
        burst_steps: int = 10,
        policy: Policy | str | dict[str, float] | None = None,
        *,
        additional: bool = False,
    ):
        super().__init__(policy, additional=additional)
        if check_ratio("ratio", ratio) == 0.0:
            raise ValueError("ratio must be above 0, or bursts replay nothing; 0.3 is three samples in ten.")
        check_count("first_interval_steps", first_interval_steps, 1, "100 leaves 100 steps before the first burst")
        check_count("burst_steps", burst_steps, 1, "10 replays for ten steps")
        check_range("growth", growth, 1, math.inf, "2 doubles the interval at each burst, 1 keeps it")
        self.ratio = float(ratio)
        self.first_interval_steps, self.growth, self.burst_steps = first_interval_steps, growth, burst_steps

    def start_replay(self, mixture: Mixture) -> Replay:
        """Forgets all time; there is no replay at first; see `ReplayPolicy.start_replay`."""
        self._equal = np.full(len(self.memories), 1.0 / max(len(self.memories), 1))
        known = {} if self.past is None else self.past.state
        self._num_measured = int(known.get("num_measured", 0))
        self._first_interval = float(known.get("first_interval", 0.0))
        self._elapsed, self._factor = 0.0, 1.0
        self._num_tasks, self._num_left = 0, 0
        return Replay(0.0, self._equal)

    def update_replay(self, observation: Observation) -> Replay:
        """Moves the clock on and begins or ends a burst; see `ReplayPolicy.update_replay`."""
        num_tasks = int(np.count_nonzero(observation.seen[self.others]))
        if num_tasks > self._num_tasks:
            self._factor, self._elapsed = 1.0, 0.0
        self._num_tasks = num_tasks
        if self._num_left > 0:
            self._num_left -= 1
        else:
            self._move(observation.number(UpdateNorm))
        if self._num_left == 0 and self._is_due:
            self._num_left, self._elapsed = self.burst_steps, 0.0
            self._factor = min(self._factor * self.growth, _HUGE)
        return Replay(self.ratio if self._num_left > 0 else 0.0, self._equal)

    def lasting_state(self) -> dict[str, Any]:
        """Returns the unit of time, which the first steps of the first run set; see `ReplayPolicy.lasting_state`."""
        return {"num_measured": self._num_measured, "first_interval": self._first_interval}

    @property
    def _is_due(self) -> bool:
        is_known = self._num_measured == self.first_interval_steps
        return is_known and self._elapsed >= min(self._factor * self._first_interval, _HUGE)

    def _move(self, update_norm: float) -> None:
        """Adds a step to the time; one that was skipped or left the parameters alone takes none."""
        if not (math.isfinite(update_norm) and update_norm > 0.0):
            return
        self._elapsed = min(self._elapsed + update_norm, _HUGE)
        if self._num_measured < self.first_interval_steps:
            self._num_measured += 1
            self._first_interval = min(self._first_interval + update_norm, _HUGE)
