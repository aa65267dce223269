"""As much replay as keeps old losses within a bound."""

import logging
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from mixer.measurements import EvaluationLoss, EvaluationSetLoss, Needs
from mixer.policies import Mixture, Observation, Policy
from mixer.utils.arrays import FloatArray
from mixer.utils.errors import InvalidValueError
from mixer.utils.ranges import check_range
from mixer.utils.text import safe_names
from replay.policies.base import Replay, ReplayPolicy

_RATE = 75.0  # change of a logarithm of odds, over what is left, by a rise of 1 above the bound
_LEAST_LEFT = 0.1  # of the run, by which the change is divided at most
_MOST_CHANGE = 20.0  # of the logarithm, over the run
_FALL = 0.125  # of the fall at the present pace: what is left of a run whose learning rate decays
_NUM_KEPT = 4  # evaluations that give the pace
_NUM_AT_LIMIT = 3  # evaluations at a limit before the log says so
_LATE = 0.9  # of the run, after which the log says that a bound will not be kept
_logger = logging.getLogger(__name__)


class ReplayBound(ReplayPolicy):
    """Chooses the replay ratio so that the loss of old domains ends at most `max_rise` above what it was.

    Ours. How much to replay depends on how far the new domain is from the old: 1 % to 50 % in the literature (Ibrahim
    et al. 2024, arXiv:2403.08763, 5 % for a weak shift, 25 % for a strong one). At a constant ratio the old loss
    rises soon to a level that falls about linearly with the logarithm of the odds `ρ / (1 − ρ)`. So each old stream has
    odds of its own against everything new, and after each evaluation, with `e` the relative rise of its loss above the
    first one, `p` the progress of the run and `Δp` that since the last evaluation,

        log odds ← log odds + 75 Δp (e − max_rise) / max(1 − p, 0.1),

    at most 20 Δp at once. A loss that a re-warmed learning rate has lifted falls again as the rate decays. So early
    evaluations move the ratio little, and what they moved too far the later ones take back. While a loss falls, an
    eighth of what it would fall by to the end at its present pace is taken off `e`.

    It needs evaluation sets of the old streams' names, an evaluation before the first step (`eval_on_start=True`), and
    about twenty in the run. A replay buffer or a plain stream can be old. In a continual run each earlier task has its
    own memory, and the loss is bounded by that at the end of its task. Other evaluation sets may be
    bounded too, for instance public prompts: each old stream then goes by the largest `e` of its own and theirs.

    Args:
        max_rise: Largest rise of each bounded evaluation loss, relative to the first one; 0.05 is 5 %.
        old: Names of the old streams; `None` takes the replay buffers.
        sets: Names of evaluation sets that are no streams, whose losses are bounded too.
        first_ratio: `ρ` of all old streams together at the start.
        minimum: Least `ρ`.
        maximum: Largest `ρ`.
        policy: The policy of the other streams; see `ReplayPolicy`.
        additional: Whether replayed samples are added to the batch size instead of being a part of it.

    Raises:
        ValueError: If a value is outside its range; at the start of the run if an old stream is unknown, or there is no
            other one.
    """

    remembered = ("_logs", "_first", "_progresses", "_rises", "_num_at_limit", "_has_warned")

    needs: Needs = (EvaluationLoss(before_first_step=True),)
    needs_memory_per_task = True

    def __init__(
        self,
        max_rise: float = 0.05,
        old: Sequence[str] | None = None,
        first_ratio: float = 0.1,
        minimum: float = 0.005,
        maximum: float = 0.9,
        policy: Policy | str | dict[str, float] | None = None,
        *,
        sets: Sequence[str] = (),
        additional: bool = False,
    ):
        super().__init__(policy, additional=additional)
        check_range("max_rise", max_rise, 0, 10, "0.05 lets the loss rise by 5 %")
        if isinstance(old, str) or (old is not None and not old):
            raise InvalidValueError(
                option="old", expected="a list of names of streams, or None for the buffers", found=old
            )
        if isinstance(sets, str):
            raise InvalidValueError(option="sets", expected="a list of names of evaluation sets", found=sets)
        if not 0.0 < minimum <= first_ratio <= maximum < 1.0:
            text = f"0 < minimum <= first_ratio <= maximum < 1 must hold, got {minimum}, {first_ratio} and {maximum}."
            raise InvalidValueError(text, option="first_ratio", found=first_ratio)
        self.max_rise, self.old, self.first_ratio = max_rise, safe_names(old, "old"), first_ratio
        self.minimum, self.maximum, self.sets = minimum, maximum, tuple(safe_names(sets, "sets"))
        self.needs = (*self.needs, EvaluationSetLoss(self.sets)) if self.sets else self.needs

    def replayed(self, mixture: Mixture) -> Sequence[int]:
        """Returns the old streams; see `ReplayPolicy.replayed`."""
        if self.old is None and not mixture.memories and self.past is None:
            text = f"must name the old streams of {list(mixture.names)}, of which none is a ReplayBuffer."
            raise InvalidValueError.about("old", text)
        if self.old is None:
            return mixture.memories
        unknown = [name for name in self.old if name not in mixture.names]
        if unknown:
            raise InvalidValueError(option="old", expected=f"some of {list(mixture.names)}", found=unknown)
        return [number for number, name in enumerate(mixture.names) if name in self.old]

    def start_replay(self, mixture: Mixture) -> Replay:
        """Forgets all losses; see `ReplayPolicy.start_replay`."""
        if streams := [name for name in self.sets if name in mixture.names]:
            text = f"must be evaluation sets that are no streams, but {streams} are streams; name those in old."
            raise InvalidValueError.about("sets", text, found=streams)
        old = [mixture.names[k] for k in self.memories]
        self._names = [*old, *self.sets]
        first_odds = math.log(_odds(self.first_ratio) / max(len(old), 1))
        known = {} if self.past is None else self.past.state
        self._logs = np.array([known.get(name, {}).get("log_odds", first_odds) for name in old])
        self._first = np.array([known.get(name, {}).get("first", np.nan) for name in self._names])
        self._progresses, self._rises = np.zeros(0), np.zeros((0, len(self._names)))
        self._num_at_limit, self._has_warned = 0, False
        return self._decided()

    def update_replay(self, observation: Observation) -> Replay:
        """Moves the odds after an evaluation; see `ReplayPolicy.update_replay`."""
        if (losses := observation[EvaluationLoss]) is not None and self._names:
            of_sets = observation[EvaluationSetLoss] or {}
            self._take(np.append(losses[self.memories], [of_sets.get(name, np.nan) for name in self.sets]), observation)
        return self._decided()

    def lasting_state(self) -> dict[str, Any]:
        """Returns the odds and first losses, those of earlier runs too; see `ReplayPolicy.lasting_state`."""
        odds = dict(zip(self._names, self._logs, strict=False))  # sets have none
        rows = zip(self._names, self._first, strict=True)
        own = {name: {"first": float(first)} for name, first in rows if np.isfinite(first)}
        for name in own.keys() & odds.keys():
            own[name]["log_odds"] = float(odds[name])
        return own if self.past is None else {**self.past.state, **own}

    def _take(self, losses: FloatArray, observation: Observation) -> None:
        is_first = ~np.isfinite(self._first) & np.isfinite(losses)
        self._first = np.where(is_first, losses, self._first)
        if not len(self._logs):  # the first of several tasks has nothing to replay
            return
        rises = np.clip((losses - self._first) / np.maximum(np.abs(self._first), 1e-12), -1e6, 1e6)
        last = self._progresses[-1] if len(self._progresses) else 0.0
        passed = observation.progress - last
        self._progresses = np.append(self._progresses, observation.progress)[-_NUM_KEPT:]
        self._rises = np.vstack([self._rises, rises])[-_NUM_KEPT:]
        rate = _RATE / max(1.0 - observation.progress, _LEAST_LEFT)
        expected = np.where(is_first, np.nan, self._expected(rises, observation.progress))
        own, of_sets = np.split(expected, [len(self._logs)])
        change = rate * (np.fmax(own, np.fmax.reduce(of_sets, initial=np.nan)) - self.max_rise)
        change = np.where(np.isfinite(change), change, 0.0)
        self._logs = self._logs + passed * np.clip(change, -_MOST_CHANGE, _MOST_CHANGE)
        self._warn(rises, self._limit(), observation)

    def _expected(self, rises: FloatArray, progress: float) -> FloatArray:
        """`[num_old]`: the rises, less a part of what they would fall by to the end at their present pace."""
        passed = progress - self._progresses[0]
        if not passed > 0.0:
            return rises
        pace = np.minimum((rises - self._rises[0]) / passed, 0.0)
        expected: FloatArray = rises + _FALL * pace * (1.0 - progress)
        return expected

    def _limit(self) -> bool:
        """Keeps the odds within their limits; returns whether the largest keeps them down."""
        total = float(np.exp(np.minimum(self._logs, 50.0)).sum())
        least, most = _odds(self.minimum), _odds(self.maximum)
        self._logs = self._logs + math.log(min(max(total, least), most) / total)
        return total > most

    def _warn(self, rises: FloatArray, is_kept_down: bool, observation: Observation) -> None:
        """Warns once if the maximum does not keep a bound, or the rest of the run will not."""
        self._num_at_limit = self._num_at_limit + 1 if is_kept_down and (rises > self.max_rise).any() else 0
        is_late = observation.progress >= _LATE and (self._expected(rises, observation.progress) > self.max_rise).any()
        if self._has_warned or not (is_late or self._num_at_limit >= _NUM_AT_LIMIT):
            return
        self._has_warned = True
        ratio = f"its maximum, {self.maximum:g}" if is_kept_down else f"{self._decided().ratio:.2g}"
        _logger.warning(
            "Step %d: ReplayBound replays %s of all samples, but the losses of %s are %s above the first ones and may "
            "rise by %g %%. Allow more (max_rise, maximum), or lower the learning rate.",
            *(observation.step, ratio, self._names, [f"{100 * rise:.1f} %" for rise in rises], 100 * self.max_rise),
        )

    def _decided(self) -> Replay:
        odds = np.exp(self._logs)
        total = float(odds.sum())
        return Replay(total / (1.0 + total), odds / total)

    def explain(self) -> Any:
        """Returns the odds, the first losses and the last rises of the old streams; see `Policy.explain`."""
        rises = self._rises[-1] if len(self._rises) else np.full(len(self._first), np.nan)
        table = np.full((3, len(self.memories) + len(self.others)), np.nan)
        num_old = len(self._logs)
        table[:, self.memories] = np.exp(self._logs), self._first[:num_old], rises[:num_old]
        return dict(zip(("odds", "first loss", "rise"), table, strict=True))


def _odds(ratio: float) -> float:
    return ratio / (1.0 - ratio)
