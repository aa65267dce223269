"""The best mixture, against laws whose best mixture is known."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mixer.analysis.fit import fit_mixture
from mixer.analysis.fit.regressors import REGRESSORS
from tests.mixer.analysis.fit.laws import best_of_weighted_squares, dirichlet, own_squares, weighted_squares


def test_the_best_mixture_of_a_quadratic_law_is_found() -> None:
    assert best_of_weighted_squares(np.array([3.0, 3.0, 3.0])) == pytest.approx(np.full(3, 1 / 3))
    # a = (1, 1.5, 1.2): Σ 1/a = 1 + 2/3 + 5/6 = 2.5, and w = 1 − 0.8/a = (0.2, 7/15, 1/3).
    weights = np.array([1.0, 1.5, 1.2])
    mixtures = dirichlet(14, 3)
    fitted = fit_mixture(mixtures, weighted_squares(mixtures, weights))
    assert fitted.shares == pytest.approx([0.2, 7 / 15, 1 / 3], abs=0.02)
    # At the best (1 − w)² = (0.64, 64/225, 4/9), times a: (0.64, 32/75, 8/15), 1.6 in all.
    assert fitted.expected_loss == pytest.approx(1.6 / 3, abs=2e-3)
    assert fitted.error < 2e-3 < fitted.constant_error
    assert fitted.rank_correlation > 0.99
    assert fitted.warnings == []


def test_the_worst_of_exponential_losses_is_least_where_they_are_equal() -> None:
    # L_k = 1 + exp(−s_k w_k), s = (2, 4): equal at 2 w = 4 (1 − w), so w = 2/3 and both are 1 + exp(−4/3).
    first = np.linspace(0.05, 0.95, 9)
    mixtures = np.stack([first, 1 - first], axis=1)
    losses = 1 + np.exp(-np.array([2.0, 4.0]) * mixtures)
    for regressor in ("exponential", "auto"):
        fitted = fit_mixture(mixtures, losses, "worst", regressor=regressor)
        assert fitted.shares == pytest.approx([2 / 3, 1 / 3], abs=5e-3)
        assert fitted.expected_loss == pytest.approx(1 + np.exp(-4 / 3), abs=5e-3)
    assert fitted.errors["exponential"] < 0.1 * fitted.constant_error


def test_weights_of_losses_shift_the_best_mixture() -> None:
    # 3 (1 − w)² + 1 w² is least at 6 (1 − w) = 2 w: w = 3/4.
    first = np.linspace(0.0, 1.0, 9)
    mixtures = np.stack([first, 1 - first], axis=1)
    for objective in ("math=3,code=1", {"math": 3, "code": 1}):
        fitted = fit_mixture(mixtures, own_squares(mixtures), objective, streams=["math", "code"])
        assert fitted.weights == pytest.approx({"math": 0.75, "code": 0.25}, abs=0.01)
        # (3/4) (1/4)² + (1/4) (3/4)² = 12/64.
        assert fitted.expected_loss == pytest.approx(12 / 64, abs=1e-3)


def test_a_loss_of_no_stream_is_an_objective_too() -> None:
    # The target's loss is (w − 0.3)², whatever those of the streams; it does not count in the average.
    first = np.linspace(0.0, 1.0, 9)
    mixtures = np.stack([first, 1 - first], axis=1)
    losses = np.column_stack([own_squares(mixtures), (first - 0.3) ** 2])
    names = {"streams": ["a", "b"], "loss_names": ["a", "b", "target"]}
    assert fit_mixture(mixtures, losses, "target=1", **names).shares[0] == pytest.approx(0.3, abs=0.01)
    assert fit_mixture(mixtures, losses, **names).shares[0] == pytest.approx(0.5, abs=0.01)
    assert set(fit_mixture(mixtures, losses, "target=1", **names).expected_losses) == {"target"}


@pytest.mark.parametrize("regressor", ["exponential", "gaussian-process", "auto"])
def test_a_law_of_another_family_is_near_enough(regressor: str) -> None:
    # Power laws of the own share, L_k = (w_k + 0.1)^−0.5 + noise: convex and alike, so least where shares are equal.
    generator = np.random.default_rng(3)
    mixtures = np.random.default_rng(4).dirichlet(2 * np.ones(3), 24)
    losses = (mixtures + 0.1) ** -0.5 + 0.01 * generator.standard_normal(mixtures.shape)
    fitted = fit_mixture(mixtures, losses, regressor=regressor)
    assert fitted.shares == pytest.approx(np.full(3, 1 / 3), abs=0.08)
    assert fitted.error < 0.7 * fitted.constant_error


def test_ten_streams_come_near_the_best() -> None:
    mixtures = dirichlet(80, 10)
    losses = np.exp(-3.0 * mixtures)  # best at 1/10 each, which the runs cover: exp(−0.3) = 0.7408
    fitted = fit_mixture(mixtures, losses, "worst", regressor="exponential")
    assert np.exp(-3.0 * fitted.shares).max() < 0.7408 + 0.02


# ---- Properties ----


@settings(max_examples=15)
@given(st.permutations(range(4)), st.sampled_from(["average", "worst"]), st.integers(0, 3))
def test_permuting_streams_permutes_the_mixture(order: list[int], objective: str, seed: int) -> None:
    mixtures = dirichlet(12, 4, seed)
    losses = weighted_squares(mixtures, np.array([1.0, 2.0, 1.5, 1.2]))
    one = fit_mixture(mixtures, losses, objective)
    other = fit_mixture(mixtures[:, order], losses[:, order], objective)
    assert other.shares == pytest.approx(one.shares[order], abs=1e-3)
    assert other.error == pytest.approx(one.error, abs=1e-4)


@pytest.mark.parametrize("regressor", ["exponential", "gaussian-process"])
def test_the_order_of_runs_makes_no_difference(regressor: str) -> None:
    mixtures = dirichlet(12, 3)
    losses = weighted_squares(mixtures, np.array([1.0, 2.0, 1.5]))
    order = np.random.default_rng(1).permutation(12)
    one = fit_mixture(mixtures, losses, regressor=regressor)
    other = fit_mixture(mixtures[order], losses[order], regressor=regressor)
    assert other.shares == pytest.approx(one.shares, abs=1e-9)
    assert other.left_out.predicted == pytest.approx(one.left_out.predicted[order])
    assert other.best_run == list(order).index(one.best_run)


def test_the_same_runs_give_the_same_mixture_to_the_bit() -> None:
    mixtures = dirichlet(10, 3)
    losses = own_squares(mixtures) + 0.05 * np.random.default_rng(0).standard_normal((10, 3))
    np.random.seed(1)  # noqa: NPY002
    state = np.random.get_state()[1].tolist()  # noqa: NPY002
    one, two = fit_mixture(mixtures, losses), fit_mixture(mixtures, losses)
    assert one.shares.tolist() == two.shares.tolist()
    assert one.errors == two.errors
    assert np.random.get_state()[1].tolist() == state  # noqa: NPY002


@settings(max_examples=25)
@given(
    st.integers(2, 6),
    st.integers(3, 15),
    st.sampled_from(list(REGRESSORS)),
    st.integers(0, 100),
)
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


def test_more_runs_do_not_hurt_on_average() -> None:
    def regret(num_runs: int, seed: int) -> float:
        mixtures = dirichlet(40, 3, seed)[:num_runs]
        noise = 0.05 * np.random.default_rng(100 + seed).standard_normal((40, 3))[:num_runs]
        fitted = fit_mixture(mixtures, own_squares(mixtures) + noise)
        return float(own_squares(fitted.shares[None]).mean() - 4 / 9)  # (1 − 1/3)² at the best

    regrets = [np.mean([regret(num_runs, seed) for seed in range(8)]) for num_runs in (6, 12, 40)]
    assert regrets[0] > regrets[1] > regrets[2] - 1e-4
    assert regrets[2] < 0.01


# ---- Least shares ----


def test_every_stream_gets_its_least_share() -> None:
    # The first stream alone counts, its loss is least at the largest share: 1 − 0.2 with a least share of 0.2 for both.
    first = np.linspace(0.1, 0.9, 9)
    mixtures = np.stack([first, 1 - first], axis=1)
    losses = 1.0 - mixtures
    free = fit_mixture(mixtures, losses, "stream 1=1")
    assert free.shares == pytest.approx([0.9, 0.1], abs=0.01)
    kept = fit_mixture(mixtures, losses, "stream 1=1", least_share=0.2)
    assert kept.shares == pytest.approx([0.8, 0.2], abs=0.01)
    assert kept.shares.min() >= 0.2 - 1e-9


def test_a_least_share_that_no_covered_mixture_has_is_refused_with_the_most_there_is() -> None:
    # The third stream never has more than 0.1, though each run alone has some stream at 0.
    mixtures = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.4, 0.5, 0.1]]
    losses = own_squares(np.array(mixtures))
    with pytest.raises(ValueError, match=r"least_share=0.2: no mixture that the runs cover .* 0.1000 is the most"):
        fit_mixture(mixtures, losses, least_share=0.2)
    assert fit_mixture(mixtures, losses, least_share=0.1).shares == pytest.approx([0.4, 0.5, 0.1], abs=1e-6)


# ---- Awkward inputs ----


@pytest.mark.parametrize(
    ("mixtures", "found"),
    [
        ([[0.5, 0.5]], "got 1 with 1"),
        ([[0.5, 0.5]] * 9, "got 9 with 1"),
        ([[0.5, 0.5], [0.5001, 0.4999], [0.2, 0.8]], "got 3 with 2"),
        ([[1.0]] * 5, "got 5 with 1"),
    ],
)
def test_too_few_different_mixtures_are_refused(mixtures: list[list[float]], found: str) -> None:
    with pytest.raises(ValueError, match=rf"at least 3 different mixtures, {found}"):
        fit_mixture(mixtures, np.ones_like(mixtures))


def test_losses_that_are_not_finite_are_refused_where_they_count_alone() -> None:
    mixtures = dirichlet(8, 2)
    losses = own_squares(mixtures)
    losses[3, 1], losses[5, 1] = np.nan, np.inf
    names = {"streams": ["math", "code"], "runs": [f"run-{number}" for number in range(8)]}
    with pytest.raises(ValueError, match=r"run-3 \(code: nan\); run-5 \(code: inf\)"):
        fit_mixture(mixtures, losses, **names)
    fitted = fit_mixture(mixtures, losses, "math=1", **names)
    assert fitted.shares[0] == pytest.approx(mixtures[:, 0].max(), abs=0.01)


def test_a_stream_that_no_run_trained_on_gets_nothing_and_is_named() -> None:
    mixtures = np.column_stack([dirichlet(9, 2), np.zeros(9)])
    fitted = fit_mixture(mixtures, own_squares(mixtures), streams=["a", "b", "new"])
    assert fitted.weights["new"] == 0.0
    assert any("No run trained on ['new']" in warning for warning in fitted.warnings)
    with pytest.raises(ValueError, match=r"0\.0000 is the most"):
        fit_mixture(mixtures, own_squares(mixtures), least_share=0.1)


def test_counts_are_as_good_as_shares() -> None:
    mixtures = dirichlet(9, 2)
    losses = own_squares(mixtures)
    counts = mixtures * np.arange(1, 10)[:, None] * 1000
    one, other = (fit_mixture(amounts, losses, regressor="exponential").shares for amounts in (counts, mixtures))
    assert one == pytest.approx(other)


def test_constant_losses_explain_nothing() -> None:
    mixtures = dirichlet(8, 3)
    fitted = fit_mixture(mixtures, np.full((8, 3), 2.0))
    assert fitted.expected_loss == pytest.approx(2.0)
    assert fitted.explains_nothing
    assert np.isnan(fitted.rank_correlation)
    assert fitted.warnings[0].startswith("The fit explains nothing")


def test_a_thousand_streams() -> None:
    mixtures = dirichlet(12, 1000)
    fitted = fit_mixture(mixtures, own_squares(mixtures))
    assert fitted.shares.sum() == pytest.approx(1.0)
    assert any("12 runs cannot tell 1000 streams apart" in warning for warning in fitted.warnings)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"mixtures": [[0.5, -0.5]] * 4},
            "mixtures: run 1: weights must be finite and 0 or more, but 'stream 2' has -0.5",
        ),
        (
            {"mixtures": [[np.nan, 1.0]] * 4},
            "mixtures: run 1: weights must be finite and 0 or more, but 'stream 1' has nan",
        ),
        ({"mixtures": [[0.0, 0.0]] * 4}, "mixtures: run 1: the weights of all streams are 0"),
        ({"mixtures": [0.5, 0.5]}, r"must have the shape \[num_runs, num_streams\] .* got \[2\]"),
        ({"mixtures": np.zeros((0, 2))}, r"got \[0, 2\]"),
        ({"losses": np.ones((3, 2))}, r"got \[4, 2\] and \[3, 2\]"),
        ({"losses": np.ones((4, 3))}, "loss_names: expected 3 different names, got 2"),
        ({"streams": ["a"]}, "streams: expected 2 different names, got 1"),
        ({"streams": ["a", "a"]}, r"streams: expected 2 different names, got 2: \['a', 'a'\]"),
        ({"runs": ["a"]}, "runs: expected 4 different names"),
        ({"regressor": "forest"}, "regressor must be 'auto' or one of"),
        ({"least_share": 0.6}, r"least_share must be in \[0.0, 0.5\], got 0.6"),
        ({"least_share": np.nan}, "least_share must be"),
        ({"objective": "best"}, "must be 'average', 'worst' or 'NAME=weight,...', got 'best'"),
        ({"objective": "math=1"}, r"there is no loss of \['math'\]; there are losses of \['stream 1', 'stream 2'\]"),
        ({"objective": "stream 1=-1"}, "'stream 1' has -1"),
        ({"objective": "stream 1=0"}, "the weights of all streams are 0"),
        ({"objective": "stream 1=1,stream 1=2"}, "'stream 1' is given twice"),
        ({"objective": "stream 1=much"}, "'stream 1=much' is no NAME=weight"),
        ({"objective": "=1"}, "'=1' is no NAME=weight"),
        ({"objective": ""}, "'' is no NAME=weight"),
    ],
)
def test_wrong_input_is_refused_with_its_name(arguments: dict[str, object], message: str) -> None:
    mixtures = np.array([[0.1, 0.9], [0.4, 0.6], [0.6, 0.4], [0.9, 0.1]])
    with pytest.raises(ValueError, match=message):
        fit_mixture(**{"mixtures": mixtures, "losses": own_squares(mixtures), **arguments})
