"""A table of methods from the command line: rows, strengths, files, and what is refused before a run starts."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from scipy import stats

from mixer import Ledger
from mixer.tools.cli.entry import main
from tasks.continual.continual import ContinualRun
from tasks.metrics.score_matrix import ScoreMatrix
from tasks.tools.set_ups import set_ups_of
from tests.commands.recipes import ROOT, Runs

pytestmark = pytest.mark.usefixtures("plugged_in")
NAMES = ["er", "finetune", "joint", "icarl", "lwf", "Mine"]
TUNED = ["--tune", "first:2", "--grid", "lwf.strength=1,100000"]
OWN = '''
import numpy as np
from tasks.methods import LwF
from tasks.sources import Arrays, digits

class Mine(LwF):
    """A method of one's own."""

def noisy():
    """Digits whose rows for evaluation are noise."""
    train, evaluation = digits()
    noise = np.random.default_rng(0).random((len(evaluation), 64), dtype=np.float32)
    return train, Arrays(noise, evaluation.labels)
'''
_made: list[tuple[Path, dict[str, Any]]] = []


def recipe_in(folder: Path) -> Path:
    """Writes a short recipe of three tasks, and a file of one's own beside it."""
    recipe = yaml.safe_load((ROOT / "recipes" / "continual.yaml").read_text())
    recipe["sequence"]["arguments"] = {"classes_per_task": 4}
    recipe["training"] |= {"max_steps": 12, "learning_rate": 3e-3, "output_dir": str(folder / "out")}
    (folder / "own_of_table.py").write_text(OWN)
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    return folder / "recipe.yaml"


@pytest.fixture
def made(tmp_path_factory: pytest.TempPathFactory, printed: Runs) -> tuple[Path, dict[str, Any]]:
    """The recipe's path, and what the command printed; trained once."""
    if not _made:
        path = recipe_in(tmp_path_factory.mktemp("table"))
        methods = ",".join([*NAMES[:-1], "own_of_table.py:Mine"])
        shown = printed("continual", path, "--methods", methods, "--seeds", "2", *TUNED, "--json")
        _made.append((path, json.loads(shown)))
    return _made[0]


def test_a_row_is_a_recipe_of_its_own(made: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    path, shown = made
    assert [run["run"] for run in shown["runs"]] == NAMES
    for name in ("er", "icarl", "lwf"):
        row = path.parent / "out" / name / "seed-1"
        main(["continual", str(row / "recipe.yaml"), "--training.output_dir", str(tmp_path / name)])
        alone, own = (ScoreMatrix.from_file(folder / "scores.json") for folder in (tmp_path / name, row))
        np.testing.assert_array_equal(alone.scores, own.scores)
    joint = path.parent / "out" / "joint" / "seed-0"
    assert len(Ledger(joint / "01-all" / "ledger").timings()) == 3 * 12  # as many steps as the three tasks have
    assert list((path.parent / "out" / "lwf" / "seed-0").glob("*/end/memory")) == []


def test_strengths_are_the_best_of_the_grid_and_stand_with_the_results(made: tuple[Path, dict[str, Any]]) -> None:
    path, shown = made
    found = shown["strengths"]["lwf"]
    scores = [one["score"] for one in found["tried"]]
    assert [one["strength"] for one in found["tried"]] == [1, 100_000]
    assert found["chosen"] == {"strength": found["tried"][int(np.argmax(scores))]["strength"]}
    assert scores[0] != scores[1]
    recipe = yaml.safe_load((path.parent / "out" / "lwf" / "seed-1" / "recipe.yaml").read_text())
    assert recipe["methods"][0]["init_args"]["strength"] == found["chosen"]["strength"]
    assert json.loads((path.parent / "out" / "lwf" / "strengths.json").read_text()) == found
    assert shown["strengths"]["er"] == {"tasks": None, "chosen": {}, "tried": []}


def test_rows_of_the_evaluation_sets_have_no_say_in_a_choice(tmp_path: Path, printed: Runs) -> None:
    path, found = recipe_in(tmp_path), {}
    for source in ("tasks.sources.digits", "own_of_table.noisy"):
        folder = tmp_path / source
        words = ["--methods", "lwf", "--tune", "first:2", "--grid", "lwf.strength=0,1", "--source.factory", source]
        printed("continual", path, *words, "--training.output_dir", folder)
        tuning = sorted((folder / "lwf" / "tuning").glob("*/scores.json"))
        found[source] = [file.read_bytes() for file in (*tuning, folder / "lwf" / "strengths.json")]
        found[source].append((folder / "lwf" / "seed-0" / "scores.json").read_bytes())
    clean, noisy = found.values()
    assert len(clean) == 4
    assert clean[:-1] == noisy[:-1]  # to the bit, where all that is reported was noise
    assert clean[-1] != noisy[-1]


def test_a_class_that_predicts_is_scored_by_its_own_predictions() -> None:
    found = set_ups_of("tasks/methods.py:SLCA,tasks/methods.py:LwF")
    assert {name: own.changes.get("score") for name, own in found.items()} == {"SLCA": "method", "LwF": None}


def test_strengths_by_which_a_run_diverges_are_not_chosen(tmp_path: Path, printed: Runs) -> None:
    grid = ["--tune", "first:2", "--grid", "lwf.strength=1,1e38"]
    printed("continual", recipe_in(tmp_path), "--methods", "lwf", *grid)
    found = json.loads((tmp_path / "out" / "lwf" / "strengths.json").read_text())
    assert found["chosen"] == {"strength": 1}
    assert [one["score"] is None for one in found["tried"]] == [False, True]


def test_the_files_have_the_figures_of_the_runs(made: tuple[Path, dict[str, Any]]) -> None:
    path, shown = made
    table = pd.read_csv(path.parent / "out" / "table.csv").set_index("method")
    ends = {run["run"]: [own["metrics"]["average_accuracy"] for own in run["seeds"].values()] for run in shown["runs"]}
    assert [*table.index] == NAMES
    np.testing.assert_allclose(table["average_accuracy"], [np.mean(ends[name]) for name in NAMES])
    np.testing.assert_allclose(table["average_accuracy_spread"], [np.std(ends[name], ddof=1) for name in NAMES])
    interval = stats.ttest_rel(ends["icarl"], ends["er"]).confidence_interval()
    np.testing.assert_allclose(table.loc["icarl", "against_first"], np.mean(interval))
    np.testing.assert_allclose(table.loc["icarl", "against_first_bound"], np.ptp(interval) / 2, rtol=1e-3)
    assert (table["seconds"] > 0).all()
    assert (table["kept_bytes"] > 0).to_dict() == {name: name in ("er", "icarl", "Mine") for name in NAMES}
    lines = (path.parent / "out" / "table.tex").read_text().splitlines()
    rows = [line for line in lines if line.endswith(r"\\")]
    assert {line.count("&") for line in rows} == {6}
    assert [line.split(" & ")[0] for line in rows[1:]] == NAMES
    assert r"\toprule" in lines
    assert "±" not in "".join(rows)
    assert "icarl" in Path(shown["page"]).read_text()


def test_finished_runs_are_not_run_again(
    made: tuple[Path, dict[str, Any]], printed: Runs, refused: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, shown = made
    trained: list[str] = []
    monkeypatch.setattr(ContinualRun, "_train_task", lambda run, *rest: trained.append(run.folder))
    methods = ["--methods", ",".join([*NAMES[:-1], "own_of_table.py:Mine"]), "--seeds", "2"]
    assert "--resume auto" in refused("continual", path, *methods, *TUNED)
    again = json.loads(printed("continual", path, *methods, *TUNED, "--json", "--resume", "auto"))
    assert trained == []
    assert again == shown
    assert "lwf have strength=" in refused("continual", path, *methods, "--resume", "auto")


@pytest.mark.parametrize(
    ("methods", "more", "message"),
    [
        ("er,lfw", [], "Did you mean 'lwf'?"),
        ("er,er", [], "'er' comes twice"),
        ('[{"class_path": "tasks.methods.LwF", "init_args": {"strenth": 2}}]', [], "There is no field 'strenth'"),
        ("own_of_table.py:None", [], "cannot be found"),
        ("finetune,er", ["--memory", "null"], "er does not go with the recipe. memory must be given"),
        ("finetune,o-lora", [], "o-lora does not go with the recipe. model must have a LoRA adapter"),
        ("finetune,coda-prompt", [], "coda-prompt does not go with the recipe. CODAPrompt: model must"),
        ("finetune,er-ace", ["--sequence.arguments.scenario", "task"], "scenario must not be 'task' with ERACE"),
        ("er,lwf", ["--tune", "first:9"], "num_tasks must be a whole number from 1 to the 3 tasks there are"),
        ("er,lwf", ["--tune", "3"], "--tune must be first:N"),
        ("er", ["--resume", "must"], "there is no continual run"),
        ("lwf", ["--grid", "lwf.strength=1,2"], "--grid is what --tune chooses from"),
        ("lwf", ["--tune", "first:2", "--grid", "er.alpha=1"], "with a name of ['lwf']"),
        ("er", ["--tune", "first:2", "--grid", "er.alpha=1"], "names ['alpha'], but this method has no arguments"),
        ("lwf", ["--tune", "first:2", "--grid", "lwf.strenth=1"], "Did you mean 'strength'?"),
        ("lwf", ["--tune", "first:2", "--grid", "lwf.strength=much"], "numbers after '='"),
        ("lwf", ["--tune", "first:2", "--grid", "lwf.strength=1,1.0"], "numbers that differ"),
        ("er,cls-er", ["--score", "loss"], "score must give all methods the same metric"),
        ("er", ["--seeds", "0"], "must be how many"),
    ],
)
def test_what_cannot_be_is_refused_before_a_run_starts(
    methods: str, more: list[str], message: str, tmp_path: Path, refused: Callable[..., str]
) -> None:
    assert message in refused("continual", recipe_in(tmp_path), "--methods", methods, *more)
    assert not list((tmp_path / "out").rglob("continual.json"))
