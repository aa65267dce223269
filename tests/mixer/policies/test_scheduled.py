"""Phases: weights or a policy until the next moment, which may be the one at which the learning rate falls."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mixer.measurements import Loss
from mixer.policies import DWA, Fixed, LossChange, Policy, Scheduled
from tests.mixer.policies.observed import mixture, observe
from tests.refusals import refused

MIXTURE = replace(mixture([1, 1]), decay_begins=lambda: 0.75)


def phases(**options: Any) -> Scheduled:
    return Scheduled({"0": {"a": 3, "b": 1}, "0.5": DWA(0.1, 1), "decay": {"a": 0, "b": 1}}, **options)


def course(policy: Policy, progresses: list[float], first: int = 1) -> list[list[float]]:
    """The weights after steps at these progresses; losses of `a` fall faster and faster."""
    return [
        policy.update(observe(step, losses=[3.0 / step**2, 1.0], progress=progress)).weights.tolist()
        for step, progress in enumerate(progresses, first)
    ]


def test_a_phase_lasts_until_the_next_and_its_policy_begins_with_it() -> None:
    policy, alone = phases(), DWA(0.1, 1)
    assert policy.needs == (Loss(),)
    assert policy.start(MIXTURE).weights.tolist() == [0.75, 0.25]
    found = course(policy, [0.25, 0.49, 0.5, 0.6, 0.65, 0.7, 0.75, 1.0])
    alone.start(mixture([1, 1]))
    own = course(alone, [0.6, 0.65, 0.7], 4)
    assert own[-1][0] != 0.5
    assert found == [[0.75, 0.25]] * 2 + [[0.5, 0.5], *own] + [[0.0, 1.0]] * 2


def test_a_phase_that_is_resumed_goes_on() -> None:
    policy, resumed = phases(), phases()
    policy.start(MIXTURE)
    course(policy, [0.25, 0.5, 0.6, 0.65])
    resumed.start(MIXTURE)
    resumed.load_state_dict(json.loads(json.dumps(policy.state_dict())))
    assert course(resumed, [0.7, 0.72, 0.8], 5) == course(policy, [0.7, 0.72, 0.8], 5)
    with refused("the phase in the state of Scheduled"):
        resumed.load_state_dict({**policy.state_dict(), "phase": 3})


def test_points_of_weights_may_be_placed_at_the_decay() -> None:
    policy = Scheduled([(0.25, [1, 0]), ("decay", [0, 1])])
    policy.start(MIXTURE)
    np.testing.assert_allclose(course(policy, [0.1, 0.5, 0.8]), [[1, 0], [0.5, 0.5], [0, 1]])


@pytest.mark.parametrize(
    ("points", "options", "option"),
    [
        ({}, {}, "points"),
        ({"0.5": [1, 1], "0.25": [1, 1]}, {}, "points"),
        ({"late": [1, 1]}, {}, "points"),
        ({"0": "auto"}, {"interpolation": "linear"}, "interpolation"),
        ({"0": "auto"}, {"unit": "tokens"}, "unit"),
        ({"0": "mixing"}, {}, "mixing"),
    ],
)
def test_refusals(points: Any, options: dict[str, Any], option: str) -> None:
    with refused(option):
        Scheduled(points, **options)


def test_phases_that_do_not_fit_the_run_are_refused_at_its_start() -> None:
    with refused("points"):
        Scheduled({"0": [1, 1], "0.8": [1, 1], "decay": [1, 1]}).start(MIXTURE)
    with refused("Scheduled at decay: weights"):
        Scheduled({"0": [1, 1], "decay": {"c": 1}}).start(MIXTURE)
    with refused("decay"):  # a run without a learning-rate schedule
        Scheduled({"0": [1, 1], "decay": Fixed()}).start(mixture([1, 1]))


def test_what_any_phase_needs_the_run_measures() -> None:
    policy = Scheduled({"0": "Uniform", "0.5": LossChange(), "0.6": "auto"})
    inner = [*LossChange().needs, *Scheduled({"0": "auto"}).needs]
    assert policy.needs == tuple(dict.fromkeys(inner))
    assert policy.holds_bounds


def test_a_simulation_holds_what_is_measured_and_still_goes_from_phase_to_phase() -> None:
    policy = phases()
    policy.start(MIXTURE)
    policy.hold()
    assert course(policy, [0.25, 0.5, 0.6, 0.7, 0.75]) == [[0.75, 0.25]] + [[0.5, 0.5]] * 3 + [[0.0, 1.0]]
