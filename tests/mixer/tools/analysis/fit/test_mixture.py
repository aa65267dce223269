"""The best mixture, against laws whose best mixture is known."""

import functools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from mixer.tools.analysis.fit import Constraints, fit_mixture
from mixer.utils.arrays import FloatArray
from tests.refusals import refused


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
    assert fitted.expected_loss == pytest.approx(1.6 / 3, abs=0.01)
    assert fitted.error < 0.6 * fitted.constant_error
    assert fitted.rank_correlation > 0.9
    assert fitted.warnings == []


def test_the_worst_of_exponential_losses_is_least_where_they_are_equal() -> None:
    # L_k = 1 + exp(−s_k w_k), s = (2, 4): equal at 2 w = 4 (1 − w), so w = 2/3 and both are 1 + exp(−4/3).
    mixtures = line(0.05, 0.95)
    losses = 1 + np.exp(-np.array([2.0, 4.0]) * mixtures)
    fitted = fit_mixture(mixtures, losses, "worst")
    assert fitted.shares == pytest.approx([2 / 3, 1 / 3], abs=5e-3)
    assert fitted.expected_loss == pytest.approx(1 + np.exp(-4 / 3), abs=5e-3)
    assert fitted.error < 0.2 * fitted.constant_error


def test_weights_of_losses_shift_the_best_mixture() -> None:
    # 3 (1 − w)² + 1 w² is least at 6 (1 − w) = 2 w: w = 3/4, and there (3/4) (1/4)² + (1/4) (3/4)² = 12/64.
    mixtures = line(0.0, 1.0)
    fit = functools.partial(fit_mixture, mixtures, squares(mixtures), streams=["math", "code"])
    fitted = fit("math=3,code=1")
    assert fitted.weights == pytest.approx({"math": 0.75, "code": 0.25}, abs=0.01)
    assert fitted.expected_loss == pytest.approx(12 / 64, abs=1e-3)
    assert fitted.shares.tolist() == fit({"math": 3, "code": 1}).shares.tolist()


def test_a_loss_of_no_stream_is_an_objective_too() -> None:
    # The target's loss is (w − 0.3)², whatever those of the streams; it does not count in the average.
    mixtures = line(0.0, 1.0)
    losses = np.column_stack([squares(mixtures), (mixtures[:, 0] - 0.3) ** 2])
    names = {"streams": ["a", "b"], "loss_names": ["a", "b", "target"]}
    target = fit_mixture(mixtures, losses, "target=1", **names)
    assert target.shares[0] == pytest.approx(0.3, abs=0.01)
    assert set(target.expected_losses) == {"target"}
    assert fit_mixture(mixtures, losses, **names).shares[0] == pytest.approx(0.5, abs=0.02)


@settings(max_examples=2, deadline=None)
@given(st.permutations(range(4)), st.sampled_from(["average", "worst"]), st.integers(0, 3))
def test_permuting_streams_permutes_the_mixture(order: list[int], objective: str, seed: int) -> None:
    mixtures = dirichlet(12, 4, seed)
    losses = squares(mixtures, np.array([1.0, 2.0, 1.5, 1.2]))
    one, other = (fit_mixture(mixtures[:, of], losses[:, of], objective) for of in (range(4), order))
    assert other.shares == pytest.approx(one.shares[order], abs=0.02)
    assert other.error == pytest.approx(one.error, abs=1e-4)


def test_the_same_runs_give_the_same_mixture_to_the_bit() -> None:
    mixtures = dirichlet(7, 3)
    losses = squares(mixtures) + 0.05 * np.random.default_rng(0).standard_normal((7, 3))
    np.random.seed(1)  # noqa: NPY002
    state = np.random.get_state()[1].tolist()  # noqa: NPY002
    one, two = fit_mixture(mixtures, losses), fit_mixture(mixtures, losses)
    assert (one.shares.tolist(), one.error) == (two.shares.tolist(), two.error)
    assert np.random.get_state()[1].tolist() == state  # noqa: NPY002


@settings(max_examples=3, deadline=None)
@given(st.integers(2, 6), st.integers(3, 10), st.integers(0, 100))
def test_it_stays_within_the_shares_of_the_runs(num_streams: int, num_runs: int, seed: int) -> None:
    mixtures = dirichlet(num_runs, num_streams, seed)
    losses = np.random.default_rng(seed).normal(2.0, 0.3, mixtures.shape)  # no law at all
    fitted = fit_mixture(mixtures, losses)
    assert fitted.shares.sum() == pytest.approx(1.0)
    assert (fitted.shares >= mixtures.min(axis=0) - 1e-6).all()
    assert (fitted.shares <= mixtures.max(axis=0) + 1e-6).all()
    assert np.isfinite([fitted.expected_loss, fitted.error]).all()


