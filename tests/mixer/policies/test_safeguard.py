"""What `Safeguard` executes: the streams' own weights, and as much of the policy's mixture as evidence supports."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mixer.measurements import Alignment
from mixer.policies import Decision, Observation, Safeguard, Uniform
from mixer.policies.objective import Objective
from tests.mixer.policies.observed import NAN, Told, decided, measurement, mixture, observe

EVEN = (1.0, 1.0, 1.0)
TOLD = np.array([0.1, 0.1, 0.8])
HELP, HARM = [0.0, 0.0, 1.0], [1.0, 1.0, 0.0]  # what the change to that mixture is worth: 7/15 and −7/15
# Of the variance of one gain at an error of 0.05: a third more for the rows of the targets.
ERRORS = 0.05**2 * (4 / 3) * (2 * (7 / 30) ** 2 + (7 / 15) ** 2)


def followed(part: float) -> Any:
    return pytest.approx(1 / 3 + part * (TOLD - 1 / 3))


def helped(num_measurements: int) -> list[Observation]:
    return [measurement(HELP, 0.05, step=k) for k in range(1, num_measurements + 1)]


def test_the_own_weights_train_until_the_mixture_is_surely_worth_more() -> None:
    told = Told(TOLD)
    assert decided(Safeguard(told)).tolist() == pytest.approx([1 / 3] * 3)
    # Of 7/15 all but what noise explains, and 0.7 of the way to that at each measurement.
    trusts = [1.0 - ERRORS / k / (7 / 15) ** 2 for k in (1, 2, 3)]
    part = 0.0
    for k, trust in enumerate(trusts, start=1):
        part += 0.7 * (trust - part)
        assert decided(Safeguard(told), *helped(k)) == followed(part)


def test_less_than_two_standard_errors_are_no_evidence() -> None:
    one = (7 / 15) / np.sqrt(ERRORS / 0.05**2)  # an error at which the gain is one standard error
    for error, moves in ((one / 1.9, False), (one / 2.1, True)):
        weights = decided(Safeguard(Told(TOLD)), measurement(HELP, error))
        assert (weights[2] > 0.34) == moves
    # What was learned stays when there is no evidence.
    policy = Safeguard(Told(TOLD))
    sure = decided(policy, *helped(3))
    assert policy.update(measurement([0.5, 0.5, 0.5], 50.0)).weights == pytest.approx(sure)


def test_the_mixture_that_trains_is_judged() -> None:
    # The policy keeps the own weights; three quarters for the target, a, are worth less than these.
    policy, objective = Safeguard(Uniform()), Objective({"a": 1.0})
    weights = decided(policy, *[measurement([0.0, 1.0, 1.0], 0.05)] * 6, objective=objective)
    assert weights == pytest.approx([1 / 3] * 3)
    assert policy.explain()["gain"] < -1.0
    weights = decided(policy, *[measurement([1.0, 0.0, 0.0], 0.05)] * 6, objective=objective)
    assert weights == pytest.approx([0.75 + 0.25 / 3, 0.25 / 3, 0.25 / 3], abs=0.01)


@pytest.mark.parametrize(
    ("num_samples", "objective", "moves"),
    [
        (300, {"a": 1.0}, True),  # 250 rows of a, of which there are 100
        (420, {"a": 1.0}, False),  # 350
        (300, {"t": 1.0}, False),  # outside of the streams
        (300, {"a": 0.5, "t": 0.5}, False),
    ],
)
def test_targets_whose_rows_are_hardly_repeated_are_followed_without_a_measurement(
    num_samples: int, objective: dict[str, float], moves: bool
) -> None:
    first = observe(losses=[1.0] * 3, counts=[1, 1, 1], progress=3 / num_samples)
    weights = decided(Safeguard(Uniform()), first, objective=Objective(objective))
    if moves:
        # 225 rows by importance are 2.25 passes, which are planned as 1 + 3 log(1 + 1.25 / 3).
        part = 0.75 * (1.0 + 3.0 * np.log1p(1.25 / 3.0)) / 2.25
        assert weights == pytest.approx([part + (1.0 - part) / 3, (1.0 - part) / 3, (1.0 - part) / 3])
    else:
        assert weights == pytest.approx([1 / 3] * 3)


def test_rows_learned_by_heart_are_no_evidence() -> None:
    # Rows of a are worth most; of 100 there, the target's mixture takes 2,000 more than your weights would.
    def weights(stream_loss: float) -> np.ndarray:
        policy, objective = Safeguard(Uniform(), target_share=1.0), Objective({"a": 1.0, "b": 1.0}, bounds={"b": 9.0})
        seen = [{"seen": np.full(3, 30 + 100 * k), "progress": (1 + k) / 40, "step": k + 1} for k in range(8)]
        losses = [(1.0, 1.0, 1.0), *[(stream_loss, stream_loss, 1.0)] * 7]
        given = [
            measurement([[0.5] * 2 + [0.2]] * 2, 0.01, (1.0, 1.0), loss, **own)
            for loss, own in zip(losses, seen, strict=True)
        ]
        return decided(policy, *given, objective=objective)

    assert weights(1.0)[2] < 0.2  # as hard as new ones
    assert weights(0.01) == pytest.approx([1 / 3] * 3)


def test_a_policy_that_harms_is_followed_again_when_its_mixture_is_worth_more(caplog: pytest.LogCaptureFixture) -> None:
    told, guard = Told(TOLD), Safeguard(Told(TOLD))
    harming = [measurement(HARM, 0.05, step=k) for k in (4, 5, 6, 7)]
    assert decided(guard, *helped(3), *harming[:3])[2] > 0.7
    assert not caplog.text
    assert decided(guard, *helped(3), *harming) == followed(0.0)  # four of the last six say so
    assert "Step 7: Safeguard(Told) is not followed for a while" in caplog.text
    again = guard.update(measurement(HELP, 0.05, step=8)).weights
    assert again == followed(0.35 * (1.0 - ERRORS / (7 / 15) ** 2))  # half as fast as at first
    assert decided(Safeguard(told), *[measurement(HARM, 0.05)] * 9) == followed(0.0)
    assert caplog.text.count("not followed") == 1  # there was nothing to be stopped


def test_a_rising_loss_is_harm_too(caplog: pytest.LogCaptureFixture) -> None:
    random, guard = np.random.default_rng(1), Safeguard(Told(TOLD))

    def seen(loss: float, step: int, error: float = 0.05) -> Observation:
        return measurement(HELP, error, losses=(loss + 0.02 * random.random(),), step=step)

    decided(guard, *[seen(3.0 - 0.1 * k, k) for k in range(1, 13)])
    assert guard.explain()["followed"] > 0.9
    for k in range(13, 20):
        guard.update(seen(1.8 + 0.1 * (k - 12), k, error=2.0))  # the gain is not sure any more
    assert "the objective's loss has risen from" in caplog.text


def test_a_rise_while_the_own_weights_train_is_not_the_policy_s(caplog: pytest.LogCaptureFixture) -> None:
    guard = Safeguard(Told(TOLD))
    rising = [measurement([0.0] * 3, losses=(1.0 + 0.2 * k,), step=k) for k in range(1, 9)]
    decided(guard, *rising, *[measurement(HELP, 0.05, losses=(2.6 - 0.01 * k,), step=9 + k) for k in range(4)])
    assert guard.explain()["followed"] > 0.9
    assert not caplog.text


def on_both(development: float, test: float, **seen: Any) -> Observation:
    observation = measurement(HELP, 0.05, losses=(development,), **seen)
    targets = replace(observation[Alignment], test_losses=np.array([test]), gap_error=np.array([0.02]))
    return replace(observation, measured={**observation.measured, Alignment: targets})


def test_development_rows_that_stand_in_a_stream_do_not_mislead(caplog: pytest.LogCaptureFixture) -> None:
    guard, told = Safeguard(Told(TOLD)), "Rows of 't' seem to stand in 'c'"
    assert decided(guard, on_both(3.0, 3.1), on_both(2.0, 2.1), on_both(1.8, 1.95))[2] > 0.7
    assert told not in caplog.text
    for development in (1.0, 0.8):
        assert guard.update(on_both(development, 2.0)).weights == followed(0.0)
    assert caplog.text.count(told) == 1
    assert guard.explain()["gap"] == pytest.approx(np.log(2.0 / 0.8) - np.log(3.1 / 3.0))
    assert guard.update(on_both(2.0, 2.0)).weights[2] > 0.4
    # A high loss on the test rows is no sign if it was high from the start.
    assert decided(Safeguard(Told(TOLD)), *[on_both(1.0, 3.0)] * 9)[2] > 0.79


def test_noise_moves_and_harms_no_policy_however_long_the_run_is(caplog: pytest.LogCaptureFixture) -> None:
    random = np.random.default_rng(2)
    for _ in range(20):
        noise, scores = 2.0 + 0.1 * random.standard_normal(200), 1.0 + 0.3 * random.standard_normal((200, 3))
        guard = Safeguard(Told(TOLD), target_share=0.0)
        decided(guard, *[measurement(s, 0.3, losses=(loss,)) for s, loss in zip(scores, noise, strict=True)])
    # A loss that is not known is no loss of 0.
    guard = Safeguard(Told(TOLD))
    decided(guard, *[measurement(HELP, 0.05, losses=(NAN if k == 8 else 2.0 + 1e-6 * k,)) for k in range(60)])
    assert not caplog.text


def anchored(policy: Safeguard, objective: Objective, *seen: Observation, **start: Any) -> np.ndarray:
    """The mixture that evidence is gathered on."""
    policy.start(replace(mixture(EVEN), objective=objective, **start))
    for observation in seen:
        policy.update(observation)
    found: np.ndarray = np.array(policy.state_dict()["candidate"])
    return found


def test_streams_that_are_targets_have_their_part_by_importance() -> None:
    sizes = np.array([100, 100, 100])
    for objective, part in (
        (Objective({"a": 3.0, "b": 1.0}), [0.5625, 0.1875, 0.0]),
        (Objective({"a": 1.0, "outside": 1.0}), [0.375, 0.0, 0.0]),
        (Objective({"outside": 1.0}), [0.0, 0.0, 0.0]),
    ):
        rest = 1.0 - np.sum(part)
        found = anchored(Safeguard(Uniform()), objective, num_samples=sizes)
        np.testing.assert_allclose(found, np.array(part) + rest / 3.0)
        # A run of 3,000 samples would pass 16.875 times over stream 0 and 5.625 times over stream 1, or 11.25 and 0;
        # rows are expected to lose their worth over 3 passes.
        seen = observe(counts=[8] * 3, seen=np.array([600, 500, 400]), progress=0.5)
        found = anchored(Safeguard(Uniform()), objective, seen, num_samples=sizes)
        part = np.array([own and (1.0 + 3.0 * np.log(1.0 + (30.0 * own - 1.0) / 3.0)) / 30.0 for own in part])
        np.testing.assert_allclose(found, part + (1.0 - part.sum()) / 3.0)


def test_the_part_by_importance_follows_the_worst_target() -> None:
    objective, policy = Objective({"a": 1.0, "b": 1.0}, kind="worst"), Safeguard(Uniform(), target_share=1.0)
    seen = measurement([[1.0] * 3, [1.0] * 3], losses=(1.0, 2.0))
    expected = [1 / (1 + np.exp(6.0)), 1 / (1 + np.exp(-6.0)), 0.0]
    np.testing.assert_allclose(anchored(policy, objective, seen), expected, atol=1e-12)
    np.testing.assert_allclose(anchored(policy, objective, seen, observe(counts=[8] * 3)), expected, atol=1e-12)


def test_an_objective_of_all_streams_is_sampled_by_importance() -> None:
    three = {"a": 2.0, "b": 1.0, "c": 1.0}
    for objective, expected in (
        (Objective(three), [0.5, 0.25, 0.25]),
        (Objective(three, kind="worst"), [0.5, 0.25, 0.25]),
        (Objective(three, bounds={"a": 1.05}), [0.4, 0.2125, 0.3875]),
        (Objective({"a": 1.0, "b": 1.0}), [0.4, 0.4, 0.2]),
        (Objective({"a": 1.0, "b": 1.0, "outside": 2.0}), [0.25, 0.25, 0.5]),
    ):
        assert anchored(Safeguard(Told(TOLD)), objective) == pytest.approx(expected)


def test_a_bound_adds_its_multiplier_to_the_importance_of_its_stream() -> None:
    objective = Objective({"a": 1.0}, bounds={"b": 1.05})
    seen = [measurement([[0.0] * 3] * 2, losses=(2.0, old), progress=1.0) for old in (1.0, 1.0605)]
    # 1 % above the bound at the end: the multiplier is 1, and the part of three quarters is halved.
    assert anchored(Safeguard(Uniform()), objective, *seen) == pytest.approx([0.375 + 1 / 12] * 2 + [1 / 12])
    assert anchored(Safeguard(Uniform()), objective, seen[0])[1] == pytest.approx(1 / 12)


def test_samples_on_top_of_the_batch_are_followed_until_they_harm() -> None:
    more = Decision(np.array([0.5, 0.5, 0.0]), additional=np.array([0.0, 0.0, 0.5]))
    guard = Safeguard(Told(more))
    start = guard.start(replace(mixture(EVEN), objective=Objective({"t": 1.0})))
    assert start.additional is not None
    assert guard.update(measurement([0.0] * 3)).additional is not None
