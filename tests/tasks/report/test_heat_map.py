import json
import re
from pathlib import Path
from typing import Any

import pytest

from tasks.metrics.score_matrix import ScoreMatrix
from tasks.report.kind import write_scores
from tasks.report.plots import heat_map

NAMES = ("digits 0 and 1", "digits 2 and 3")


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
    assert path == tmp_path / "pages" / "scores.html"
    figure, *_ = figures(path)
    assert figure["data"][0]["text"] == [["0.10", "0.10"], ["0.98", "0.10"], ["0.06", "0.97"]]
    assert figure["layout"]["xaxis"]["ticktext"] == [*NAMES]
    assert figure["layout"]["yaxis"]["ticktext"] == ["before", *(f"after {name}" for name in NAMES)]
    assert "after digits 2 and 3 it is between 0.06 (digits 0 and 1) and 0.97 (digits 2 and 3)" in caption(path)
    assert (cells(path, "Forgetting"), cells(path, "Average accuracy")) == (["0.920"], ["0.515"])
    before_scripts = path.read_text().split('<script type="application/json"')[0]
    assert not re.search(r"(src|href|srcset)=|@import|url\(", before_scripts)
    assert [file.name for file in path.parent.iterdir()] == ["scores.html"]


def test_methods_stand_side_by_side_in_the_same_colours_and_many_tasks_below_each_other(tmp_path: Path) -> None:
    path = write_scores({"fine-tune": FINE_TUNE, "replay": REPLAY}, tmp_path / "scores.html")
    traces = [figure["data"][0] for figure in figures(path)[:2]]
    assert [(trace["zmin"], trace["zmax"]) for trace in traces] == [(0.06, 0.98)] * 2
    assert "--columns: 2" in path.read_text()
    assert cells(path, "Forgetting") == ["0.920", "0.070"]
    assert "fine-tune: after" in caption(path)
    assert "replay: after" in caption(path)
    matrix = ScoreMatrix([f"task {place}" for place in range(17)])
    path = write_scores({"first": matrix, "second": matrix}, tmp_path / "scores.html")
    assert "--columns: 1" in path.read_text()
    assert "first: nothing was evaluated yet." in caption(path)
    assert cells(path, "Tasks done") == ["0 of 17"] * 2
    path = write_scores({"run": filled((0.1, 0.1), (0.98, 0.1))}, tmp_path / "scores.html")  # goes on
    assert (cells(path, "Tasks done"), cells(path, "Average accuracy")) == (["1 of 2"], ["0.980"])
    assert figures(path)[0]["data"][0]["text"][2] == [""] * 2


def test_names_and_reasons_cannot_break_it(tmp_path: Path) -> None:
    matrix = ScoreMatrix(("</script><b>", "b"), metric="<i>")
    matrix.record(1, {"b": 0.5}, {"</script><b>": "</script><b>"})
    path = write_scores({"</script><b>": matrix}, tmp_path / "scores.html")
    assert "</script><b>" not in path.read_text()
    assert figures(path)[0]["layout"]["xaxis"]["ticktext"][0] == "&lt;/script&gt;&lt;b&gt;"


def test_a_failure_is_a_cross_with_its_reason(tmp_path: Path) -> None:
    matrix = filled((0.1, 0.1), (0.9,))  # what was not asked for is left empty
    matrix.record(2, {NAMES[1]: 0.9}, {NAMES[0]: "OutOfMemoryError"})
    (cross,) = heat_map(matrix, 0.0, 1.0).layout.annotations
    assert (cross.x, cross.y, cross.hovertext) == (0, 2, "OutOfMemoryError")
    assert heat_map(matrix, 0.0, 1.0).data[0].text[2] == ["", "0.90"]
    words = caption(write_scores({"run": matrix}, tmp_path / "scores.html"))
    assert "digits 0 and 1 after digits 2 and 3 (OutOfMemoryError)" in words


def test_what_was_just_learned_is_framed_and_long_names_are_cut() -> None:
    (frame,) = heat_map(filled((0.1, 0.1), (0.9, 0.1)), 0.0, 1.0).layout.shapes
    assert (frame.x0, frame.x1, frame.y0, frame.y1) == (-0.5, 0.5, 0.5, 1.5)
    matrix = ScoreMatrix(["the standard library of Python", "b"])
    assert heat_map(matrix, 0.0, 1.0).layout.xaxis.ticktext == ("the standard library of…", "b")


def test_bright_is_better_for_losses_too(tmp_path: Path) -> None:
    losses = filled((12.5, 12.5), (2.0, 123.456), higher_is_better=False, metric="loss")
    trace = heat_map(losses, 2.0, 123.456).data[0]
    assert trace.reversescale
    assert not heat_map(REPLAY, 0.0, 1.0).data[0].reversescale
    assert trace.text[1] == ["2", "123"]
    path = write_scores({"run": losses}, tmp_path / "scores.html")
    assert "lower is better" in caption(path)
    assert cells(path, "Average loss") == ["2.000"]


def test_what_cannot_be_written(tmp_path: Path) -> None:
    matrices = {"first": FINE_TUNE, "second": filled(metric="loss", higher_is_better=False)}
    for given, path, match in (
        (matrices, tmp_path / "scores.html", r"the same metric.*'first': 'accuracy', 'second': 'loss'"),
        ({}, tmp_path / "scores.html", "Runs must have the same metric"),
        ({"fine-tune": FINE_TUNE}, tmp_path, "is a folder: give"),
    ):
        with pytest.raises(ValueError, match=match):
            write_scores(given, path)