def test_a_metric_of_which_more_is_better_is_the_negative_of_a_loss() -> None:
    mixtures = dirichlet(9, 3)
    less, more = (fit_mixture(mixtures, sign * squares(mixtures), greater_is_better=sign < 0) for sign in (1.0, -1.0))
    assert more.shares.tolist() == less.shares.tolist()
    assert more.expected_loss == pytest.approx(-less.expected_loss)
    assert more.gain == pytest.approx(less.gain)
    assert more.interval == pytest.approx([-end for end in less.interval[::-1]])


def test_the_largest_models_decide() -> None:
    # The small models' best mixture is 0.5, that of the large ones 0.7.
    small, large = line(0.05, 0.95), line(0.2, 0.9)[::2]
    losses = np.concatenate([(small[:, :1] - 0.5) ** 2, 1.0 + (large[:, :1] - 0.7) ** 2])
    sizes, mixtures = [1e6] * 9 + [1e9] * 5, np.concatenate([small, large])
    fitted = fit_mixture(mixtures, losses, loss_names=["target"], sizes=sizes)
    assert fitted.shares[0] == pytest.approx(0.7, abs=0.05)
    assert len(fitted.seen) == 5
    runs = [f"small {n}" for n in range(9)] + [f"large {n}" for n in range(5)]
    same = fit_mixture(np.concatenate([large, small[:4], large]), losses, loss_names=["target"], runs=runs, sizes=sizes)
    assert same.best_run.startswith("large")


def test_a_run_that_diverged_is_left_out_and_named() -> None:
    mixtures = dirichlet(9, 2)
    losses = 2.0 + squares(mixtures)
    kept = np.arange(9) != 4
    whole = fit_mixture(mixtures[kept], losses[kept])
    losses[4] = [1e12, 3.0]
    fitted = fit_mixture(mixtures, losses)
    assert fitted.diverged == ["run 5"]
    assert fitted.expected_loss == whole.expected_loss
    assert fitted.shares.tolist() == whole.shares.tolist()
    assert any("run 5" in warning for warning in fitted.warnings)
    with refused("losses", found=2) as info:
        fit_mixture(mixtures[2:5], losses[2:5])
    assert "run 3" in str(info.value)


@pytest.mark.parametrize(
    "losses", [[0.0, 0.05, 0.4, 0.5], [0.0, 0.0, 0.2, 0.2], [-1.0, -0.9, -0.8, 0.3], [2.0, 2.1, 2.2, 9]]
)
def test_losses_that_are_merely_worse_have_not_diverged(losses: list[float]) -> None:
    assert fit_mixture(dirichlet(4, 2), np.array(losses)[:, None], loss_names=["x"]).diverged == []


def test_runs_without_a_loss_that_counts_are_left_out_of_the_check() -> None:
    mixtures = dirichlet(8, 2)
    losses = squares(mixtures)
    losses[3, 1], losses[5, 1] = np.nan, np.inf
    names = {"streams": ["math", "code"]}
    assert len(fit_mixture(mixtures, losses, **names).seen) == 6
    assert len(fit_mixture(mixtures, losses, "math=1", **names).seen) == 8
    losses[:6, 1] = np.nan
    with refused("losses", found=2):
        fit_mixture(mixtures, losses, **names)


PAIRS = [[0.1, 0.9], [0.4, 0.6], [0.6, 0.4], [0.9, 0.1]]


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        ({"mixtures": [[0.5, 0.5], [0.5001, 0.4999], [0.2, 0.8]]}, "losses"),
        ({"groups": [0, 0, 1]}, "groups"),
        ({"groups": [7, 7, 2, 2]}, "losses"),
        ({"mixtures": [[0.5, -0.5]] * 4}, "mixtures.run 1"),
        ({"mixtures": [[0.0, 0.0]] * 4}, "mixtures.run 1"),
        ({"mixtures": [0.5, 0.5]}, "mixtures"),
        ({"losses": np.ones((3, 2))}, "mixtures"),
        ({"losses": np.ones((4, 3))}, "loss_names"),
        ({"streams": ["a", "a"]}, "streams"),
        ({"constraints": Constraints(bounds={"math": 1.0})}, "bounds"),
        ({"sizes": [1.0, 2.0]}, "sizes"),
        ({"objective": "best"}, "objective"),
        ({"objective": "math=1"}, "objective"),
        ({"objective": "stream 1=-1"}, "objective"),
        ({"objective": {"stream 1": True}}, "objective"),
        ({"objective": {}}, "objective"),
        ({"objective": "stream 1=1,stream 1=2"}, "objective"),
        ({"objective": "stream 1=much"}, "objective"),
    ],
)
def test_wrong_input_is_refused_with_its_name(arguments: dict[str, Any], option: str) -> None:
    mixtures = arguments.get("mixtures", PAIRS)
    given = {"mixtures": mixtures, "losses": squares(np.asarray(mixtures)), **arguments}
    if np.ndim(mixtures) < 2:
        given["losses"] = np.ones((4, 2))
    with refused(option):
        fit_mixture(**given)
