"""A warning of a stream that takes most of a mixture without learning anything."""

import numpy as np
import pytest

from mixer.policies import GroupDRO, LossChange
from mixer.policies.shared.dominant import DominantStream
from tests.mixer.policies.observed import mixture, observe


def course(losses: np.ndarray, share: float, evaluated: dict[int, float] | None = None) -> None:
    watch = DominantStream("GroupDRO")
    watch.start(("noise", "text"))
    for step, loss in enumerate(losses.tolist(), start=1):
        held_out = None if evaluated is None or step not in evaluated else [evaluated[step], 1.0]
        watch.take(observe(step, [loss, 1.0], evaluation_losses=held_out), np.array([share, 1.0 - share]))


FLAT, FALLING = np.full(250, 2.0), np.linspace(2.0, 1.0, 250)


def test_a_loss_that_does_not_fall_is_told_once_with_two_ways_out(caplog: pytest.LogCaptureFixture) -> None:
    course(FLAT, 0.8)
    assert "Step 100: GroupDRO gives 'noise' 80 % of the mixture, but its loss has not fallen in 100" in caplog.text
    assert "Floor(GroupDRO(...))" in caplog.text
    assert len(caplog.records) == 1


def test_an_evaluation_that_contradicts_training_is_told_with_two_ways_out(caplog: pytest.LogCaptureFixture) -> None:
    course(FALLING, 0.8, {20: 1.0, 40: 1.1, 60: 1.2, 80: 1.3})
    assert "Step 60: GroupDRO gives 'noise' 80 % of the mixture, but its evaluation loss rises (to 1.2)" in caplog.text
    assert "OverfitGuard(GroupDRO(...))" in caplog.text
    assert "Stream(max_epochs=...)" in caplog.text
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    ("losses", "share", "evaluated"),
    [
        (FALLING, 0.8, None),
        (FLAT, 0.55, None),  # it has not most of the share
        (FLAT[:99], 0.8, None),
        (FALLING, 0.8, {20: 1.0, 40: 1.1, 60: 1.0, 80: 1.1}),
        (FALLING[::-1][:90], 0.8, {20: 1.0, 40: 1.1, 60: 1.2, 80: 1.3}),  # both rise
        (np.full(250, np.nan), 0.8, {20: 1.0, 40: 1.1}),
    ],
)
def test_what_goes_well_is_not_told(losses, share, evaluated, caplog) -> None:
    course(losses, share, evaluated)
    assert not caplog.records


@pytest.mark.parametrize("policy", [GroupDRO(0.1), LossChange(temperature=0.2, num_warmup_observations=1)])
def test_policies_that_may_give_all_to_noise_tell(policy: GroupDRO, caplog: pytest.LogCaptureFixture) -> None:
    random, weights = np.random.default_rng(0), np.array([0.5, 0.5])
    policy.start(mixture([1.0, 1.0]))
    for step in range(1, 400):
        losses = [3.0 + random.normal(), 1.0]
        decision = policy.update(observe(step, losses, weights=weights))
        weights = decision.weights / decision.weights.sum()
    assert f"{policy.name} gives 'a'" in caplog.text
