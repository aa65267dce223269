import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from mixer.policies.shared.scaling_law import EXPONENTS, ScalingLaw, fit_scaling_law

LOG_AMOUNTS = np.log(np.linspace(4_000, 400_000, 48))
NOISE = 0.01 * np.random.default_rng(0).standard_normal(48)


def losses_of(floor: float, scale: float, exponent: float) -> np.ndarray:
    return np.log(floor + scale * np.exp(-exponent * LOG_AMOUNTS))


USUAL = losses_of(2.0, 200.0, 0.5)


def predicted(law: ScalingLaw) -> np.ndarray:
    return losses_of(float(np.exp(law.log_floor)), float(np.exp(law.log_scale)), law.exponent)


@pytest.mark.parametrize(("floor", "exponent"), [(0.5, 0.2), (2.0, 0.2), (2.0, 0.5), (0.5, 0.75)])
def test_a_law_is_found_again(floor: float, exponent: float) -> None:
    scale = 3.0 * float(np.exp(exponent * LOG_AMOUNTS[0]))
    law = fit_scaling_law(LOG_AMOUNTS, losses_of(floor, scale, exponent))
    assert law.exponent == pytest.approx(exponent, rel=1e-3)
    assert np.exp([law.log_floor, law.log_scale]) == pytest.approx([floor, scale], rel=1e-2)


@settings(max_examples=25)
@given(floor=st.floats(0.1, 5.0), above=st.floats(0.1, 5.0), exponent=st.floats(0.06, 0.79))
def test_losses_and_slopes_of_a_law_are_found_again(floor: float, above: float, exponent: float) -> None:
    """Where the terms can hardly be told apart, what they predict is right all the same; `above` is over the floor."""
    scale = above * float(np.exp(exponent * LOG_AMOUNTS[0]))
    law = fit_scaling_law(LOG_AMOUNTS, losses_of(floor, scale, exponent))
    np.testing.assert_allclose(predicted(law), losses_of(floor, scale, exponent), atol=1e-3)
    given_law = ScalingLaw(float(np.log(floor)), float(np.log(scale)), exponent)
    for amount in (1e4, 4e5):
        assert law.log_slope(amount) == pytest.approx(given_law.log_slope(amount), abs=0.05)


def test_the_slope_is_minus_the_derivative() -> None:
    """L = 2 + 8/√n: −L'(n) = 4 n^{−3/2}, which is 4/1000 at n = 100."""
    law = ScalingLaw(float(np.log(2)), float(np.log(8)), 0.5)
    assert np.exp(law.log_slope(100.0)) == pytest.approx(0.004, rel=1e-12)


def test_noise_and_outliers_hardly_move_it() -> None:
    """The Huber loss is that of absolute errors here; by squares a tenth of points off by 1 would lift it by 0.1."""
    law = fit_scaling_law(LOG_AMOUNTS, USUAL + NOISE)
    assert law.log_slope(4e5) == pytest.approx(ScalingLaw(0.0, float(np.log(200.0)), 0.5).log_slope(4e5), abs=0.5)
    outliers = USUAL.copy()
    outliers[::10] += 1.0
    np.testing.assert_allclose(predicted(fit_scaling_law(LOG_AMOUNTS, outliers)), USUAL, atol=0.02)


@pytest.mark.parametrize("trend", [0.0, 0.1], ids=["still", "rising"])
def test_a_loss_that_does_not_fall_has_next_to_no_slope(trend: float) -> None:
    law = fit_scaling_law(LOG_AMOUNTS, np.log(3.0) + trend * (LOG_AMOUNTS - LOG_AMOUNTS[0]) + NOISE)
    assert law.log_slope(4e5) < fit_scaling_law(LOG_AMOUNTS, USUAL).log_slope(4e5) - 3.0


@settings(max_examples=25)
@given(losses=st.lists(st.floats(-740, 709), min_size=4, max_size=20))
def test_any_course_has_a_law_of_numbers(losses: list[float]) -> None:
    law = fit_scaling_law(np.log(np.arange(1.0, len(losses) + 1)), np.array(losses))
    assert np.isfinite([law.log_floor, law.log_scale, law.log_slope(1.0)]).all()
    assert EXPONENTS[0] <= law.exponent <= EXPONENTS[1]
