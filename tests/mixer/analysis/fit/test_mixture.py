"""The best mixture, against laws whose best mixture is known."""

import functools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mixer.analysis.fit import fit_mixture
from mixer.analysis.fit.regressors import REGRESSORS
from mixer.utils.arrays import FloatArray

quick_fit = functools.partial(fit_mixture, regressor="exponential")


def dirichlet(num_runs: int, num_streams: int, seed: int = 0) -> FloatArray:
    return np.random.default_rng(seed).dirichlet(np.ones(num_streams), num_runs)


def line(least: float, most: float) -> FloatArray:
    """Nine mixtures of two streams."""
    first = np.linspace(least, most, 9)
    return np.stack([first, 1 - first], axis=1)


def squares(mixtures: FloatArray, weights: Any = 1.0) -> FloatArray:
    """L_k = a_k (1 − w_k)²: at the least sum all a_k (1 − w_k) are the same, so 1 − w_k = (K − 1) / (a_k Σ 1/a)."""
    return np.asarray(weights * (1.0 - mixtures) ** 2)


def test_the_best_mixture_of_a_quadratic_law_is_found() -> None:
    # a = (1, 1.5, 1.2): Σ 1/a = 1 + 2/3 + 5/6 = 2.5, and w = 1 − 0.8/a = (0.2, 7/15, 1/3).
    mixtures = dirichlet(11, 3)
    fitted = fit_mixture(mixtures, squares(mixtures, np.array([1.0, 1.5, 1.2])))
    assert fitted.shares == pytest.approx([0.2, 7 / 15, 1 / 3], abs=0.02)
    # At the best (1 − w)² = (0.64, 64/225, 4/9), times a: (0.64, 32/75, 8/15), 1.6 in all.
    assert fitted.expected_loss == pytest.approx(1.6 / 3, abs=2e-3)
    assert fitted.error < 2e-3 < fitted.constant_error
    assert fitted.rank_correlation > 0.99
    assert fitted.warnings == []


def test_the_worst_of_exponential_losses_is_least_where_they_are_equal() -> None:
    # L_k = 1 + exp(−s_k w_k), s = (2, 4): equal at 2 w = 4 (1 − w), so w = 2/3 and both are 1 + exp(−4/3).
    mixtures = line(0.05, 0.95)
    losses = 1 + np.exp(-np.array([2.0, 4.0]) * mixtures)
    for regressor in ("exponential", "auto"):
        fitted = fit_mixture(mixtures, losses, "worst", regressor=regressor)
        assert fitted.shares == pytest.approx([2 / 3, 1 / 3], abs=5e-3)
        assert fitted.expected_loss == pytest.approx(1 + np.exp(-4 / 3), abs=5e-3)
    assert fitted.errors["exponential"] < 0.1 * fitted.constant_error


def test_weights_of_losses_shift_the_best_mixture() -> None:
    # 3 (1 − w)² + 1 w² is least at 6 (1 − w) = 2 w: w = 3/4, and there (3/4) (1/4)² + (1/4) (3/4)² = 12/64.
    mixtures = line(0.0, 1.0)
    fit = functools.partial(fit_mixture, mixtures, squares(mixtures), streams=["math", "code"])
    fitted = fit("math=3,code=1", regressor="gaussian-process")
    assert fitted.weights == pytest.approx({"math": 0.75, "code": 0.25}, abs=0.01)
    assert fitted.expected_loss == pytest.approx(12 / 64, abs=1e-3)
    texts, numbers = (fit(one, regressor="exponential") for one in ("math=3,code=1", {"math": 3, "code": 1}))
    assert texts.shares.tolist() == numbers.shares.tolist()


