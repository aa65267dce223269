"""The exponential law and the ridge regression behind it."""

import numpy as np
import pytest

from mixer.analysis.fit.regressors import fit_exponential, fit_ridge


@pytest.mark.parametrize("counts", [[1, 1, 1, 1, 1, 1, 1], [3, 1, 2, 1, 1, 5, 1]])
def test_what_is_left_out_is_what_a_fit_without_it_predicts(counts: list[int]) -> None:
    generator, copies = np.random.default_rng(0), np.repeat(np.arange(7), counts)
    features, targets = generator.dirichlet(np.ones(3), 7), generator.standard_normal((7, 2))
    left_out, _ = fit_ridge(features, targets, np.array(counts))
    centred = features[copies] - features[copies].mean(axis=0)
    largest = np.linalg.svd(centred, compute_uv=False)[0] ** 2
    for number, penalty in enumerate(np.logspace(-8, 1, 19) * largest):
        if number < 4:
            continue  # shares sum to 1: the direct solution is rough with next to no penalty
        for out in range(7):
            others = copies[copies != out]
            x, y = features[others] - features[others].mean(axis=0), targets[others] - targets[others].mean(axis=0)
            slopes = np.linalg.solve(x.T @ x + penalty * np.eye(3), x.T @ y)
            expected = targets[others].mean(axis=0) + (features[out] - features[others].mean(axis=0)) @ slopes
            assert left_out[number, out] == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_two_points_by_hand() -> None:
    # x = −1, 1 and y = 0, 2 about their means: b = 2 / (2 + λ), with λ = 2 · 10 (the largest) it is 1/11.
    left_out, solve = fit_ridge(np.array([[-1.0], [1.0]]), np.array([[0.0], [2.0]]), np.ones(2, dtype=np.intp))
    intercept, slope = solve(np.array([18]), np.array([0]))
    assert intercept + 3 * slope[0] == pytest.approx([1 + 3 / 11])
    intercept, slope = solve(np.array([0]), np.array([0]))
    assert intercept + 3 * slope[0] == pytest.approx([4.0])  # the line y = 1 + x
    # Without the one the mean of the others is the other.
    assert left_out[:, :, 0] == pytest.approx(np.tile([2.0, 0.0], (19, 1)), abs=1e-6)


def test_features_that_are_all_the_same_predict_the_mean() -> None:
    features, targets = np.full((4, 2), 0.5), np.array([[1.0], [2.0], [3.0], [6.0]])
    _, solve = fit_ridge(features, targets, np.ones(4, dtype=np.intp))
    for choice in (0, 18):
        intercept, slopes = solve(np.array([choice]), np.array([0]))
        assert intercept + np.array([0.2, 0.8]) @ slopes == pytest.approx([3.0])


def test_the_exponential_law_is_recovered() -> None:
    mixtures = np.random.default_rng(0).dirichlet(np.ones(3), 40)
    slopes = np.array([[-3.0, -0.5], [0.2, -2.0], [-0.1, 0.0]])

    def law(points: np.ndarray) -> np.ndarray:
        return np.array([1.0, 2.0]) + np.exp(points @ slopes)

    predict = fit_exponential(mixtures, law(mixtures))
    points = np.random.default_rng(1).dirichlet(np.ones(3), 100)
    assert predict(points) == pytest.approx(law(points), abs=0.04)  # losses span 1; the floor is of a grid
