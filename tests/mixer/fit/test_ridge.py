import numpy as np
import pytest

from mixer.analysis.fit.ridge import fit_ridge


@pytest.mark.parametrize("groups", [[0, 1, 2, 3, 4, 5, 6], [0, 1, 0, 2, 1, 3, 0]])
@pytest.mark.parametrize("are_same", [False, True])
def test_what_is_left_out_is_what_a_fit_without_its_group_predicts(groups: list[int], are_same: bool) -> None:
    generator, number_of = np.random.default_rng(0), np.array(groups)
    features, targets = generator.dirichlet(np.ones(3), 7), generator.standard_normal((7, 2))
    if are_same:  # repeated measurements
        features = features[number_of]
    ridge = fit_ridge(features, targets, number_of)
    largest = np.linalg.svd(features - features.mean(axis=0), compute_uv=False)[0] ** 2
    for number, penalty in enumerate(np.logspace(-8, 1, 19) * largest):
        if number < 4:
            continue  # shares sum to 1: the direct solution is rough with next to no penalty
        for out in range(7):
            others = number_of != number_of[out]
            x, y = features[others] - features[others].mean(axis=0), targets[others] - targets[others].mean(axis=0)
            slopes = np.linalg.solve(x.T @ x + penalty * np.eye(3), x.T @ y)
            expected = targets[others].mean(axis=0) + (features[out] - features[others].mean(axis=0)) @ slopes
            assert ridge.left_out[number, out] == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_two_points_by_hand() -> None:
    # x = −1, 1 and y = 0, 2 about their means: b = 2 / (2 + λ), with λ = 2 · 10 (the largest) it is 1/11.
    ridge = fit_ridge(np.array([[-1.0], [1.0]]), np.array([[0.0], [2.0]]), np.arange(2))
    heavy = ridge.predict(np.array([[3.0]]), np.array([18]), np.array([0]))
    assert heavy[0, 0] == pytest.approx(1 + 3 / 11)
    light = ridge.predict(np.array([[3.0]]), np.array([0]), np.array([0]))
    assert light[0, 0] == pytest.approx(4.0)  # the line y = 1 + x
    # Without the one the mean of the others is the other.
    assert ridge.left_out[:, :, 0] == pytest.approx(np.tile([2.0, 0.0], (19, 1)), abs=1e-6)


def test_features_that_are_all_the_same_predict_the_mean() -> None:
    ridge = fit_ridge(np.full((4, 2), 0.5), np.array([[1.0], [2.0], [3.0], [6.0]]), np.arange(4))
    for choice in (0, 18):
        assert ridge.predict(np.array([[0.2, 0.8]]), np.array([choice]), np.array([0]))[0, 0] == pytest.approx(3.0)
