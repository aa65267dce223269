"""Continual runs from the command line, as a user runs them."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mixer import Ledger
from mixer.tools.cli.entry import main
from mixer.utils.arrays import Int64Array
from tasks.metrics.score_matrix import ScoreMatrix
from tasks.sources import Arrays, digits
from tasks.sources.arrays import Sample
from tests.commands.recipes import ROOT, Runs
from tests.tasks.data import write_intents

RECIPE = str(ROOT / "recipes" / "continual.yaml")
SHORT = ["--sequence.arguments", '{"classes_per_task": 4}', "--training.num_train_epochs", "1"]
SAVING = ["--training.save_strategy", "steps", "--training.save_steps", "20"]


pytestmark = pytest.mark.usefixtures("plugged_in")


def command(folder: Path, *arguments: str) -> list[str]:
    return ["continual", RECIPE, *SHORT, "--training.output_dir", str(folder), *arguments]


def train(folder: Path, *arguments: str) -> ScoreMatrix:
    main(command(folder, *arguments))
    return ScoreMatrix.from_file(folder / "scores.json")


@pytest.mark.full
def test_the_recipe_forgets_less_than_without_its_memory(tmp_path: Path, printed: Runs, refused: Runs) -> None:
    shown = printed(*command(tmp_path / "memory", "--training.num_train_epochs", "3"))
    for words in ("after task_3", "average accuracy", "forgetting", "scores.html"):
        assert words in shown
    replayed = ScoreMatrix.from_file(tmp_path / "memory" / "scores.json")
    without = train(tmp_path / "none", "--training.num_train_epochs", "3", "--memory", "null")
    assert replayed.recorded == without.recorded == [0, 1, 2, 3]
    assert replayed.scores[3, 0] > without.scores[3, 0] + 0.4
    written = json.loads((tmp_path / "none" / "metrics.json").read_text())
    assert written["metrics"]["average_accuracy"] == pytest.approx(without.scores[3].mean())
    page = tmp_path / "page.html"
    shown = printed("continual-compare", tmp_path / "none", tmp_path / "memory", "--output", page)
    assert "backward transfer" in shown
    assert str(page) in shown.replace("\n", "")
    assert "memory" in page.read_text()
    assert "scores.json" in refused("continual-compare", tmp_path)
    assert "given twice" in refused("continual-compare", tmp_path, tmp_path)


@pytest.mark.full
def test_the_recipe_of_intents_learns_from_text(tmp_path: Path, printed: Runs, refused: Runs) -> None:
    data = write_intents(tmp_path / "data", {"bank": ["pay", "owe"], "trip": ["fly", "stay"]}, num_train=40, num_test=5)
    recipe = ["continual", ROOT / "recipes" / "continual_intents.yaml", "--training.output_dir", tmp_path / "run"]
    assert "average accuracy" in printed(*recipe, "--source.arguments.arguments.path", data)
    scores = ScoreMatrix.from_file(tmp_path / "run" / "scores.json")
    assert scores.task_names == ("bank", "trip")
    assert np.diag(scores.scores[1:]).min() > 0.9
    recipe[-1] = tmp_path / "none"
    message = refused(*recipe, "--source.arguments.arguments.path", "no/clinc150")
    assert "no/clinc150" in message
    assert "Give the folder with data_full.json" in message


@pytest.mark.full
@pytest.mark.parametrize(
    ("protocol", "num_tasks", "least"),
    [("online", 5, 0.35), ("repetition", 10, 0.45), ("blurry", 5, 0.3), ("gradual", 20, 0.3)],
)
def test_recipes_of_protocols_learn_in_one_pass(protocol, num_tasks, least, tmp_path, printed) -> None:
    recipe = ROOT / "recipes" / f"continual_{protocol}.yaml"
    assert "average accuracy" in printed("continual", recipe, "--training.output_dir", tmp_path / "run")
    scores = ScoreMatrix.from_file(tmp_path / "run" / "scores.json")
    assert scores.recorded == list(range(num_tasks + 1))
    assert scores.scores[-1].mean() > least > scores.scores[0].mean()


@pytest.mark.full
def test_the_recipe_of_instructions_writes_answers(tmp_path: Path, printed: Runs, refused: Runs) -> None:
    recipe = ["continual", ROOT / "recipes" / "continual_instructions.yaml", "--training.output_dir", tmp_path / "run"]
    path = ["--sequence.arguments.path", ROOT / "examples/data_files/instructions"]
    few = ["--sequence.arguments.order", "[home, travel]"]
    assert "average exact match" in printed(*recipe, *path, *few)
    scores = ScoreMatrix.from_file(tmp_path / "run" / "scores.json").scores
    assert scores[0].tolist() == [0.0, 0.0]
    assert np.diag(scores[1:]).min() > 0.5
    recipe[-1] = tmp_path / "none"
    assert "lacks the tasks ['C-STANCE'" in refused(*recipe, *path, "--sequence.arguments.order", "trace")
    assert "no Score" in refused(*recipe, *path, "--score.factory", "builtins.dict", "--score.arguments", "{}")


class _Killing(Arrays):
    """Images whose reader is killed, as by `kill -9`, a few reads after the first checkpoint of the second task."""

    def __init__(self, images: Arrays, run: Path):
        super().__init__(images.inputs, images.labels)
        self._run, self._num_read = run, 0

    def read_columns(self, indices: Int64Array) -> Sample:
        self._num_read += any(self._run.glob("02-task_2/checkpoint-*/complete.json"))
        if self._num_read > 3 and (self._run / "kill").exists():
            (self._run / "kill").unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().read_columns(indices)


def killing_digits(run: str) -> tuple[Arrays, Arrays]:
    train, evaluation = digits()
    return _Killing(train, Path(run)), evaluation


def test_a_run_that_is_killed_within_a_task_is_resumed_to_the_bit(tmp_path: Path, refused: Runs, printed: Runs) -> None:
    whole, run = tmp_path / "whole", tmp_path / "run"
    expected = train(whole, *SAVING)
    run.mkdir()
    (run / "kill").touch()
    source = ["--source.factory", f"{__name__}.killing_digits", "--source.arguments", json.dumps({"run": str(run)})]
    words = [sys.executable, "-m", "mixer", *command(run, *SAVING, *source)]
    killed = subprocess.run(words, cwd=ROOT, capture_output=True, timeout=300, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr[-4000:]
    assert not (run / "02-task_2" / "end").exists()
    assert "--resume auto" in refused(*command(run, *SAVING, *source))
    again = train(run, *SAVING, *source, "--resume", "must")
    assert "backward transfer" in printed("continual-compare", run, "--output", tmp_path / "page.html")
    np.testing.assert_array_equal(again.scores, expected.scores)
    ends = [folder / "03-task_3" / "end" / "model.safetensors" for folder in (whole, run)]
    assert ends[0].read_bytes() == ends[1].read_bytes()
    ledgers = [Ledger(folder / "02-task_2" / "ledger").to_pandas() for folder in (whole, run)]
    assert ledgers[0].equals(ledgers[1])


def test_seeds_are_run_in_folders_of_their_own(tmp_path: Path, printed: Runs, refused: Runs, capsys: Any) -> None:
    few = ["--training.max_steps", "2", "--scores_before", "false"]
    folder, none = tmp_path / "memory", tmp_path / "none"
    shown = json.loads(printed(*command(folder, *few, "--seeds", "2", "--json")))["runs"][0]
    for seed in (0, 1):
        alone = ScoreMatrix.from_file(folder / f"seed-{seed}" / "scores.json")
        np.testing.assert_array_equal(np.array(shown["seeds"][str(seed)]["scores"][1:], float), alone.scores[1:])
        assert f"seed: {seed}\n" in (folder / f"seed-{seed}" / "recipe.yaml").read_text()
    accuracies = [shown["seeds"][seed]["metrics"]["average_accuracy"] for seed in "01"]
    assert shown["metrics"]["average_accuracy"] == pytest.approx(np.mean(accuracies))
    assert shown["metrics_spread"]["average_accuracy"] == pytest.approx(np.std(accuracies, ddof=1))
    assert "The seeds [0, 1] have runs in" in refused(*command(folder, *few, "--seeds", "[2, 1, 0]"))
    assert "--resume must" in refused(*command(none, *few, "--seeds", "2", "--resume", "must"))
    main([str(word) for word in command(none, *few, "--memory", "null", "--seeds", "[0, 1]")])
    last = f"The runs of 2 seeds ended after all 3 tasks. Final model of seed 0: {none}/seed-0/03-task_3/end."
    assert capsys.readouterr().err.splitlines()[-1] == f"mixer: {last} Next: mixer report {none}"
    assert "paired, 2 seeds" in printed("continual-compare", none, folder, "--output", tmp_path / "page.html")
    summary = json.loads(printed("report", none, folder, "--json"))["summary"]["memory (mean of 2 seeds)"]
    assert summary["Average accuracy"] == f"{np.mean(accuracies):.3f} ± {np.std(accuracies, ddof=1):.3f}"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seeds", "0"], "seeds must be how many"),
        (["--memory.factory", "builtins.dict"], "memory.factory: builtins.dict gives a dict, no ReplayBuffer"),
        (["--model.name_or_path", "bert"], "model: give a factory"),
        (["--score", "method"], "score must be another than 'method', which needs one that predicts"),
        (["--resume", "must"], "--resume must: there is no continual run"),
    ],
)
def test_wrong_input_ends_with_two_and_names_the_field(arguments, message, tmp_path, refused) -> None:
    assert message in refused(*command(tmp_path / "run", *arguments))


def test_a_missing_library_leaves_out_the_page_only(tmp_path, printed, monkeypatch) -> None:
    ScoreMatrix(["one"], path=tmp_path / "scores.json").record(1, {"one": 0.5})
    for name in [
        name for name in sys.modules if name.startswith(("plotly", "mixer.tools.report", "tasks.tools.report"))
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "plotly", None)
    assert "0.500" in printed("continual-compare", tmp_path)
    assert not (tmp_path / "compared.html").exists()


def test_methods_and_the_score_of_a_recipe(tmp_path: Path) -> None:
    methods = ["--methods", '[{"class_path": "tasks.methods.ICaRL"}]', "--score", "nearest-mean"]
    scores = train(tmp_path, *methods, "--training.max_steps", "2", "--scores_before", "false")
    assert scores.metric == "accuracy"
    assert scores.scores[3, 0] > 0.5  # of a model that has learnt next to nothing
