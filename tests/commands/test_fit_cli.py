"""Fits of real runs from the command line, as a user makes them."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from mixer import Ledger
from mixer.cli.entry import main

ROOT = Path(__file__).parents[2]
SHARES = (0.1, 0.3, 0.5, 0.7, 0.9)


def _stream(factory: str) -> dict[str, object]:
    arguments = {"num_samples": 1200, "num_validation_samples": 32, "block_length": 32}
    return {"factory": f"tasks.text_domains.{factory}", "arguments": arguments}


RECIPE = {
    "model": {
        "config": {
            "model_type": "llama",
            "vocab_size": 256,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
        }
    },
    "streams": {"python": _stream("python_source"), "cpp": _stream("cpp_headers")},
    "batch_size": 10,
    "training": {
        "per_device_train_batch_size": 10,
        "max_steps": 120,
        "learning_rate": 0.01,
        "eval_strategy": "steps",
        "eval_steps": 120,
        "logging_steps": 120,
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": True,
        "disable_tqdm": True,
    },
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a recipe and runs of several fixed mixtures of it."""
    folder = tmp_path_factory.mktemp("fit")
    (folder / "recipe.yaml").write_text(yaml.safe_dump(RECIPE))
    for share in SHARES:
        mixing = json.dumps({"python": share, "cpp": 1 - share})
        output = str(folder / "runs" / f"python-{share}")
        main(["train", str(folder / "recipe.yaml"), "--mixing", mixing, "--training.output_dir", output])
    return folder


def _runs(folder: Path) -> list[str]:
    return sorted(str(run) for run in (folder / "runs").iterdir())


