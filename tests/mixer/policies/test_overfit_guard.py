"""Less of the streams that a model learns by heart."""

import numpy as np
import pytest

from mixer.policies import Fixed, GroupDRO, OverfitGuard, Uniform
from tests.mixer.policies.observed import mixture, observe

NAN = float("nan")


def course(guard: OverfitGuard, trained: list[list[float]], evaluated: list[list[float]]) -> list[list[float]]:
    """Weights after each evaluation; a step with training losses comes before it."""
    guard.start(mixture([1.0] * len(trained[0])))
    found = []
    for number, (own, held_out) in enumerate(zip(trained, evaluated, strict=True), start=1):
        decision = guard.update(observe(number, own, progress=number / len(trained), evaluation_losses=held_out))
        found.append((decision.weights / decision.weights.sum()).round(6).tolist())
    return found


def test_a_stream_that_is_learned_by_heart_loses_share_and_gets_it_back(caplog: pytest.LogCaptureFixture) -> None:
    trained = [[1.0, 1.0], [0.8, 0.9], [0.6, 0.8], [0.5, 0.8], [0.6, 0.8], [1.1, 0.8], [1.0, 0.8]]
    evaluated = [[1.0, 1.0], [1.1, 0.9], [1.2, 0.9], [1.2, 0.9], [1.15, 0.9], [1.2, 0.9], [0.9, 0.9]]
    expected = [0.5, 1 / 3, 0.2, 1 / 9, 1 / 9, 0.2, 1 / 3]
    found = course(OverfitGuard(Uniform()), trained, evaluated)
    np.testing.assert_allclose([own[0] for own in found], expected, atol=1e-6)
    assert caplog.text.count("a overfits: its evaluation loss rose from 1 to 1.1 while its training loss fell") == 1


def test_it_waits_as_told_and_leaves_and_comes_back(caplog: pytest.LogCaptureFixture) -> None:
    trained = [[1.0, 1.0], [0.5, 1.0], [0.4, 1.0], [NAN, 1.0], [NAN, 1.0]]
    evaluated = [[1.0, 1.0], [1.1, 1.0], [1.2, 1.0], [1.3, 1.0], [1.4, 1.0]]
    found = course(OverfitGuard(Uniform(), "leave", patience=2, returns_at=1.0), trained, evaluated)
    assert [own[0] for own in found] == [0.5, 0.5, 0.0, 0.0, 0.5]
    assert "a overfits: its evaluation loss rose from 1 to 1.2" in caplog.text
    assert "It leaves the mixture." in caplog.text


@pytest.mark.parametrize(
    ("trained", "evaluated"),
    [
        ([1.0, 1.1, 1.2], [1.0, 1.1, 1.2]),  # it is forgotten, but has all its share
        ([1.0, 0.5, 0.4], [1.0, 1.005, 1.009]),  # within the least rise
        ([1.0, 0.5, 0.4], [1.0, NAN, NAN]),
        ([NAN, NAN, NAN], [1.0, 1.1, 1.2]),  # it was never trained on
        ([-1.0, -1.1, -1.2], [-1.0, -1.1, -1.2]),
    ],
)
def test_what_is_no_overfitting_changes_nothing(trained: list[float], evaluated: list[float]) -> None:
    both = [[[one, 1.0] for one in own] for own in (trained, evaluated)]
    assert course(OverfitGuard(Uniform()), *both) == [[0.5, 0.5]] * 3


def test_shares_stay_a_policys_own_where_all_overfit_and_the_log_says_so(caplog: pytest.LogCaptureFixture) -> None:
    trained, evaluated = [[1.0, 1.0], [0.5, 0.5]], [[1.0, 1.0], [1.5, 1.5]]
    for action in ("reduce", "leave"):
        assert course(OverfitGuard(Fixed([0.25, 0.75]), action), trained, evaluated)[-1] == [0.25, 0.75]
    assert caplog.text.count("All streams overfit, which shares cannot change") == 2


def test_it_explains_itself() -> None:
    course(guard := OverfitGuard(GroupDRO()), [[1.0, 1.0], [0.5, 1.0]], [[1.0, 1.0], [1.5, 1.0]])
    assert np.asarray(guard.explain()["factor"]).tolist() == [0.5, 1.0]
