import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks.metrics.score_matrix import ScoreMatrix
from tasks.tools.report.kind import write_scores
from tasks.tools.report.plots import forgetting_curves, forgotten, heat_map
from tests.refusals import refused
from tests.tasks.scores import NAN, R, matrix_of

NAMES = ("digits 0 and 1", "digits 2 and 3")
TORN = R.copy()
TORN[2, 0] = NAN  # the best before it counts


def filled(*rows: tuple[float, ...], **settings: Any) -> ScoreMatrix:
    matrix = ScoreMatrix(NAMES, **settings)
    for after, row in enumerate(rows):
        matrix.record(after, dict(zip(NAMES, row, strict=False)))
    return matrix


FINE_TUNE = filled((0.1, 0.1), (0.98, 0.1), (0.06, 0.97))
REPLAY = filled((0.1, 0.1), (0.98, 0.12), (0.91, 0.95))


def figures(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(re.findall(r'id="figures">(.*?)</script>', path.read_text(), re.DOTALL)[0])
    return found


def caption(path: Path) -> str:
    return str(re.findall(r'<p id="caption-1">(.*?)</p>', path.read_text(), re.DOTALL)[0])


def cells(path: Path, name: str) -> list[str]:
    row = re.findall(rf'<th scope="row">{name}</th>(.*?)</tr>', path.read_text())[0]
    return re.findall("<td>(.*?)</td>", row)


def test_a_matrix_is_there_in_numbers_and_in_words_and_needs_nothing_else(tmp_path: Path) -> None:
    path = write_scores({"fine-tune": FINE_TUNE}, tmp_path / "pages" / "scores.html")
    figure, *_ = figures(path)
    assert figure["data"][0]["text"] == [["0.10", "0.10"], ["0.98", "0.10"], ["0.06", "0.97"]]
    assert figure["layout"]["yaxis"]["ticktext"] == ["before", *(f"after {name}" for name in NAMES)]
    assert "after digits 2 and 3 it is between 0.06 (digits 0 and 1) and 0.97 (digits 2 and 3)" in caption(path)
    assert (cells(path, "Forgetting"), cells(path, "Average accuracy")) == (["0.920"], ["0.515"])
    before_scripts = path.read_text().split('<script type="application/json"')[0]
    assert not re.search(r"(src|href|srcset)=|@import|url\(", before_scripts)
    with refused("path"):
        write_scores({"fine-tune": FINE_TUNE}, tmp_path)


def test_methods_stand_side_by_side_in_the_same_colours_and_bright_is_better(tmp_path: Path) -> None:
    path = write_scores({"fine-tune": FINE_TUNE, "replay": REPLAY}, tmp_path / "scores.html")
    traces = [figure["data"][0] for figure in figures(path)[:2]]
    assert [(trace["zmin"], trace["zmax"]) for trace in traces] == [(0.06, 0.98)] * 2
    assert cells(path, "Forgetting") == ["0.920", "0.070"]
    path = write_scores({"run": filled((0.1, 0.1), (0.98, 0.1))}, tmp_path / "scores.html")  # goes on
    assert (cells(path, "Tasks done"), cells(path, "Average accuracy")) == (["1 of 2"], ["0.980"])
    assert figures(path)[0]["data"][0]["text"][2] == [""] * 2
    losses = filled((12.5, 12.5), (2.0, 123.456), higher_is_better=False, metric="loss")
    trace = heat_map(losses, 2.0, 123.456).data[0]
    assert trace.reversescale
    assert not heat_map(REPLAY, 0.0, 1.0).data[0].reversescale
    assert trace.text[1] == ["2", "123"]
    path = write_scores({"run": losses}, tmp_path / "scores.html")
    assert "lower is better" in caption(path)
    assert cells(path, "Average loss") == ["2.000"]


def test_names_and_reasons_cannot_break_it(tmp_path: Path) -> None:
    matrix = ScoreMatrix(("</script><b>", "b"), metric="<i>")
    matrix.record(1, {"b": 0.5}, {"</script><b>": "</script><b>"})
    path = write_scores({"</script><b>": matrix}, tmp_path / "scores.html")
    assert "</script><b>" not in path.read_text()
    assert figures(path)[0]["layout"]["xaxis"]["ticktext"][0] == "&lt;/script&gt;&lt;b&gt;"


def test_a_failure_is_a_cross_with_its_reason() -> None:
    matrix = filled((0.1, 0.1), (0.9,))  # what was not asked for is left empty
    matrix.record(2, {NAMES[1]: 0.9}, {NAMES[0]: "OutOfMemoryError"})
    (cross,) = heat_map(matrix, 0.0, 1.0).layout.annotations
    assert (cross.x, cross.y, cross.hovertext) == (0, 2, "OutOfMemoryError")
    assert heat_map(matrix, 0.0, 1.0).data[0].text[2] == ["", "0.90"]


@pytest.mark.parametrize(
    ("scores", "higher_is_better", "expected"),
    [
        (R, True, [[NAN, NAN, NAN], [0, NAN, NAN], [0, 0, NAN], [0.25, 0.2, 0]]),
        (R, False, [[NAN, NAN, NAN], [0, NAN, NAN], [0.05, 0, NAN], [0, 0, 0]]),
        (TORN, True, [[NAN, NAN, NAN], [0, NAN, NAN], [NAN, 0, NAN], [0.2, 0.2, 0]]),
    ],
)
def test_forgetting_is_since_the_best_after_training(scores: Any, higher_is_better: bool, expected: Any) -> None:
    np.testing.assert_allclose(forgotten(matrix_of(scores, higher_is_better)), expected, atol=1e-15)


def test_curves_are_a_line_a_task_in_figures_and_in_words() -> None:
    scores, lost = forgetting_curves({"run": matrix_of(R)})
    first = scores.panels[0].figure.data[0]
    assert (first.name, first.x.tolist(), first.y.tolist()) == ("a", [0, 1, 2, 3], [0.1, 0.9, 0.95, 0.7])
    assert "In run, after c, the accuracy is between 0.60 (b) and 0.85 (c)." in scores.caption
    assert lost.panels[0].figure.data[0].y.tolist() == pytest.approx([0, 0, 0.25])
    assert "In run, after c, it is between 0.00 (c) and 0.25 (a)." in lost.caption
    assert forgetting_curves({"run": matrix_of(R[:1])}) == []
