import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mixer.policies import DoGE, Mixture
from tests.mixer.policies.gradients import measured, mixture_of, unmeasured_step

GRAM = [[4.0, 2, 1], [2, 9, -1], [1, -1, 1]]  # norms 2, 3, 1: mean 2
NAN = float("nan")


def decided(policy: DoGE, *observations, weights=(1 / 3, 1 / 3, 1 / 3)) -> np.ndarray:
    decision = policy.start(mixture_of(weights))
    for observation in observations:
        decision = policy.update(observation)
    return decision.weights


def update(gram=GRAM, norms=(4.0, 9.0, 1.0), **arguments):
    return measured(norms, [0, 0, 0], [20, 20, 20], gram=gram, **arguments)


def softmax(scores) -> np.ndarray:
    return np.exp(scores) / np.exp(scores).sum()


class TestScores:
    def test_the_others_by_hand(self) -> None:
        # Products with the others: 3, 1, 0; over the mean norm 2: 1.5, 0.5, 0.
        weights = decided(DoGE(None, 1, 0.8), update())
        np.testing.assert_allclose(weights, softmax(0.8 * np.array([1.5, 0.5, 0])))

    def test_targets_by_hand(self) -> None:
        # Towards the third: 1, −1 (cut at 0), 1; over 2.
        weights = decided(DoGE(["stream 2"], 1, 0.8), update())
        np.testing.assert_allclose(weights, softmax(0.8 * np.array([0.5, 0, 0.5])))
        # Two thirds of the first and one of the third: 3, 1, 1.
        weights = decided(DoGE({"stream 0": 2.0, "stream 2": 1.0}, 1, 0.8), update())
        np.testing.assert_allclose(weights, softmax(0.8 * np.array([1.5, 0.5, 0.5])))

    def test_a_target_is_not_helped_by_its_own_noise(self) -> None:
        # The batch's own square of the target is 50, without noise it is 1.
        gram = [[4.0, 2, 1], [2, 9, -1], [1, -1, 50]]
        weights = decided(DoGE(["stream 2"], 1, 0.8), update(gram))
        np.testing.assert_allclose(weights, softmax(0.8 * np.array([0.5, 0, 0.5])))

    def test_scores_are_cut(self) -> None:
        weights = decided(DoGE(None, 1, 0.8, max_score=1.0), update())
        np.testing.assert_allclose(weights, softmax(0.8 * np.array([1.0, 0.5, 0])))

    def test_scale_free_by_hand(self) -> None:
        # The mean squared norm is 14/3: 9/14, 3/14, 0, in any unit.
        for factor in (1.0, 1e-200, 1e200):
            weights = decided(DoGE(None, 1, 0.8, scale_free=True), update(factor * np.array(GRAM)))
            np.testing.assert_allclose(weights, softmax(0.8 * np.array([9, 3, 0]) / 14))

    def test_the_unit_counts_otherwise(self) -> None:
        # Gradients 10 times as long: products 100 times, norms 10 times; 15, 5, 0 cut at 5.
        weights = decided(DoGE(None, 1, 0.1), update(100 * np.array(GRAM)))
        np.testing.assert_allclose(weights, softmax([0.5, 0.5, 0]))

    def test_steps_add_up_from_the_own_weights(self) -> None:
        own = np.array([0.2, 0.3, 0.5])
        weights = decided(DoGE(None, 1, 0.1), update(), update(), weights=own)
        np.testing.assert_allclose(weights, own * np.exp([0.3, 0.1, 0]) / (own @ np.exp([0.3, 0.1, 0])))


class TestStreams:
    @given(products=st.lists(st.floats(-3, 3), min_size=3, max_size=3))
    def test_who_helps_more_has_more(self, products: list[float]) -> None:
        first, second, third = products
        gram = [[9.0, first, second], [first, 9, third], [second, third, 9]]
        weights = decided(DoGE(None, 1, 1.0, min_samples=0), update(gram))
        helped = np.maximum([first + second, first + third, second + third], 0.0)
        order = np.argsort(helped, kind="stable")
        assert (np.diff(weights[order]) >= -1e-12).all()

    def test_an_unmeasured_stream_keeps_its_share(self) -> None:
        gram = [[4.0, 2, NAN], [2, 9, NAN], [NAN, NAN, NAN]]
        weights = decided(DoGE(None, 1, 1.0), update(gram, (4.0, 9.0, NAN)), weights=(0.3, 0.3, 0.4))
        assert weights[2] == pytest.approx(0.4)
        assert weights[0] == pytest.approx(weights[1])  # both help the other alike

    def test_least_samples(self) -> None:
        batches = [update(step=step) for step in range(1, 200)]
        assert decided(DoGE(None, 1, 1.0), *batches).min() == pytest.approx(2 / 60)

    def test_nothing_measured_holds_the_weights(self) -> None:
        for gram in (np.zeros((3, 3)), np.full((3, 3), NAN)):
            assert decided(DoGE(interval_steps=1), update(gram), weights=(0.2, 0.3, 0.5)).tolist() == [0.2, 0.3, 0.5]
        assert decided(DoGE(), unmeasured_step([20, 20, 20])).tolist() == [1 / 3] * 3


def test_targets_have_to_be_streams() -> None:
    start = Mixture(("a", "b"), np.array([1, 1]), np.array([0.5, 0.5]))
    with pytest.raises(ValueError, match=r"DoGE: targets must be names of streams, \['a', 'b'\]; unknown: \['c'\]"):
        DoGE(["a", "c"]).start(start)
    with pytest.raises(ValueError, match=r"got a text: write \['a'\]"):
        DoGE("a")
    with pytest.raises(ValueError, match=r"targets must be a list of names .*, got 3; None is for all streams"):
        DoGE(3)
    with pytest.raises(ValueError, match="targets must name at least one stream"):
        DoGE([])
    with pytest.raises(ValueError, match=r"'a' has -1\.0"):
        DoGE({"a": -1.0}).start(start)
    with pytest.raises(ValueError, match="rate must be 0 or more, got nan"):
        DoGE(rate=float("nan"))


def test_the_variance_is_measured_for_targets_alone() -> None:
    assert DoGE().needs == {"gradient"}
    assert DoGE(["a"]).needs == {"gradient_variance"}
