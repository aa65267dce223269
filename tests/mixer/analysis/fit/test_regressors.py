"""The regressions of losses on mixtures, and what is left out of them."""

import itertools

import numpy as np
import pytest

from mixer.analysis.fit.mixture import group_runs
from mixer.analysis.fit.regressors import Predictor, fit_constant, leave_out
from mixer.policies.shared.mixing_law import MixingLaw, fit_ridge
from mixer.utils.arrays import FloatArray


def average(losses: FloatArray) -> FloatArray:
    return losses.mean(axis=1)


@pytest.mark.parametrize("counts", [[1, 1, 1, 1, 1, 1, 1], [3, 1, 2, 1, 1, 5, 1]])
def test_what_is_left_out_is_what_a_fit_without_it_predicts(counts: list[int]) -> None:
    generator, copies = np.random.default_rng(0), np.repeat(np.arange(7), counts)
    features, targets = generator.dirichlet(np.ones(3), 7), generator.standard_normal((7, 2))
    left_out, _ = fit_ridge(features, targets, np.array(counts))
    centred = features[copies] - features[copies].mean(axis=0)
    largest = np.linalg.svd(centred, compute_uv=False)[0] ** 2
    penalties = list(enumerate(np.logspace(-8, 1, 19) * largest))
    for (number, penalty), out in itertools.product(penalties[4:], range(7)):  # with less the direct solution is rough
        others = copies[copies != out]
        x, y = features[others] - features[others].mean(axis=0), targets[others] - targets[others].mean(axis=0)
        slopes = np.linalg.solve(x.T @ x + penalty * np.eye(3), x.T @ y)
        expected = targets[others].mean(axis=0) + (features[out] - features[others].mean(axis=0)) @ slopes
        assert left_out[number, out] == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_two_points_by_hand() -> None:
    # x = −1, 1 and y = 0, 2 about their means: b = 2 / (2 + λ), with λ = 2 · 10 (the largest) it is 1/11.
    left_out, solve = fit_ridge(np.array([[-1.0], [1.0]]), np.array([[0.0], [2.0]]), np.ones(2, dtype=np.intp))
    for penalty, expected in ((18, 1 + 3 / 11), (0, 4.0)):  # almost without one: the line y = 1 + x
        intercept, slope = solve(np.array([penalty]), np.array([0]))
        assert intercept + 3 * slope[0] == pytest.approx([expected])
    # Without the one the mean of the others is the other.
    assert left_out[:, :, 0] == pytest.approx(np.tile([2.0, 0.0], (19, 1)), abs=1e-6)


def test_features_that_are_all_the_same_predict_the_mean() -> None:
    _, solve = fit_ridge(np.full((4, 2), 0.5), np.array([[1.0], [2.0], [3.0], [6.0]]), np.ones(4, dtype=np.intp))
    for choice in (0, 18):
        intercept, slopes = solve(np.array([choice]), np.array([0]))
        assert intercept + np.array([0.2, 0.8]) @ slopes == pytest.approx([3.0])


def test_the_exponential_law_is_recovered() -> None:
    mixtures = np.random.default_rng(0).dirichlet(np.ones(3), 40)
    points, slopes = np.random.default_rng(1).dirichlet(np.ones(3), 100), np.array([[-3.0, -0.5], [0.2, -2], [-0.1, 0]])
    losses, expected = (np.array([1.0, 2.0]) + np.exp(one @ slopes) for one in (mixtures, points))
    # Losses span 1; the floor is of a grid.
    assert MixingLaw.fit(mixtures, losses)(points) == pytest.approx(expected, abs=0.04)


def test_runs_count_as_often_as_there_are() -> None:
    # Three runs of a mixture say the same as three runs of their mean loss, though their spread is another.
    mixtures = np.random.default_rng(0).dirichlet(np.ones(3), 8)[[0, 0, 0, 1, 2, 3, 4, 5, 6, 7]]
    losses = (mixtures + 0.1) ** -0.5
    spread = np.zeros_like(losses)
    spread[:3] = [[0.2], [-0.3], [0.1]]
    points = np.random.default_rng(1).dirichlet(np.ones(3), 20)
    one, other = MixingLaw.fit(mixtures, losses + spread), MixingLaw.fit(mixtures, losses)
    assert one(points) == pytest.approx(other(points), abs=1e-9)


def test_the_mean_of_the_others_by_hand() -> None:
    # Losses 1, 2, 6: without each the others' means are 4, 3.5, 1.5, off by 3, 1.5, 4.5: √((9 + 2.25 + 20.25) / 3).
    mixtures = np.array([[0.0, 1.0], [0.5, 0.5], [1.0, 0.0]])
    left_out = leave_out(mixtures, np.array([[1.0], [2.0], [6.0]]), np.arange(3), fit_constant, average)
    assert left_out.predicted.tolist() == [4.0, 3.5, 1.5]
    assert left_out.error == pytest.approx(np.sqrt(10.5))
    assert left_out.rank_correlation == pytest.approx(-1.0)
    # Runs of the same mixture are left out together.
    mixtures = np.array([[0.2, 0.8], [0.5, 0.5], [0.2005, 0.7995], [0.9, 0.1]])
    groups = group_runs(mixtures)
    assert groups.tolist() == [0, 1, 0, 2]
    left_out = leave_out(mixtures, np.array([[1.0], [2.0], [3.0], [6.0]]), groups, fit_constant, average)
    assert left_out.predicted.tolist() == [4.0, 10 / 3, 4.0, 2.0]


def test_no_fit_sees_what_it_predicts_and_many_mixtures_are_left_out_in_forty_parts() -> None:
    mixtures = np.random.default_rng(0).dirichlet(np.ones(3), 90)
    sizes: list[int] = []

    def spy(seen: FloatArray, _: FloatArray) -> Predictor:
        def predict(points: FloatArray) -> FloatArray:
            assert not {tuple(row) for row in points} & {tuple(row) for row in seen}
            sizes.append(len(points))
            return np.zeros((len(points), 1))

        return predict

    leave_out(mixtures, np.ones((90, 1)), np.arange(90), spy, average)
    assert (len(sizes), sum(sizes), set(sizes)) == (40, 90, {2, 3})
