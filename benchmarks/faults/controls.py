"""Policies and schedules that go wrong inside of the ranks."""

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.faults.run import Parts, Start
from mixer.policies import Decision
from mixer.schedules import BatchDecision


def failing_policy(parts: Parts, start: Start, rank: int) -> None:
    """The policy raises at a step."""
    _at_step(parts.mixing, start, lambda decision: _fail("the policy lost its way"))


def nonsense_policy(parts: Parts, start: Start, rank: int) -> None:
    """The policy returns nonsense at a step."""
    nonsense = {
        "nan": np.array([0.5, np.nan, 0.25]),
        "infinite": np.array([0.5, np.inf, 0.25]),
        "negative": np.array([0.9, -0.1, 0.2]),
        "zero": np.zeros(3),
        "too few": np.ones(2),
        "too many": np.ones(5),
        "two-dimensional": np.ones((3, 1)),
    }
    _at_step(parts.mixing, start, lambda decision: Decision(nonsense[start.fault["choice"]]))


def other_policy(parts: Parts, start: Start, rank: int) -> None:
    """The policy decides otherwise on one rank."""
    if rank == start.fault["rank"]:
        _at_step(parts.mixing, start, lambda decision: Decision(np.roll(decision.weights, 1) + 0.125))


def failing_schedule(parts: Parts, start: Start, rank: int) -> None:
    """The batch-size schedule raises at a step."""
    _at_step(parts.batch_size, start, lambda decision: _fail("the schedule lost its way"))


def nonsense_schedule(parts: Parts, start: Start, rank: int) -> None:
    """The batch-size schedule returns nonsense at a step."""
    nonsense = {"nan": np.nan, "infinite": np.inf, "negative": -8, "zero": 0, "text": "many", "nothing": None}
    _at_step(parts.batch_size, start, lambda decision: BatchDecision(nonsense[start.fault["choice"]]))  # type: ignore[arg-type]


def _at_step(control: Any, start: Start, decide: Callable[[Any], Any]) -> None:
    batch, step = control.update, start.fault["step"]

    def updated(observation: Any) -> Any:
        decision = batch(observation)
        return decide(decision) if observation.step == step else decision

    control.update = updated


def _fail(message: str) -> Any:
    raise ArithmeticError(message)
