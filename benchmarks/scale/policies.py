"""What each policy's decision costs as a function of the streams: for `benchmarks.scale`."""

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from benchmarks.scale.term import STREAMS, Term, counted, cpu_seconds
from mixer import policies
from mixer.measurements import (
    EvaluationLoss,
    ExcessLoss,
    Gradients,
    GradientStatistics,
    Loss,
    LossAfter,
    asked,
    names_of,
)
from mixer.policies import LossChange, Mixture, Observation, Policy

# Policies that go by products of gradients see K x K numbers; at 10,000 streams those alone are 800 MB.
_BY_STREAM, _BY_PAIR = (100, 1_000, 10_000), (30, 100, 300)
_MOST_SECONDS = 0.3  # of a decision: no larger size is tried after it
_NUM_WARM_UPS = 4
_BY_GRADIENT = ("PiKE", "BalancedPiKE", "DoGE", "GRAPE", "RegularizedBalance", "GradNorm")
_PLAIN = ("ODM", "GroupDRO", "DoReMi", "DWA", "FAMO", "SkillIt")


def _of_class(name: str, num_streams: int, **arguments: Any) -> Policy:
    made: Policy = getattr(policies, name)(**arguments)
    return made


def makers() -> dict[str, Callable[[int], Policy]]:
    """Gives what makes each built-in policy that is asked after steps, deciding after every one where it can.

    Returns:
        For each name the maker.
    """

    def names(k: int) -> dict[str, float]:
        return {f"stream-{number:05d}": 0.5 for number in range(k)}

    def adaptive(k: int) -> Policy:
        return LossChange(floor=0.1 / k, num_warmup_observations=1)

    at_once = {name: partial(_of_class, name, interval_steps=1) for name in _BY_GRADIENT}
    plain = {name: partial(_of_class, name) for name in _PLAIN}
    return {
        **plain,
        **at_once,
        "Scheduled": lambda k: policies.Scheduled([(0.2, names(k)), (0.9, names(k))]),
        "LossChange": adaptive,
        "ADO": lambda k: policies.ADO("paper", 5, 2, 0, floor=0.1 / k),
        "TargetLoss": lambda k: policies.TargetLoss(names(k)),
        "CoBa": lambda k: policies.CoBa(num_warmup_evaluations=2),
        "Aioli": lambda k: policies.Aioli(1.0, 2, 1, 2),
        "Floor": lambda k: policies.Floor(adaptive(k), 0.1 / k),
        "Smoothed": lambda k: policies.Smoothed(adaptive(k), 0.7),
        "Hold": lambda k: policies.Hold(adaptive(k), 2),
        "WarmUp": lambda k: policies.WarmUp(adaptive(k), 1),
        "TrustRegion": lambda k: policies.TrustRegion(adaptive(k), 0.1),
    }


class Course:
    """A policy in a run that is made up, one step after the other.

    Args:
        make: Makes the policy.
        num_streams: Number of streams.
    """

    def __init__(self, make: Callable[[int], Policy], num_streams: int):
        self._random, self._num_streams = np.random.default_rng(0), num_streams
        self.policy, self._step = make(num_streams), 0
        names = tuple(f"stream-{number:05d}" for number in range(num_streams))
        sizes = np.full(num_streams, 10**6)
        self._decision = self.policy.start(Mixture(names, sizes, np.full(num_streams, 1.0 / num_streams)))
        self._kinds = {type(need) for need in self.policy.needs}
        self._gradients = self._statistics() if Gradients in self._kinds else None

    def _statistics(self) -> GradientStatistics:
        size = self._num_streams
        vectors = self._random.normal(0.2, 1.0, (size, 16))
        gram, counts = vectors @ vectors.T, np.full(size, 8)
        norms = np.diagonal(gram)
        return GradientStatistics(gram, norms * 4, norms * 0.5, counts, counts / counts.sum(), np.zeros_like(gram))

    def advance(self) -> None:
        """Has it decide on the next step."""
        self._step += 1
        size, random = self._num_streams, self._random
        losses = 2.0 + 3.0 / self._step + random.normal(0.0, 0.05, size)
        weights = self._decision.weights
        measured = {Loss: losses, EvaluationLoss: losses + 0.1, ExcessLoss: losses - 1.0, LossAfter: losses - 0.01}
        measured[Gradients] = self._gradients
        self._decision = self.policy.update(
            Observation(
                step=self._step,
                progress=min(1.0, self._step / 10_000),
                weights=weights / weights.sum(),
                counts=np.full(size, 8),
                tokens=np.full(size, 1_000),
                seen=np.full(size, 8 * self._step),
                shares=weights / weights.sum(),
                batch_size=8 * size,
                measured={kind: found for kind, found in measured.items() if kind in self._kinds},
            )
        )


def _measured(name: str, make: Callable[[int], Policy]) -> tuple[Term, Term]:
    """Measures a policy at sizes up to the largest that it decides on in some seconds."""
    sizes, seconds, states = [], [], []
    for size in _sizes(make):
        course = Course(make, size)
        for _ in range(_NUM_WARM_UPS):
            course.advance()
        sizes.append(float(size))
        seconds.append(cpu_seconds(course.advance))
        states.append(float(len(json.dumps(course.policy.state_dict()))))
        if len(sizes) > 1 and seconds[-1] > _MOST_SECONDS:
            break
    shown = f"needs {', '.join(names_of(make(10).needs)) or 'nothing'}"
    return (
        Term(name, STREAMS, "s", tuple(sizes), tuple(seconds), shown),
        counted(f"{name}, state", STREAMS, sizes, dict(zip(sizes, states, strict=True)).__getitem__),
    )


def _sizes(make: Callable[[int], Policy]) -> tuple[int, ...]:
    squares = ("SkillIt", "Aioli")  # what they hold is K x K
    policy = make(10)
    is_by_pair = bool(asked(policy.needs, Gradients)) or policy.name in squares
    return _BY_PAIR if is_by_pair else _BY_STREAM


def terms() -> list[Term]:
    """Measures all of them.

    Returns:
        Two terms a policy: of a decision, and of what it remembers.
    """
    every: Mapping[str, Callable[[int], Policy]] = makers()
    return [term for name, make in every.items() for term in _measured(name, make)]
