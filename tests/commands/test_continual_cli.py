"""Continual runs from the command line, as a user runs them."""

import importlib
import json
import shutil
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mixer.cli import command as commands
from mixer.cli.entry import main
from mixer.utils import entry_points as plugins
from tasks.metrics.score_matrix import ScoreMatrix
from tests.tasks.data import write_intents

ROOT = Path(__file__).parents[2]
RECIPE = str(ROOT / "recipes" / "continual.yaml")
SHORT = ["--sequence.arguments", '{"classes_per_task": 4}', "--training.num_train_epochs", "1"]
SAVING = ["--training.save_strategy", "steps", "--training.save_steps", "20"]


@pytest.fixture(autouse=True)
def _plugged_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives the entry points as they stand in pyproject.toml, whatever was installed last."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found = [
        EntryPoint(name, value, group)
        for group, entries in project["entry-points"].items()
        for name, value in entries.items()
    ]
    monkeypatch.setattr(plugins, "entry_points", lambda group: [entry for entry in found if entry.group == group])


def train(folder: Path, *arguments: str) -> ScoreMatrix:
    main(["continual", RECIPE, *SHORT, "--training.output_dir", str(folder), *arguments])
    return ScoreMatrix.from_file(folder / "scores.json")


def fails(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as stop:
        main(list(arguments))
    assert stop.value.code == 2
    return " ".join(capsys.readouterr().err.split())


def test_the_recipe_forgets_less_than_without_its_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    longer = ["--training.num_train_epochs", "3"]
    replayed = train(tmp_path / "memory", *longer)
    printed = capsys.readouterr().out
    for words in ("after task_3", "average accuracy", "forgetting", "scores.html"):
        assert words in printed
    without = train(tmp_path / "none", *longer, "--memory", "null")
    assert replayed.recorded == without.recorded == [0, 1, 2, 3]
    assert replayed.scores[3, 0] > without.scores[3, 0] + 0.4
    written = json.loads((tmp_path / "none" / "metrics.json").read_text())
    assert written["metrics"]["average_accuracy"] == pytest.approx(without.scores[3].mean())
    assert written["metrics"]["learning_curve_area"] is None
    assert "learning_curve_area" in written["not_known"]
    page = tmp_path / "page.html"
    main(["continual-compare", str(tmp_path / "none"), str(tmp_path / "memory"), "--output", str(page)])
    assert "backward transfer" in (printed := capsys.readouterr().out)
    assert str(page) in printed.replace("\n", "")
    assert "memory" in page.read_text()


def test_the_recipe_of_intents_learns_from_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_intents(tmp_path / "data", {"bank": ["pay", "owe"], "trip": ["fly", "stay"]}, num_train=40, num_test=5)
    recipe = str(ROOT / "recipes" / "continual_intents.yaml")
    options = ["--source.arguments.arguments.path", str(data), "--training.output_dir", str(tmp_path / "run")]
    main(["continual", recipe, *options])
    scores = ScoreMatrix.from_file(tmp_path / "run" / "scores.json")
    assert scores.task_names == ("bank", "trip")
    assert np.diag(scores.scores[1:]).min() > 0.9
    assert "average accuracy" in capsys.readouterr().out
    nowhere = ["--source.arguments.arguments.path", "no/clinc150", "--training.output_dir", str(tmp_path / "none")]
    message = fails(capsys, "continual", recipe, *nowhere)
    assert "no/clinc150" in message
    assert "Give the folder with data_full.json" in message


def test_the_recipe_of_intents_runs_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    recipe = str(ROOT / "recipes" / "continual_intents.yaml")
    main(["continual", recipe, "--training.num_train_epochs", "1", "--training.output_dir", str(tmp_path)])
    scores = ScoreMatrix.from_file(tmp_path / "scores.json")
    assert len(scores.task_names) == 10
    assert np.diag(scores.scores[1:]).mean() > 0.6


def test_a_run_is_resumed_to_the_bit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = train(tmp_path / "run", *SAVING)
    weights = (tmp_path / "run" / "03-task_3" / "end" / "model.safetensors").read_bytes()
    # As it was in the midst of the second task.
    shutil.rmtree(tmp_path / "run" / "02-task_2" / "end")
    shutil.rmtree(tmp_path / "run" / "03-task_3")
    state = json.loads((tmp_path / "run" / "continual.json").read_text())
    (tmp_path / "run" / "continual.json").write_text(json.dumps({**state, "num_done": 1}))
    assert "--resume auto" in fails(
        capsys, "continual", RECIPE, *SHORT, *SAVING, "--training.output_dir", str(tmp_path / "run")
    )
    assert [path.name for path in (tmp_path / "run" / "02-task_2").glob("checkpoint-*")]
    again = train(tmp_path / "run", *SAVING, "--resume", "must")
    np.testing.assert_array_equal(again.scores, whole.scores)
    assert (tmp_path / "run" / "03-task_3" / "end" / "model.safetensors").read_bytes() == weights


def test_a_run_starts_anew_in_the_place_of_another(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = train(tmp_path / "run", "--resume", "auto")
    other = train(tmp_path / "run", "--resume", "never", "--training.seed", "1")
    assert not np.array_equal(first.scores, other.scores)
    again = ["continual", str(tmp_path / "run" / "recipe.yaml"), "--training.output_dir", str(tmp_path / "same")]
    capsys.readouterr()
    main([*again, "--json"])
    printed = json.loads(capsys.readouterr().out)
    assert printed["page"] == str(tmp_path / "same" / "scores.html")
    (run,) = printed["runs"]
    assert (run["run"], run["tasks"]) == ("same", list(other.task_names))
    np.testing.assert_array_equal(run["scores"], other.scores)
    np.testing.assert_array_equal(ScoreMatrix.from_file(tmp_path / "same" / "scores.json").scores, other.scores)


@pytest.mark.parametrize("library", ["plotly", "jinja2"])
def test_a_missing_library_leaves_out_the_page_only(
    library: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    matrix = ScoreMatrix(["one"], path=tmp_path / "scores.json")
    matrix.record(1, {"one": 0.5})
    for name in list(sys.modules):
        if name.split(".")[0] == library or name.startswith(("mixer.analysis.report", "tasks.report")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)
    said: list[str] = []
    results = importlib.import_module("tasks.report.results")
    monkeypatch.setattr(results.logger, "warning", lambda text, *values: said.append(text % values))
    main(["continual-compare", str(tmp_path)])
    printed = capsys.readouterr()
    assert "0.500" in printed.out
    assert f"it needs {library}" in said[0]
    assert "pip install 'adaptive-mixer[report]'" in said[0]
    assert not (tmp_path / "compared.html").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sequence.arguments", '{"classes_per_task": 11}'], "sequence.factory: tasks.sequences.by_class"),
        (["--sequence.factory", "tasks.sequences.by_clas"], "sequence.factory: 'tasks.sequences.by_clas' cannot be"),
        (["--sequence.factory", "builtins.zip"], "sequence.factory: "),
        (["--source.arguments", '{"evaluation_share": 2}'], "source.factory: tasks.sources.digits"),
        (["--source.factory", "builtins.dict"], "source.factory: builtins.dict gives a dict, not two data sets"),
        (["--memory.arguments", '{"capacity": 0}'], "memory.factory: replay.ReplayBuffer"),
        (["--memory.factory", "builtins.dict"], "memory.factory: builtins.dict gives a dict, no ReplayBuffer"),
        (["--memory", "null", "--mixing", "ReplayRatio"], "memory is None"),
        (["--mixing", "ReplyRatio"], "mixing: no policy is called 'ReplyRatio'"),
        (["--model.arguments", '{"num_features": 64, "num_labels": 4}'], "the model has 4 outputs"),
        (["--model.arguments", '{"sizes": 64}'], "model.factory: tasks.mlp.mlp(sizes=64) failed"),
        (["--model.name_or_path", "bert"], "model: give a factory"),
        (["--optimizer", "stale"], "optimizer"),
        (["--batch_size", "many"], "batch_size"),
        (["--training.num_train_epoch", "1"], "num_train_epoch"),
        (["--resume", "perhaps"], "--resume: invalid choice: 'perhaps'"),
        (["--resume", "must"], "--resume must: there is no continual run"),
    ],
)
def test_wrong_input_ends_with_two_and_names_the_field(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = fails(capsys, "continual", RECIPE, *SHORT, "--training.output_dir", str(tmp_path / "run"), *arguments)
    assert message in printed


def test_runs_that_cannot_be_compared_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "scores.json" in fails(capsys, "continual-compare", str(tmp_path))
    assert "given twice" in fails(capsys, "continual-compare", str(tmp_path), str(tmp_path))


def _breaks() -> Any:
    raise RuntimeError("no such device")


def test_a_broken_package_leaves_the_other_commands(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = [
        EntryPoint("broken", f"{__name__}:_breaks", commands.PLUG_IN_GROUP),
        EntryPoint("none", "builtins:dict", commands.PLUG_IN_GROUP),
        EntryPoint("train", "tasks.command:continual_compare", commands.PLUG_IN_GROUP),
    ]
    others = plugins.entry_points(group=commands.PLUG_IN_GROUP)
    monkeypatch.setattr(plugins, "entry_points", lambda group: [*broken, *others])
    with pytest.warns(UserWarning, match="is skipped") as warned, pytest.raises(SystemExit):
        main(["--help"])
    assert [str(warning.message).split(" (")[0] for warning in warned if "is skipped" in str(warning.message)] == [
        "command broken of an unknown package is skipped",
        "command none of an unknown package is skipped",
        "command train of an unknown package is skipped",
    ]
    assert "continual-compare" in capsys.readouterr().out
