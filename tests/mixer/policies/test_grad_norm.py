from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from mixer.policies import GradNorm, Observation
from tests.mixer.policies.observed import NAN, factors_of, led, measured, observe


def update(norms: Any = (2.0, 1.0), losses: Any = (1.0, 1.0), step: int = 1) -> Observation:
    return measured(np.square(norms).tolist(), [1.0] * len(norms), [30] * len(norms), losses=losses, step=step)


@pytest.mark.parametrize(
    ("arguments", "observations", "expected"),
    [
        ({}, [], [1, 1]),  # losses are weighed from the start
        # Equal rates ask for equal norms: y ∝ 1/2, 1 with the sum 2: 2/3 and 4/3, so that both norms are 4/3.
        ({}, [update()], [2 / 3, 4 / 3]),
        # Losses go from (4, 2) to (1, 2), no smoothing: ratios ¼ and 1, r = 0.4 and 1.6; α = ½: √r in a ratio of 1 : 2.
        # y ∝ 1/2, 2/1: 0.4 and 1.6.
        ({"alpha": 0.5, "decay": 0.0}, [update(losses=(4.0, 2.0)), update(losses=(1.0, 2.0), step=2)], [0.4, 1.6]),
        # The squared norm is estimated as −1: most for it, least for the other, 100 : 1.
        ({"max_factor": 10.0}, [measured([-1, 4], [1, 1], [30, 30], losses=(1, 1))], [200 / 101, 2 / 101]),
        # Without a loss above zero the rate is one.
        *[({}, [update(losses=(1.0, loss))], [2 / 3, 4 / 3]) for loss in (NAN, 0.0, -2.0)],
        # An unmeasured stream keeps its factor.
        ({}, [measured([4, 1, NAN], [1, 1, NAN], [30, 30, 1], losses=(1, 1, NAN))], [2 / 3, 4 / 3, 1]),
        # Those that are there have a mean of 1: y ∝ 1, 2, 4 with α = 0, then the third leaves.
        (
            {"alpha": 0.0},
            [update((4.0, 2.0, 1.0), (1.0,) * 3), observe(2, counts=[30] * 3, active=np.array([True, True, False]))],
            [2 / 3, 4 / 3, 1],
        ),
    ],
)
def test_factors_by_hand(arguments: dict[str, Any], observations: list[Observation], expected: list[float]) -> None:
    policy = GradNorm(**{"interval_steps": 1, "rate": 1.0, **arguments})
    decision = led(policy, observations, [1 / len(expected)] * len(expected))[-1]
    np.testing.assert_allclose(decision.loss_weights, expected)
    np.testing.assert_allclose(decision.weights, 1 / len(expected))


three = st.lists(st.floats(0.5, 2.0), min_size=3, max_size=3)


@given(norms=three, losses=three, alpha=st.floats(0.0, 1.5))
def test_norms_are_the_target_s(norms: list[float], losses: list[float], alpha: float) -> None:
    """Equation 1 of the paper: `y_k ||g_k|| = Ḡ r_k^α` with Ḡ the mean of the left sides over that of `r^α`."""
    policy = GradNorm(alpha, interval_steps=1, rate=1.0, max_factor=1e6, decay=0.0)
    found = factors_of(policy, update(norms, (1.0, 1.0, 1.0)), update(norms, losses, step=2), own=[1 / 3] * 3)
    quotients = found * np.array(norms) / (np.array(losses) / np.mean(losses)) ** alpha
    np.testing.assert_allclose(quotients, quotients[0])
    assert found.sum() == pytest.approx(3.0)


def test_a_part_of_the_way() -> None:
    # Logarithms go half way: 1/√2 : 1 after the first, and on to 1 : 2.
    _, first, *_, last = led(GradNorm(interval_steps=1, rate=0.5), [update(step=step) for step in range(1, 40)])
    assert first.loss_weights[1] / first.loss_weights[0] == pytest.approx(np.sqrt(2))
    assert last.loss_weights[1] / last.loss_weights[0] == pytest.approx(2.0)


def test_on_sampling() -> None:
    decision = led(GradNorm(acts_on="sampling", interval_steps=1, rate=1.0), [update()], own=(0.8, 0.2))[-1]
    assert decision.loss_weights is None
    np.testing.assert_allclose(decision.weights, [2 / 3, 1 / 3])  # 0.8 · 2/3 and 0.2 · 4/3 are 2 : 1
