import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mixer.policies import TargetLoss
from tests.mixer.policies.seen import NOTHING, mixture_of, seen

LN2, LN3 = float(np.log(2)), float(np.log(3))
TARGETS = {"b": 2.0, "a": 1.0, "c": 3.0}
OWN = [0.2, 0.2, 0.6]


def evaluated(step: int, losses: list[float], **arguments: object) -> object:
    return seen(step, [7.0] * len(losses), evaluation_losses=losses, **arguments)


def test_by_hand_in_the_form_of_the_paper() -> None:
    """Gaps (ln 3, 0, −ln 2) are cut to (ln 3, 0, 0): (0.6, 0.2, 0.6)/1.4."""
    policy = TargetLoss(TARGETS, smoothing=0.0)
    assert policy.start(mixture_of(OWN)).weights.tolist() == OWN
    decision = policy.update(evaluated(1, [1 + LN3, 2.0, 3 - LN2]))
    np.testing.assert_allclose(decision.weights, [3 / 7, 1 / 7, 3 / 7], rtol=1e-14)


def test_by_hand_in_the_form_of_the_code() -> None:
    """Not cut: (0.6, 0.2, 0.3)/1.1, then smoothed with c = 0.1."""
    policy = TargetLoss(TARGETS, form="code", smoothing=0.1)
    policy.start(mixture_of(OWN))
    decision = policy.update(evaluated(1, [1 + LN3, 2.0, 3 - LN2]))
    np.testing.assert_allclose(decision.weights, 0.9 * np.array([6, 2, 3]) / 11 + 0.1 / 3, rtol=1e-14)


def test_the_least_share_by_default() -> None:
    """c/K with c = 1e-4, however far the others are above their targets."""
    policy = TargetLoss(TARGETS)
    policy.start(mixture_of(OWN))
    for step in range(1, 50):
        decision = policy.update(evaluated(step, [1.0, 90.0, 3.0]))
    np.testing.assert_allclose(decision.weights[[0, 2]], 1e-4 / 3, rtol=1e-9)


def test_a_stream_of_weight_0_stays_out() -> None:
    policy = TargetLoss(TARGETS)
    policy.start(mixture_of([0.4, 0.0, 0.6]))
    for step in range(1, 50):
        decision = policy.update(evaluated(step, [1.0, 90.0, 3.0]))
        assert decision.weights[1] == 0.0
    np.testing.assert_allclose(decision.weights[[0, 2]], [0.4 + 0.1 * (1 - 0.9999**49), 0.6 - 0.1 * (1 - 0.9999**49)])


def test_when_the_farthest_leaves_the_others_go_on_as_they_are_among_them() -> None:
    """Without smoothing they are at e^-900: 1 : 3 from the start on."""
    policy = TargetLoss(TARGETS, smoothing=0.0)
    policy.start(mixture_of(OWN))
    before = policy.update(evaluated(1, [901.0, 2.0, 3.0])).weights
    assert before[0] == 1.0
    assert (before > 0).all()
    after = policy.update(evaluated(2, [NOTHING, 2.0, 3.0], shares=[0.0, 0.5, 0.5])).weights
    assert after[2] / after[1] == pytest.approx(3.0, rel=1e-10)


def test_weights_hold_between_evaluations() -> None:
    policy = TargetLoss(TARGETS)
    policy.start(mixture_of(OWN))
    moved = policy.update(evaluated(1, [2.0, 2.5, 3.0])).weights
    for step in range(2, 5):
        np.testing.assert_array_equal(policy.update(seen(step, [9.0, 1.0, 1.0])).weights, moved)


def test_all_at_their_targets_nothing_moves_but_by_smoothing() -> None:
    policy = TargetLoss(TARGETS, smoothing=0.0)
    policy.start(mixture_of(OWN))
    np.testing.assert_allclose(policy.update(evaluated(1, [0.5, 2.0, -9.0])).weights, OWN, rtol=1e-14)


def test_a_stream_that_was_not_evaluated_or_is_not_there_keeps_its_share() -> None:
    policy = TargetLoss(TARGETS, smoothing=0.0)
    policy.start(mixture_of(OWN))
    assert policy.update(evaluated(1, [99.0, NOTHING, 3.0])).weights[1] == pytest.approx(0.2)
    left = policy.update(evaluated(2, [99.0, 99.0, 3.0], shares=[0.5, 0.0, 0.5]))
    assert left.weights[1] == pytest.approx(0.2)


def test_an_evaluation_without_losses_moves_nothing() -> None:
    policy = TargetLoss(TARGETS)
    policy.start(mixture_of(OWN))
    assert policy.update(evaluated(1, [NOTHING, np.inf, NOTHING])).weights.tolist() == OWN


@given(losses=st.lists(st.floats(0, 10), min_size=3, max_size=3), which=st.integers(0, 2))
def test_the_higher_a_loss_the_larger_the_share(losses, which: int) -> None:
    shares = []
    for added in (0.0, 1.0):
        policy = TargetLoss(TARGETS, form="code")
        policy.start(mixture_of(OWN))
        raised = [loss + added * (k == which) for k, loss in enumerate(losses)]
        shares.append(policy.update(evaluated(1, raised)).weights[which])
    assert shares[1] > shares[0]


class TestErrors:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"target_losses": {"a": np.inf}}, "target_losses must be finite numbers, but 'a' has inf"),
            ({"target_losses": 2.0}, "target_losses must map the names of streams to losses, got float"),
            ({"target_losses": TARGETS, "form": "both"}, "form must be 'paper' or 'code', got 'both'"),
            ({"target_losses": TARGETS, "step_size": -0.1}, "step_size must be 0 or more, got -0.1"),
            ({"target_losses": TARGETS, "smoothing": -0.1}, r"smoothing must be in \[0, 1\], got -0.1"),
        ],
    )
    def test_arguments_that_cannot_be_are_refused(self, arguments: dict, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            TargetLoss(**arguments)

    def test_targets_of_other_streams_are_refused_at_the_start(self) -> None:
        with pytest.raises(ValueError, match=r"TargetLoss: target_losses .*missing: \['c'\], unknown: \['d'\]"):
            TargetLoss({"a": 1.0, "b": 1.0, "d": 1.0}).start(mixture_of(OWN))

    def test_numbers_of_numpy_are_numbers(self) -> None:
        TargetLoss({"a": np.float32(1.0), "b": 2, "c": np.float64(3.0)}).start(mixture_of(OWN))