def test_a_loss_of_no_stream_is_an_objective_too() -> None:
    # The target's loss is (w − 0.3)², whatever those of the streams; it does not count in the average.
    mixtures = line(0.0, 1.0)
    losses = np.column_stack([squares(mixtures), (mixtures[:, 0] - 0.3) ** 2])
    names = {"streams": ["a", "b"], "loss_names": ["a", "b", "target"]}
    target = fit_mixture(mixtures, losses, "target=1", **names)
    assert target.shares[0] == pytest.approx(0.3, abs=0.01)
    assert set(target.expected_losses) == {"target"}
    assert quick_fit(mixtures, losses, **names).shares[0] == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize(
    "regressor", ["exponential", *(pytest.param(name, marks=pytest.mark.full) for name in ("gaussian-process", "auto"))]
)
def test_a_law_of_another_family_is_near_enough(regressor: str) -> None:
    # Power laws of the own share, L_k = (w_k + 0.1)^−0.5 + noise: convex and alike, so least where shares are equal.
    mixtures = np.random.default_rng(4).dirichlet(2 * np.ones(3), 24)
    losses = (mixtures + 0.1) ** -0.5 + 0.01 * np.random.default_rng(3).standard_normal(mixtures.shape)
    fitted = fit_mixture(mixtures, losses, regressor=regressor)
    assert fitted.shares == pytest.approx(np.full(3, 1 / 3), abs=0.08)
    assert fitted.error < 0.7 * fitted.constant_error


@settings(max_examples=6)
@given(st.permutations(range(4)), st.sampled_from(["average", "worst"]), st.integers(0, 3))
def test_permuting_streams_permutes_the_mixture(order: list[int], objective: str, seed: int) -> None:
    mixtures = dirichlet(12, 4, seed)
    losses = squares(mixtures, np.array([1.0, 2.0, 1.5, 1.2]))
    one, other = (quick_fit(mixtures[:, of], losses[:, of], objective) for of in (range(4), order))
    assert other.shares == pytest.approx(one.shares[order], abs=1e-3)
    assert other.error == pytest.approx(one.error, abs=1e-4)


@pytest.mark.parametrize("regressor", ["exponential", "gaussian-process"])
def test_the_order_of_runs_makes_no_difference(regressor: str) -> None:
    mixtures = dirichlet(8, 3)
    losses = squares(mixtures, np.array([1.0, 2.0, 1.5]))
    order = np.random.default_rng(1).permutation(8)
    one, other = (fit_mixture(mixtures[of], losses[of], regressor=regressor) for of in (np.arange(8), order))
    assert other.shares == pytest.approx(one.shares, abs=1e-9)
    assert other.left_out.predicted == pytest.approx(one.left_out.predicted[order])
    assert other.best_run == list(order).index(one.best_run)


def test_the_same_runs_give_the_same_mixture_to_the_bit() -> None:
    mixtures = dirichlet(7, 3)
    losses = squares(mixtures) + 0.05 * np.random.default_rng(0).standard_normal((7, 3))
    np.random.seed(1)  # noqa: NPY002
    state = np.random.get_state()[1].tolist()  # noqa: NPY002
    one, two = fit_mixture(mixtures, losses), fit_mixture(mixtures, losses)
    assert (one.shares.tolist(), one.errors) == (two.shares.tolist(), two.errors)
    assert np.random.get_state()[1].tolist() == state  # noqa: NPY002


@settings(max_examples=6)
@given(st.integers(2, 6), st.integers(3, 10), st.sampled_from(list(REGRESSORS)), st.integers(0, 100))
def test_it_stays_among_the_mixtures_that_the_runs_cover(
    num_streams: int, num_runs: int, regressor: str, seed: int
) -> None:
    mixtures = dirichlet(num_runs, num_streams, seed)
    losses = np.random.default_rng(seed).normal(2.0, 0.3, mixtures.shape)  # no law at all
    fitted = fit_mixture(mixtures, losses, regressor=regressor)
    assert fitted.shares.sum() == pytest.approx(1.0)
    assert (fitted.shares >= mixtures.min(axis=0) - 1e-12).all()
    assert (fitted.shares <= mixtures.max(axis=0) + 1e-12).all()
    assert np.isfinite([fitted.expected_loss, fitted.error]).all()


