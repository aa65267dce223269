import numpy as np
import pytest

from mixer.analysis.fit.mixture import group_runs
from mixer.analysis.fit.regressors import LeftOut, Predictor, fit_constant, leave_out
from mixer.utils.arrays import FloatArray


def average(losses: FloatArray) -> FloatArray:
    return losses.mean(axis=1)


def test_the_mean_of_the_others_by_hand() -> None:
    # Losses 1, 2, 6: without each the others' means are 4, 3.5, 1.5, off by 3, 1.5, 4.5: √((9 + 2.25 + 20.25) / 3).
    mixtures = np.array([[0.0, 1.0], [0.5, 0.5], [1.0, 0.0]])
    left_out = leave_out(mixtures, np.array([[1.0], [2.0], [6.0]]), np.arange(3), fit_constant, average)
    assert left_out.predicted.tolist() == [4.0, 3.5, 1.5]
    assert left_out.error == pytest.approx(np.sqrt(10.5))
    assert left_out.rank_correlation == pytest.approx(-1.0)


def test_runs_of_the_same_mixture_are_left_out_together() -> None:
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
    assert len(sizes) == 40
    assert sum(sizes) == 90
    assert set(sizes) == {2, 3}


def test_ranks_are_compared_not_values() -> None:
    assert LeftOut(np.array([1.0, 10.0, 100.0]), np.array([1.0, 2.0, 3.0])).rank_correlation == pytest.approx(1.0)
    # Ranks 2, 1, 3 against 1, 2, 3: 1 − 6 · 2 / (3 · 8) = 0.5.
    assert LeftOut(np.array([2.0, 1.0, 3.0]), np.array([1.0, 2.0, 3.0])).rank_correlation == pytest.approx(0.5)
