"""Forgetting curves of a matrix small enough to be worked out by hand."""

import numpy as np
import pytest

from tasks.metrics.score_matrix import ScoreMatrix
from tasks.report.plots import forgetting_curves, forgotten, learning_curves
from tests.tasks.scores import CURVES, NAN, R, matrix_of

TORN = R.copy()
TORN[2, 0] = NAN  # the best before it counts


@pytest.mark.parametrize(
    ("scores", "higher_is_better", "expected"),
    [
        (R, True, [[NAN, NAN, NAN], [0, NAN, NAN], [0, 0, NAN], [0.25, 0.2, 0]]),
        (R, False, [[NAN, NAN, NAN], [0, NAN, NAN], [0.05, 0, NAN], [0, 0, 0]]),
        (TORN, True, [[NAN, NAN, NAN], [0, NAN, NAN], [NAN, 0, NAN], [0.2, 0.2, 0]]),
    ],
)
def test_what_was_forgotten_is_counted_from_the_best_since_a_tasks_training(
    scores: np.ndarray, higher_is_better: bool, expected: list[list[float]]
) -> None:
    np.testing.assert_allclose(forgotten(matrix_of(scores, higher_is_better)), expected, atol=1e-15)


def test_curves_are_a_line_a_task_in_figures_and_in_words() -> None:
    scores, lost = forgetting_curves({"run": matrix_of(R)})
    first = scores.panels[0].figure.data[0]
    assert (first.name, first.legendgroup) == ("a", "a")
    assert (first.x.tolist(), first.y.tolist()) == ([0, 1, 2, 3], [0.1, 0.9, 0.95, 0.7])
    assert scores.panels[0].figure.layout.xaxis.ticktext == ("before", "a", "b", "c")
    assert "In run, after c, the accuracy is between 0.60 (b) and 0.85 (c)." in scores.caption
    assert lost.panels[0].figure.data[0].y.tolist() == pytest.approx([0, 0, 0.25])
    assert "In run, after c, it is between 0.00 (c) and 0.25 (a)." in lost.caption


def test_a_run_is_drawn_from_its_first_task_up_to_its_last() -> None:
    scores, lost = forgetting_curves({"run": matrix_of(R[:3])})
    assert scores.panels[0].figure.data[0].x.tolist() == [0, 1, 2]
    assert "after b, it is 0.00 (each)" in lost.caption
    assert forgetting_curves({"run": matrix_of(R[:1])}) == []
    done, begun = matrix_of(R), matrix_of(R[:1])
    assert [panel.title for panel in forgetting_curves({"done": done, "begun": begun})[0].panels] == ["done"]


def test_runs_stand_on_the_same_axes() -> None:
    better = np.minimum(R + 0.1, 1.0)
    panels = forgetting_curves({"first": matrix_of(R), "second": matrix_of(better)})[0].panels
    assert panels[0].figure.layout.yaxis.range == panels[1].figure.layout.yaxis.range


def test_learning_curves_are_a_line_a_task() -> None:
    whole, torn = matrix_of(R, curves=CURVES), CURVES.copy()
    torn[:, -1] = NAN
    whole.beta = 2
    plot = learning_curves({"run": whole})
    assert [line.y.tolist() for line in plot.panels[0].figure.data] == CURVES.tolist()
    assert "In run it changes in 2 steps by between +0.00 (c) and +0.80 (a)." in plot.caption
    assert learning_curves({"run": matrix_of(R)}).panels == []
    without = matrix_of(R, curves=torn)
    without.beta = 2
    assert "No learning curve of run is complete yet." in learning_curves({"run": without}).caption


def test_many_tasks_are_named_here_and_there() -> None:
    matrix = ScoreMatrix([f"task {number}" for number in range(40)])
    matrix.record(1, {"task 0": 0.5})
    labels = forgetting_curves({"run": matrix})[0].panels[0].figure.layout.xaxis.ticktext
    assert labels[0] == "before"
    assert len(labels) <= 12