def _fails(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as stop:
        main(["fit", *arguments])
    assert stop.value.code == 2
    return " ".join(capsys.readouterr().err.split())


def test_a_mixture_is_fitted_and_trained_on_by_the_printed_command(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "the weights.json"  # with a blank, to be quoted
    main(["fit", *_runs(folder), "--output", str(output)])
    printed = capsys.readouterr().out
    for words in ("python", "0.100 … 0.900", "best run", "uniform run", "python-0.5", "mean of the other runs"):
        assert words in printed
    weights = json.loads(output.read_text())
    assert sum(weights.values()) == pytest.approx(1.0)
    assert all(0.1 <= weight <= 0.9 for weight in weights.values())
    command = printed.strip().splitlines()[-1].strip()
    assert command.startswith("mixer train RECIPE.yaml --mixing ")
    command = command.replace("mixer", f"{sys.executable} -m mixer", 1).replace("RECIPE.yaml", "recipe.yaml")
    trained = subprocess.run(
        ["/bin/sh", "-c", f"{command} --training.output_dir {shlex.quote(str(tmp_path / 'best'))}"],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert trained.returncode == 0, trained.stderr[-4000:]
    rows = Ledger(tmp_path / "best" / "ledger").to_pandas()
    assert rows.groupby("stream")["weight"].mean().to_dict() == pytest.approx(weights)


def test_a_fit_is_one_document_for_scripts(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "weights.json"
    main(["fit", *_runs(folder), "--output", str(output), "--json"])
    document = json.loads(capsys.readouterr().out)
    assert document["mixing"] == document["weights"] == json.loads(output.read_text())
    assert (document["objective"], document["unit"]) == ("average", "samples")
    assert [run["name"] for run in document["runs"]] == [Path(run).name for run in _runs(folder)]
    assert document["best_run"] == min(document["runs"], key=lambda run: float(run["loss"]))["name"]
    assert document["runs"][0]["shares"] == pytest.approx({"python": 0.1, "cpp": 0.9})
    assert document["errors"][document["regressor"]] == pytest.approx(document["error"])


def test_the_mixture_is_where_the_recorded_losses_say(folder: Path, tmp_path: Path) -> None:
    losses = {"python": np.empty(0), "cpp": np.empty(0)}
    for run in _runs(folder):
        last = Ledger(Path(run) / "ledger").evaluations().groupby("stream")["loss"].last()
        losses = {name: np.append(values, last[name]) for name, values in losses.items()}
    for name, sign in (("python", -1), ("cpp", 1)):  # each stream's loss falls as its own share rises
        assert (sign * np.diff(losses[name]) > 0).all()
    found = {}
    for objective in ("python=1", "cpp=1", "average", "worst"):
        main(["fit", *_runs(folder), "--objective", objective, "--output", str(tmp_path / "weights.json")])
        found[objective] = json.loads((tmp_path / "weights.json").read_text())["python"]
    assert found["python=1"] > 0.85
    assert found["cpp=1"] < 0.15
    # The worst is least where the two are equal, here by straight lines between the runs.
    shares = np.linspace(0.1, 0.9, 801)
    lines = [np.interp(shares, SHARES, values) for values in losses.values()]
    assert found["worst"] == pytest.approx(shares[np.maximum(*lines).argmin()], abs=0.05)
    assert found["average"] == pytest.approx(shares[np.add(*lines).argmin()], abs=0.1)


def test_options_reach_the_fit(folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    options = ["--objective", "python=1", "--loss", "train", "--unit", "tokens", "--regressor", "exponential"]
    main(["fit", *_runs(folder), *options, "--least-share", "0.25"])
    printed = capsys.readouterr().out
    assert "exponential (chosen)" in printed
    assert "gaussian-process" not in printed
    command = shlex.split(printed.strip().splitlines()[-1])
    fixed = json.loads(command[-1])
    assert fixed["init_args"]["unit"] == "tokens"
    assert fixed["init_args"]["weights"]["cpp"] == pytest.approx(0.25, abs=0.01)
    more = ["--training.max_steps", "4", "--training.output_dir", str(tmp_path / "run")]
    main(["train", str(folder / "recipe.yaml"), "--mixing", command[-1], *more])
    weights = Ledger(tmp_path / "run" / "ledger").to_pandas().groupby("stream")["weight"].mean().to_dict()
    assert weights == pytest.approx(fixed["init_args"]["weights"])


def test_runs_that_do_not_belong_together_are_refused_by_name(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = str(folder / "recipe.yaml")
    output = str(tmp_path / "short")
    main(["train", recipe, "--mixing", "Uniform", "--training.max_steps", "60", "--training.output_dir", output])
    capsys.readouterr()
    message = _fails(capsys, *_runs(folder), output)
    assert "trained on as many samples, to 5%; the median is 1,200, but: short (600)" in message
    assert "--allow-different-budgets" in message
    main(["fit", *_runs(folder), output, "--allow-different-budgets"])
    assert "by 6 runs" in capsys.readouterr().out


def test_runs_that_differ_in_more_than_their_mixture_are_refused_with_the_fields(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe, output = str(folder / "recipe.yaml"), str(tmp_path / "fast")
    changes = ["--training.learning_rate", "0.02", "--training.seed", "3", "--training.logging_steps", "60"]
    main(["train", recipe, "--mixing", "Uniform", *changes, "--training.output_dir", output])
    capsys.readouterr()
    message = _fails(capsys, *_runs(folder), output)
    assert "their recipes differ in: training.learning_rate (0.01, but 0.02 in fast). Leave these runs out" in message
    main(["fit", *_runs(folder), output, "--allow-different-recipes"])
    printed = " ".join(capsys.readouterr().out.split())
    assert "by 6 runs" in printed
    assert "Recipes differ in more than the mixture, which may change losses: training.learning_rate" in printed
    main(["fit", *_runs(folder)])
    assert "ecipe" not in capsys.readouterr().out.partition("To train on it")[0]


def test_losses_of_untrained_models_are_refused(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = []
    for share in (0.2, 0.5, 0.8):
        mixing = ["--mixing", json.dumps({"python": share, "cpp": 1 - share})]
        start = ["--training.eval_strategy", "no", "--training.eval_on_start", "true", "--training.max_steps", "20"]
        runs.append(str(tmp_path / f"python-{share}"))
        main(["train", str(folder / "recipe.yaml"), *mixing, *start, "--training.output_dir", runs[-1]])
    capsys.readouterr()
    message = _fails(capsys, *runs)
    assert "evaluation of python-0.2, python-0.5, python-0.8 was before the first step" in message
    assert "training.eval_strategy" in message
    main(["fit", *runs, "--loss", "train"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--objective", "java=1"], "objective: there is no loss of ['java']; there are losses of ['cpp', 'python']"),
        (["--objective", "best"], "must be 'average', 'worst' or 'NAME=weight,...'"),
        (["--least-share", "0.6"], "least_share must be in [0.0, 0.5], got 0.6"),
        (["--regressor", "forest"], "regressor"),
        (["--unit", "bytes"], "unit"),
        (["--output", "/proc/nowhere/weights.json"], "/proc/nowhere"),
    ],
)
def test_wrong_input_ends_with_two_and_names_the_option(
    folder: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in _fails(capsys, *_runs(folder), *arguments)


def test_too_few_runs_are_refused(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "at least 3 different mixtures, got 2 with 2" in _fails(capsys, *_runs(folder)[:2])
    assert "is not the folder of a run" in _fails(capsys, str(tmp_path))
    assert "runs" in _fails(capsys)


def test_without_its_library_it_says_how_to_get_it(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.gaussian_process", None)
    assert "pip install 'adaptive-mixer[fit]'" in _fails(capsys, *_runs(folder))
    main(["fit", *_runs(folder), "--regressor", "exponential"])