def test_every_stream_gets_its_least_share_if_a_covered_mixture_has_it() -> None:
    # The first stream alone counts, its loss is least at the largest share: 1 − 0.2 with a least share of 0.2 for both.
    mixtures = line(0.1, 0.9)
    for least_share, expected in ((0.0, [0.9, 0.1]), (0.2, [0.8, 0.2])):
        fitted = quick_fit(mixtures, 1.0 - mixtures, "stream 1=1", least_share=least_share)
        assert fitted.shares == pytest.approx(expected, abs=0.01)
        assert fitted.shares.min() >= least_share - 1e-9
    # The third stream never has more than 0.1, though each run alone has some stream at 0.
    mixtures = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.4, 0.5, 0.1]])
    with pytest.raises(ValueError, match=r"least_share=0.2: no mixture that the runs cover .* 0.1000 is the most"):
        quick_fit(mixtures, squares(mixtures), least_share=0.2)
    kept = quick_fit(mixtures, squares(mixtures), least_share=0.1)
    assert kept.shares == pytest.approx([0.4, 0.5, 0.1], abs=1e-6)


def test_losses_that_are_not_finite_are_refused_where_they_count_alone() -> None:
    mixtures = dirichlet(8, 2)
    losses = squares(mixtures)
    losses[3, 1], losses[5, 1] = np.nan, np.inf
    names = {"streams": ["math", "code"], "runs": [f"run-{number}" for number in range(8)]}
    with pytest.raises(ValueError, match=r"run-3 \(code: nan\); run-5 \(code: inf\)"):
        fit_mixture(mixtures, losses, **names)
    assert quick_fit(mixtures, losses, "math=1", **names).shares[0] == pytest.approx(mixtures[:, 0].max(), abs=0.01)


PAIRS = [[0.1, 0.9], [0.4, 0.6], [0.6, 0.4], [0.9, 0.1]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mixtures": [[0.5, 0.5], [0.5001, 0.4999], [0.2, 0.8]]}, "got 3 with 2"),
        ({"groups": [0, 0, 1]}, "groups: expected 4 labels, one for each run"),
        ({"groups": [7, 7, 2, 2]}, "at least 3 different mixtures, got 4 with 2"),
        ({"mixtures": [[0.5, -0.5]] * 4}, "mixtures: run 1: .* finite and 0 or more, but 'stream 2' has -0.5"),
        ({"mixtures": [[0.0, 0.0]] * 4}, "mixtures: run 1: the weights of all streams are 0"),
        ({"mixtures": [0.5, 0.5]}, r"must have the shape \[num_runs, num_streams\] .* got \[2\]"),
        ({"losses": np.ones((3, 2))}, r"got \[4, 2\] and \[3, 2\]"),
        ({"losses": np.ones((4, 3))}, "loss_names: expected 3 different names, got 2"),
        ({"streams": ["a", "a"]}, r"streams: expected 2 different names, got 2: \['a', 'a'\]"),
        ({"runs": ["a"]}, "runs: expected 4 different names"),
        ({"regressor": "forest"}, "regressor must be 'auto' or one of"),
        ({"least_share": 0.6}, r"least_share must be in \[0.0, 0.5\], got 0.6"),
        ({"objective": "best"}, "must be 'average', 'worst' or 'NAME=weight,...', got 'best'"),
        ({"objective": "math=1"}, r"there is no loss of \['math'\]; there are losses of \['stream 1', 'stream 2'\]"),
        ({"objective": "stream 1=-1"}, "'stream 1' has -1"),
        ({"objective": "stream 1=0"}, "the weights of all streams are 0"),
        ({"objective": "stream 1=1,stream 1=2"}, "'stream 1' is given twice"),
        ({"objective": "stream 1=much"}, "'stream 1=much' is no NAME=weight"),
    ],
)
def test_wrong_input_is_refused_with_its_name(arguments: dict[str, Any], message: str) -> None:
    mixtures = arguments.get("mixtures", PAIRS)
    given = {"mixtures": mixtures, "losses": squares(np.asarray(mixtures)), **arguments}
    if np.ndim(mixtures) < 2:
        given["losses"] = np.ones((4, 2))
    with pytest.raises(ValueError, match=message):
        fit_mixture(**given)
