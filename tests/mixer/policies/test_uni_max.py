import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mixer.policies import UniMax
from tests.mixer.policies.losses import mixture, observe


def weights_of(policy: UniMax, sizes: list[int]) -> np.ndarray:
    return policy.start(mixture([1.0] * len(sizes), sizes)).weights


def test_by_hand() -> None:
    # An even part of 300 is 100, of which the first can have 2 · 10 only; 280 are left for two: 140 each, below their
    # caps of 200 and 2000.
    np.testing.assert_allclose(weights_of(UniMax(300, 2), [1000, 10, 100]), [140 / 300, 20 / 300, 140 / 300])


def test_a_cap_in_the_middle_frees_samples_for_the_largest() -> None:
    # 600: 20 of 200, then 200 of 290, and the 380 that are left.
    np.testing.assert_allclose(weights_of(UniMax(600, 2), [1000, 10, 100]), [380 / 600, 20 / 600, 200 / 600])


def test_a_short_run_is_even_and_the_longest_proportional() -> None:
    np.testing.assert_allclose(weights_of(UniMax(30), [1000, 10, 100]), [1 / 3] * 3)
    np.testing.assert_allclose(weights_of(UniMax(1110), [1000, 10, 100]), [1000 / 1110, 10 / 1110, 100 / 1110])


def test_it_never_changes() -> None:
    policy = UniMax(300, 2)
    first = weights_of(policy, [1000, 10, 100])
    assert policy.is_static
    np.testing.assert_array_equal(policy.update(observe(7, [1.0, 2.0, 3.0])).weights, first)


@given(
    sizes=st.lists(st.integers(1, 10**9), min_size=2, max_size=40),
    max_epochs=st.floats(0.1, 100),
    part=st.floats(1e-3, 1.0),
)
def test_no_stream_is_passed_over_too_often_and_those_below_their_cap_are_even(sizes, max_epochs, part) -> None:
    caps = max_epochs * np.array(sizes)
    budget = max(1.0, part * caps.sum())
    if budget > caps.sum():
        return
    drawn = budget * weights_of(UniMax(budget, max_epochs), sizes)
    assert (drawn <= caps * (1 + 1e-9)).all()
    free = drawn < caps * (1 - 1e-9)
    if free.any():
        np.testing.assert_allclose(drawn[free], drawn[free][0], rtol=1e-6)
        assert (drawn[~free] <= drawn[free][0] * (1 + 1e-6)).all(), "what is capped would have had more"


def test_more_than_the_cap_allows_is_refused_with_the_least_cap_that_does() -> None:
    with pytest.raises(
        ValueError, match=r"budget of 333 samples is more than 1 passes .* which have 111; .* of 3 or more"
    ):
        weights_of(UniMax(333), [100, 10, 1])


def test_streams_of_unknown_size_are_refused_unless_it_is_given() -> None:
    with pytest.raises(ValueError, match=r"\['b'\] are iterable and of unknown size. Give sizes="):
        weights_of(UniMax(30), [100, 0])
    np.testing.assert_allclose(weights_of(UniMax(30, sizes={"b": 10, "a": 100}), [100, 0]), [2 / 3, 1 / 3])


def test_tokens_need_sizes_in_tokens() -> None:
    with pytest.raises(ValueError, match="UniMax in tokens needs sizes in tokens"):
        weights_of(UniMax(30, unit="tokens"), [100, 10])
    np.testing.assert_allclose(weights_of(UniMax(3000, sizes=[200, 9000], unit="tokens"), [100, 10]), [1 / 15, 14 / 15])


@pytest.mark.parametrize("arguments", [(0,), (float("nan"),), (10, 0.0), (10, float("inf"))])
def test_values_outside_their_ranges_are_refused(arguments: tuple) -> None:
    with pytest.raises(ValueError, match="must be"):
        UniMax(*arguments)


def test_a_thousand_streams() -> None:
    weights = weights_of(UniMax(200_000, 1.0), list(range(1, 1001)))
    assert weights.sum() == pytest.approx(1.0)
    assert (np.diff(weights) >= -1e-15).all()
