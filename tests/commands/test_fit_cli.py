"""Fits of real runs from the command line, as a user makes them."""

import json
import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from mixer import Ledger, Objective
from mixer.tools.analysis.fit import FittedMixture
from mixer.tools.cli.entry import main
from mixer.tools.records.run import Run
from tests.commands.recipes import Runs, write_recipe
from tests.helpers import Tokens
from tests.mixer.trainer.runs import train as train_mixture

DECLARED = {"python": 3.0, "cpp": 1.0}


def train(folder: Path, name: str, share: float, *arguments: str) -> str:
    mixing = ["--mixing", json.dumps({"python": share, "cpp": 1 - share})]
    main(["train", str(folder / "recipe.yaml"), *mixing, *arguments, "--training.output_dir", str(folder / name)])
    return str(folder / name)


def recorded_objective_of(run: Path) -> float:
    """The objective that the run itself evaluated at its end."""
    return Run(run).objective_value()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("fit")
    write_recipe(
        folder, {"eval_on_start": False, "max_steps": 2, "learning_rate": 0.01}, batch_size=20, objective=DECLARED
    )
    return [train(folder, f"python-{share}", share) for share in (0.1, 0.5, 0.9)]


def test_a_mixture_is_fitted_and_trained_on_by_the_printed_option(runs, tmp_path, printed, monkeypatch) -> None:
    output = tmp_path / "the weights.json"  # with a blank, to be quoted
    assert "--mixing" not in printed("fit", *runs)  # three runs on random bytes explain nothing
    monkeypatch.setattr(FittedMixture, "explains_nothing", False)
    shown = printed("fit", *runs, "--output", output)
    for words in ("python", "0.1", "best run", "prior", "Gain over your weights", "rank correlation"):
        assert words in shown
    document = json.loads(printed("fit", *runs, "--output", output, "--json"))
    weights = json.loads(output.read_text())
    assert document["mixing"] == document["weights"] == weights
    assert sum(weights.values()) == pytest.approx(1.0)
    assert all(0.1 <= weight <= 0.9 for weight in weights.values())
    own = {run["run"]: run for run in document["mixtures"]}
    assert sorted(own) == sorted(Path(run).name for run in runs)
    assert document["best_run"] == min(own, key=lambda run: float(own[run]["objective"]))
    assert document["objective"] == "the declared objective"
    for run in runs:
        assert own[Path(run).name]["objective"] == pytest.approx(recorded_objective_of(Path(run)))
    assert own["python-0.1"]["shares"] == pytest.approx({"python": 0.1, "cpp": 0.9})
    option, value = shlex.split(shown.strip().splitlines()[-1])
    assert option == "--mixing"
    assert json.loads(value) == weights
    recipe = Path(runs[0]).parent / "recipe.yaml"
    main(["train", str(recipe), "--mixing", output.read_text(), "--training.output_dir", str(tmp_path / "best")])
    rows = Ledger(tmp_path / "best" / "ledger").to_pandas()
    assert rows.groupby("stream")["weight"].mean().to_dict() == pytest.approx(weights)
    shown = printed("fit", *runs, "--objective", "python=1", "--unit", "tokens", "--least", "0.25")
    fixed = json.loads(shlex.split(shown.strip().splitlines()[-1])[-1])["init_args"]
    assert fixed["unit"] == "tokens"
    assert min(fixed["weights"].values()) >= 0.24


@pytest.mark.full
def test_runs_that_do_not_belong_together_are_refused_by_name_unless_allowed(runs, refused, printed) -> None:
    folder = Path(runs[0]).parent
    short = train(folder, "short", 0.5, "--training.max_steps", "1")
    message = refused("fit", *runs, short)
    assert "['short (20)']" in message
    assert "--allow-different-budgets" in message
    assert "by 4 runs" in printed("fit", *runs, short, "--allow-different-budgets")
    fast = train(folder, "fast", 0.5, "--training.learning_rate", "0.02", "--training.logging_steps", "60")
    message = refused("fit", *runs, fast)
    assert "training.learning_rate (0.01 in python-0.1, 0.02 in fast)" in message
    shown = " ".join(printed("fit", *runs, fast, "--allow-different-recipes").split())
    assert "by 4 runs" in shown
    assert "Recipes differ in more than the mixture, which may change losses: training.learning_rate" in shown
    assert "ecipe" not in printed("fit", *runs).partition("To train on it")[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--objective", "java=1"], "objective must be one or more of the losses"),
        (["--least", "0.6"], "least"),
        (["--output", "/proc/nowhere/weights.json"], "/proc/nowhere"),
    ],
)
def test_wrong_input_ends_with_two_and_names_the_option(runs, arguments, message, refused) -> None:
    assert message in refused("fit", *runs, *arguments)
    assert "at least 3 different mixtures, got 2 with 2" in refused("fit", *runs[:2])


def test_a_table_of_any_framework_is_fitted(tmp_path: Path, printed: Runs, refused: Runs, runs: list[str]) -> None:
    # L = (a − 0.3)², and a metric 1 − L of which more is better: both are best at a = 0.3.
    shares = np.linspace(0.0, 1.0, 9)
    columns = {"share/a": shares, "share/b": 1 - shares, "loss/x": (shares - 0.3) ** 2}
    pd.DataFrame(columns).to_csv(tmp_path / "runs.csv", index=False)
    pd.DataFrame({**columns, "loss/x": 1 - columns["loss/x"]}).to_parquet(tmp_path / "runs.parquet")
    for options in ([tmp_path / "runs.csv"], [tmp_path / "runs.parquet", "--greater_is_better"]):
        document = json.loads(printed("fit", *options, "--json"))
        assert document["weights"]["a"] == pytest.approx(0.3, abs=0.02)
    assert "folders of runs, or one" in refused("fit", tmp_path / "runs.csv", runs[0])


def test_runs_that_declared_a_metric_are_fitted_by_it(
    tmp_path: Path, printed: Runs, refused: Runs, runs: list[str]
) -> None:
    folders = []
    for number, share in enumerate((0.1, 0.5, 0.9)):
        own = {"objective": Objective(["a"], metric="score", greater_is_better=True), "max_steps": 1, "eval_steps": 1}
        own |= {"compute_metrics": lambda _, own=share: {"score": 1.0 - (own - 0.5) ** 2}, "eval_strategy": "steps"}
        own |= {"train_dataset": {name: Tokens(9, 1) for name in "ab"}, "mixing": {"a": share, "b": 1.0 - share}}
        train_mixture(tmp_path / str(number), eval_dataset={name: Tokens(2, 3) for name in "ab"}, **own)
        folders.append(tmp_path / str(number))
    document = json.loads(printed("fit", *folders, "--json"))
    assert (document["objective"], document["best_run"]) == ("score=1", "1")
    found = {run["run"]: run["objective"] for run in document["mixtures"]}
    assert found == pytest.approx({"0": 0.84, "1": 1.0, "2": 0.84})
    assert "a=1" in printed("fit", *folders, "--objective", "a=1")
    assert "--size" in refused("fit", *folders, "--size", "parameters")
