from typing import Any

import numpy as np
import pytest

from mixer import DGA, Floor, LossChange, Mixture, Observation, OverfitGuard, PiKE, Safeguard
from mixer.measurements import Alignment, EvaluationLoss, Gradients, Loss, TargetStatistics, check_requests
from mixer.utils.errors import InvalidTypeError
from replay import ReplayRatio
from tests.mixer.comparing import Watching
from tests.refusals import refused

SEEN = TargetStatistics(np.array([1.0]), np.array([[0.1, 0.2, 0.3]]), np.array([[0.01, 0.02, 0.03]]))


@pytest.mark.parametrize("needs", [{"loss"}, "loss", Loss(), Loss, (Loss,), None])
def test_needs_are_requests(needs: Any) -> None:
    with refused("needs", kind=InvalidTypeError):
        check_requests("mixing=Mine", needs)
    check_requests("mixing=Mine", (Loss(), Gradients(variance=True)))
    with refused("needs", kind=InvalidTypeError):  # the word, not its first letter
        check_requests("mixing=Mine", "loss")


def test_a_wrapper_adds_its_own_to_those_of_the_inner_policy() -> None:
    gradients = Gradients(variance=True, interval_steps=7)
    assert Floor(PiKE(7)).needs == (gradients,)
    assert OverfitGuard(Floor(PiKE(7))).needs == (Loss(), EvaluationLoss(), gradients)
    assert Safeguard(LossChange()).needs == (Alignment(joined=True, test_losses=True), Loss())
    assert Safeguard(DGA()).needs == (Alignment("plain", joined=True, test_losses=True),)
    assert ReplayRatio(0.2, policy=PiKE(7)).needs == (gradients,)


def test_alignment_for_several_is_measured_once() -> None:
    one, other = Alignment(interval_steps=6, joined=True), Alignment(interval_steps=4)
    assert Alignment.merged([one, Alignment(joined=True)]) == one
    assert Alignment.merged([one, other]) == Alignment(interval_steps=2)
    with refused("needs"):
        Alignment.merged([one, Alignment("plain")])


def test_a_policy_of_some_streams_sees_their_part() -> None:
    part = Alignment.part(SEEN, [2, 0])
    assert (part.alignment.tolist(), part.error.tolist(), part.losses.tolist()) == ([[0.3, 0.1]], [[0.03, 0.01]], [1.0])
    watching, thirds, counts = Watching(), np.full(3, 1 / 3), np.full(3, 4)
    policy = ReplayRatio(0.2, policy=watching)
    policy.start(Mixture(("a", "memory", "b"), np.array([9, 0, 9]), thirds, (1,)))
    policy.update(Observation(1, 0.1, thirds, counts, counts, counts, measured={Alignment: SEEN}))
    assert watching.seen[0][Alignment].alignment.tolist() == [[0.1, 0.3]]  # type: ignore[union-attr]
