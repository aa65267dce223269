"""The regression, against known laws and scikit-learn's Gaussian process."""

import numpy as np
import pytest
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF

from mixer.tools.analysis.fit.fit_target import FitTarget
from mixer.tools.analysis.fit.prediction import predict_objective
from mixer.tools.analysis.fit.surrogate import Kernel, Surrogate, fit_surrogates, rank_correlation
from mixer.tools.analysis.search.design import expected_improvement, improving, spread
from mixer.utils.arrays import FloatArray

ALONE = FitTarget("alone", {"a": 1.0})


def dirichlet(num_runs: int, num_streams: int, seed: int = 0) -> FloatArray:
    return np.random.default_rng(seed).dirichlet(np.ones(num_streams), num_runs)


def law(mixtures: FloatArray) -> FloatArray:
    """Returns that diminish, and one pair of sources that help each other."""
    roots = np.sqrt(mixtures)
    return np.asarray(2.0 + np.exp(-1.5 * roots[:, 0] - 0.5 * roots[:, 1] - 2.0 * mixtures[:, 0] * mixtures[:, 2]))


def test_it_is_a_gaussian_process_with_an_unknown_mean() -> None:
    points, new = dirichlet(8, 3), dirichlet(4, 3, 1)
    kernel, noise, logs = Kernel(0.7, 3.0), 0.1, np.log(law(points) - 1.0)
    inverse = np.linalg.inv(kernel(points, points) + noise * np.eye(8))
    ours = Surrogate(points, logs, 1.0, kernel, inverse, noise)

    # The same by scikit-learn: a wide constant stands for the unknown mean, a feature map for the law.
    def features(mixtures: FloatArray) -> FloatArray:
        return np.hstack([mixtures, np.sqrt(mixtures), np.full((len(mixtures), 1), 1e3)])

    class OnRoots(RBF):
        def __call__(self, X: FloatArray, Y: FloatArray | None = None, eval_gradient: bool = False) -> FloatArray:  # noqa: N803
            other = X if Y is None else Y
            return 3.0 * RBF(0.7)(X[:, 3:6], other[:, 3:6]) + X @ other.T

        def diag(self, X: FloatArray) -> FloatArray:  # noqa: N803
            return np.asarray(np.diag(self(X)))

    theirs = GaussianProcessRegressor(OnRoots(), alpha=noise, optimizer=None).fit(features(points), logs)
    means, covariances = theirs.predict(features(new), return_cov=True)
    found, covariance = ours.posterior(new)
    assert np.log(found - 1.0) == pytest.approx(means, abs=1e-4)
    scale = np.outer(found - 1.0, found - 1.0) * ours.variance
    assert covariance == pytest.approx(covariances * scale, abs=1e-4 * scale.max())
    assert ours.moments(new)[1] == pytest.approx(np.sqrt(np.diag(covariance)))


def test_a_law_is_found_from_few_runs_and_its_errors_are_those_told() -> None:
    noise = 0.003 * np.random.default_rng(2).standard_normal(40)
    points, new = dirichlet(40, 4), dirichlet(300, 4, 1)
    fitted = predict_objective(ALONE, points, (law(points) + noise)[:, None], np.ones(40))
    assert rank_correlation(fitted(new), law(new)) > 0.99
    means, deviations = fitted.moments(new)
    assert 0.75 <= np.mean(np.abs(means - law(new)) <= 1.645 * deviations) <= 1.0
    gains = np.array([fitted.gain(one, other) for one, other in zip(new[:150], new[150:], strict=True)])
    true = law(new[150:]) - law(new[:150])
    assert gains[:, 0] == pytest.approx(means[150:] - means[:150])
    assert np.mean(np.abs(gains[:, 0] - true) <= 1.645 * gains[:, 1]) >= 0.75


def test_scale_and_shift_of_a_loss_scale_and_shift_its_prediction() -> None:
    points, new = dirichlet(12, 3), dirichlet(5, 3, 1)
    (one,), (other,) = (
        fit_surrogates(points, own[:, None], np.ones(12)) for own in (law(points), 7 - 5 + 3 * law(points))
    )
    assert other.moments(new)[0] == pytest.approx(2 + 3 * one.moments(new)[0])


def test_runs_that_lack_a_loss_count_for_the_others() -> None:
    points = dirichlet(20, 3)
    losses = np.stack([law(points), law(points[:, ::-1])], axis=1)
    losses[:5, 1] = np.nan
    whole = fit_surrogates(points, losses[:, :1], np.ones(20))[0]
    part = fit_surrogates(points[5:], losses[5:, 1:], np.ones(15))[0]
    for found, expected in zip(fit_surrogates(points, losses, np.ones(20)), (whole, part), strict=True):
        assert found.moments(points)[0] == pytest.approx(expected.moments(points)[0])


def test_small_models_inform_the_fit_of_the_large_one() -> None:
    small, large, new = dirichlet(60, 6), dirichlet(6, 6, 1), dirichlet(200, 6, 2)
    smaller = predict_objective(ALONE, small, law(small)[:, None], np.ones(60), is_checked=False)
    values = (1.0 + 0.6 * law(large))[:, None]
    with_small = predict_objective(ALONE, large, values, np.ones(6), smaller, is_checked=False)
    alone = predict_objective(ALONE, large, values, np.ones(6), is_checked=False)
    assert rank_correlation(with_small(new), law(new)) > max(0.97, rank_correlation(alone(new), law(new)))


def test_constant_losses_are_predicted_as_they_are() -> None:
    points = dirichlet(6, 3)
    found = predict_objective(ALONE, points, np.full((6, 1), 2.5), np.ones(6))
    assert found(dirichlet(3, 3, 1)) == pytest.approx([2.5] * 3)


def test_expected_improvement_is_that_of_draws_and_chosen_runs_differ() -> None:
    points, new = dirichlet(12, 3), dirichlet(50, 3, 1)
    fitted = predict_objective(ALONE, points, law(points)[:, None], np.ones(12))
    means, deviations = fitted.moments(new)
    best = fitted(points).min()
    draws = means + deviations * np.random.default_rng(0).standard_normal((200_000, 1))
    drawn = np.maximum(best - draws, 0.0).mean(axis=0)
    assert expected_improvement(fitted, new) == pytest.approx(drawn, abs=0.02 * deviations.max())
    chosen, gain = improving(fitted, new, 6, np.random.default_rng(0))
    assert len(set(chosen)) == 6
    assert gain == pytest.approx(expected_improvement(fitted, new).max())
    assert chosen[0] == expected_improvement(fitted, new).argmax()


def test_spread_mixtures_are_the_corners_after_the_middle() -> None:
    candidates = np.concatenate([np.eye(3), np.full((1, 3), 1 / 3), dirichlet(20, 3)])
    assert sorted(spread(candidates, candidates[3:4], 3)) == [0, 1, 2]
