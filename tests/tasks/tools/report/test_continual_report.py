"""`mixer report` on real continual runs, finished and going."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mixer.ledger.ledger import Ledger
from mixer.tools.report import write_report
from mixer.tools.report.plots.mixture import mixture
from tasks.metrics.score_matrix import ScoreMatrix
from tasks.tools.report.training import joined_run, task_ends
from tests.mixer.tools.report.ledgers import write_run
from tests.mixer.tools.report.test_page import Page
from tests.refusals import refused

pytestmark = pytest.mark.usefixtures("plugged_in")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    from tests.tasks.tools.report.runs import train

    folder = tmp_path_factory.mktemp("runs")
    return {kind: train(folder / kind, kind) for kind in ("none", "reservoir", "herding")}


def headings(page: Page) -> list[str]:
    return [text.strip() for key, text in page.texts.items() if key.startswith("heading-")]


def test_the_page_shows_scores_forgetting_memory_and_training(runs: dict[str, Path]) -> None:
    path = write_report([runs["none"], runs["reservoir"]], runs["none"] / "report.html")
    text, shown = path.read_text(), headings(Page(path))
    assert shown[:2] == ["Scores on the tasks", "Forgetting curves: accuracy on each task as others are learnt"]
    assert {"Forgetting since the best score", "Training loss by task", "Mixture"} < set(shown)
    assert "Replay memory" in shown
    assert "Scores while tasks are learnt" in shown
    assert "On general (no task), first → last</th><td>-</td><td>0." in text
    assert "Stability gap" in text
    assert "Disk of the last task" in text
    costs = {kind: json.loads((runs[kind] / "03-task_3" / "end" / "cost.json").read_text()) for kind in runs}
    files = [path for path in (runs["reservoir"] / "03-task_3" / "end" / "memory").rglob("*") if path.is_file()]
    num_kept = costs["reservoir"]["kept_bytes"] - sum(path.stat().st_size for path in files)
    assert (costs["none"]["kept_bytes"], num_kept) == (0, 8 * (6 * 4 + 8))  # float32 inputs and an int64 label
    assert "Kept for earlier tasks</th><td>-</td><td>" in text
    for task in ("task_1", "task_2", "task_3"):
        paces = [json.loads((runs[kind] / "metrics.json").read_text())["pace"][task] for kind in ("none", "reservoir")]
        cells = [f"<td>{pace['seconds']:.1f} s, {pace['samples_per_second']:,.0f} samples/s</td>" for pace in paces]
        assert f'<th scope="row">Time of {task}</th>{"".join(cells)}' in text
    assert '<th scope="row">Tasks done</th><td>3 of 3</td><td>3 of 3</td>' in text
    assert '<th scope="row">Samples including replay</th><td>36</td><td>' in text
    assert "Not every run has every stream: memory only in reservoir." in text


@pytest.mark.parametrize("kind", ["reservoir", "herding"])
def test_the_classes_are_those_that_the_memory_ends_with(runs: dict[str, Path], kind: str) -> None:
    ledger = Ledger(runs[kind] / "03-task_3" / "ledger")
    memories, classes = ledger.memories(), ledger.memory_classes()
    last = json.loads((runs[kind] / "held.json").read_text())
    by_source = memories[memories["step"] == memories["step"].max()].set_index("source")["entries"]
    by_class = classes[classes["step"] == classes["step"].max()].set_index("label")["entries"]
    assert {name: count for name, count in by_source.items() if count} == last["sources"]
    assert {str(label): count for label, count in by_class.items() if count} == last["classes"]
    for number, name in enumerate(("task_1", "task_2", "task_3")):
        own = range(2 * number, 2 * number + 2)
        assert by_class[by_class.index.isin(own)].sum() == by_source.get(name, 0)


def begun(folder: Path, source: Path, num_done: int) -> Path:
    """Copies a run as it was in the midst of the task after some."""
    shutil.copytree(source, folder)
    for path in sorted(folder.glob("0*-*"))[num_done + 1 :]:
        shutil.rmtree(path)
    ScoreMatrix.from_file(folder / "scores.json").truncate(num_done)
    return folder


def test_a_run_that_goes_on_stands_beside_one_that_is_done(runs: dict[str, Path], tmp_path: Path) -> None:
    path = write_report([begun(tmp_path / "run", runs["reservoir"], 1), runs["herding"]], tmp_path / "page.html")
    text = path.read_text()
    assert '<th scope="row">Tasks done</th><td>1 of 3</td><td>3 of 3</td>' in text
    assert '<th scope="row">Steps</th><td>6</td><td>9</td>' in text
    axes = [figure["layout"]["xaxis"] for figure in Page(path).figures()]
    ends = [axis["range"] for axis in axes if axis["title"]["text"] == "epoch"]
    assert ends == [[0, pytest.approx(3 * 1.02)]] * len(ends)  # the same data clock for both
    assert len(ends) > 5


def test_what_is_not_there_yet_is_left_out(runs: dict[str, Path], tmp_path: Path) -> None:
    folder = begun(tmp_path / "run", runs["reservoir"], 0)
    path = write_report([folder], tmp_path / "page.html")
    assert '<th scope="row">Steps</th><td>3</td>' in path.read_text()
    assert "Replay memory" in headings(Page(path))
    assert not {"Forgetting since the best score"} & set(headings(Page(path)))
    shutil.rmtree(folder / "01-task_1")
    path = write_report([folder], tmp_path / "page.html")
    assert headings(Page(path)) == ["Scores on the tasks"]
    assert "No step recorded yet: run." in path.read_text()


def test_a_report_is_of_one_kind_of_run_and_one_metric(runs: dict[str, Path], tmp_path: Path) -> None:
    write_run(tmp_path / "plain")
    with pytest.raises(ValueError, match=r"plain is a plain run and .*none is a continual run"):
        write_report([tmp_path / "plain", runs["none"]], tmp_path / "page.html")
    (tmp_path / "losses").mkdir()
    ScoreMatrix(["a"], higher_is_better=False, metric="loss", path=tmp_path / "losses" / "scores.json").write()
    with refused("runs"):
        write_report([runs["none"], tmp_path / "losses"], tmp_path / "page.html")


TASKS = ("one", "two", "three")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_run(tmp_path / "01-one", ("one",), num_steps=4, measure_every=2)
    write_run(tmp_path / "02-two", ("memory", "two"), num_steps=6, measure_every=2, unsized=("memory",))
    return tmp_path


def joined(folder: Path) -> Any:
    run = joined_run(folder, "run", TASKS)
    assert run is not None
    return run


def test_the_clock_goes_on_and_streams_stand_where_their_task_does_the_memory_last(folder: Path) -> None:
    run = joined(folder)
    assert run.clock["step"].tolist() == list(range(1, 11))
    assert run.clock["samples"].tolist() == [2, 6, 12, 20, 24, 32, 44, 60, 80, 104]
    np.testing.assert_allclose(run.clock["epoch"], run.clock["samples"] / 1000)
    assert run.clock["batch_size"].tolist() == [2, 4, 6, 8, 4, 8, 12, 16, 20, 24]
    assert task_ends(run, TASKS) == pytest.approx([0.02, 0.104])
    assert run.timings[["load_seconds", "train_seconds"]].sum().tolist() == [5.0, 200.0]
    assert list(run.streams) == ["one", "two", "memory"]
    assert run.streams["two"]["samples"].tolist() == run.clock["samples"].tolist()[4:]
    assert run.streams["two"]["passes"].tolist() == pytest.approx([0.004, 0.012, 0.024, 0.04, 0.06, 0.084])
    assert run.evaluations["two"]["step"].tolist() == [4, 6, 8, 10]
    shares = [line.y.tolist()[-1] for line in mixture([run], 100).panels[0].figure.data]
    assert shares == pytest.approx([0.0, 0.5, 0.5])


def test_a_task_is_shown_as_far_as_it_is_written(folder: Path, tmp_path: Path) -> None:
    assert joined_run(tmp_path / "nothing", "run", TASKS) is None
    before = joined(folder)
    Ledger(folder / "03-three" / "ledger", is_writer=True).begin(None, {})
    after = joined(folder)
    assert after.clock.equals(before.clock)
    assert list(after.streams) == list(before.streams)
    write_run(folder / "03-three", ("three",), num_steps=2, is_done=False)
    assert joined(folder).clock["samples"].tolist()[-2:] == [106, 110]
    (folder / "02-two" / "ledger" / "ledger.json").write_text("{")
    with pytest.raises(ValueError, match=r"02-two.*ledger\.json is damaged"):
        joined(folder)
