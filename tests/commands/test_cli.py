"""The command line as a user runs it."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from mixer import Ledger
from mixer.analysis.report.plots import batch_size, learning_rate, losses
from mixer.analysis.report.run import read_runs
from mixer.cli.entry import main
from mixer.policies import policy_classes
from mixer.policies.registry import STEP_WITH_VARIANCES

ROOT = Path(__file__).parents[2]


RECIPE = {
    "model": {
        "config": {
            "model_type": "llama",
            "vocab_size": 256,
            "hidden_size": 16,
            "intermediate_size": 32,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
        }
    },
    "streams": {
        "python": {
            "factory": "tasks.text_domains.python_source",
            "arguments": {"num_samples": 60, "num_validation_samples": 8, "block_length": 16},
        },
        "cpp": {
            "factory": "tasks.text_domains.cpp_headers",
            "arguments": {"num_samples": 40, "num_validation_samples": 8, "block_length": 16},
        },
    },
    "mixing": {"class_path": "LossChange", "init_args": {"num_warmup_observations": 1}},
    "batch_size": 9,
    "training": {
        "per_device_train_batch_size": 4,
        "max_steps": 4,
        "eval_strategy": "steps",
        "eval_steps": 2,
        "eval_on_start": True,
        "logging_steps": 2,
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": True,
        "disable_tqdm": True,
    },
}


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump({**RECIPE, "training": {**RECIPE["training"], "output_dir": str(tmp_path / "run")}}))
    return path


def _launch(*command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-m", *command], env=environment, capture_output=True, text=True, timeout=300, check=False
    )


def test_two_ranks_train_by_a_recipe_and_are_compared(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    launcher = ("torch.distributed.run", "--standalone", "--nproc_per_node", "2", "-m", "mixer")
    tracked = ("--training.report_to", "[tensorboard]") if importlib.util.find_spec("tensorboard") else ()
    run = _launch(*launcher, "train", str(recipe), "--training.seed", "7", *tracked)
    assert run.returncode == 0, run.stderr[-4000:]
    folder = recipe.parent / "run"
    rows = Ledger(folder / "ledger").to_pandas()
    assert rows.groupby("step")["count"].sum().tolist() == [9, 9, 9, 9]
    assert Ledger(folder / "ledger").evaluations()["step"].tolist() == [0, 0, 2, 2, 4, 4]
    assert (folder / "model.safetensors").is_file()
    assert yaml.safe_load((folder / "recipe.yaml").read_text())["training"]["seed"] == 7
    if tracked:
        _check_events(folder)
    main(["compare", str(folder), str(folder)])
    printed = capsys.readouterr().out
    assert "python" in printed
    assert "worst" in printed


def _check_events(folder: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (written,) = folder.glob("runs/*/events.*")  # the main rank's alone
    events = EventAccumulator(str(written)).Reload()
    assert [event.value for event in events.Scalars("clock/samples")][-1] == 36
    assert {"loss/python", "eval_loss/cpp", "train/loss"} <= set(events.Tags()["scalars"])
    recipe = events.Tensors("mixture/recipe/text_summary")[0].tensor_proto.string_val[0].decode()
    assert yaml.safe_load(recipe.strip("`").removeprefix("yaml"))["training"]["seed"] == 7


def test_one_process_trains_with_another_policy_and_model(recipe: Path, tmp_path: Path) -> None:
    main(["train", str(recipe), "--mixing", "Uniform", "--model.config.hidden_size", "32", "--batch_size", "8"])
    rows = Ledger(tmp_path / "run" / "ledger").to_pandas()
    assert rows["weight"].unique().tolist() == [0.5]
    # A saved model is loaded by name; weights are given by name.
    arguments = [
        "--model.name_or_path",
        str(tmp_path / "run"),
        "--model.config",
        "{}",
        "--mixing",
        '{"python": 1, "cpp": 3}',
    ]
    main(["train", str(recipe), *arguments, "--training.output_dir", str(tmp_path / "second")])
    weights = Ledger(tmp_path / "second" / "ledger").to_pandas().groupby("stream")["weight"].mean()
    assert weights.to_dict() == {"python": 0.25, "cpp": 0.75}
    first, second = (Ledger(tmp_path / name / "ledger").evaluations()["loss"] for name in ("run", "second"))
    assert second.iloc[0] == pytest.approx(first.iloc[-2], abs=1e-4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--training.max_steps", "many"], "training.max_steps: it must be a number, got 'many'"),
        (["--streams.python.factory", "tasks.nowhere.f"], "streams.python.factory: 'tasks.nowhere.f' cannot be found"),
        (
            ["--streams.python.arguments", '{"num_sample": 3}'],
            "streams.python.factory: tasks.text_domains.python_source",
        ),
        (["--streams.python.train_split", "dev"], "streams.python.train_split"),
        (["--training.eval_strategy", "sometimes"], "training: sometimes is not a valid"),
        (["--mixing.init_args.floor", "2"], "mixing: "),
        (["--mixing", "LosChange"], "LossChange"),
        (
            ["--mixing", '{"class_path": "ObjectiveDescent", "init_args": {"objective": "best"}}'],
            "mixing.objective: Expected a typing.Literal",
        ),
        (
            ["--batch_size", '{"class_path": "AdaBatch", "init_args": {"every": 1, "unit": "years"}}'],
            "batch_size.unit: Expected a typing.Literal",
        ),
        (["--mixing", '{"python": 1}'], "missing: ['cpp']"),
        (
            ["--batch_size", "LossChange", "--batch_size.maximum", "8", "--batch_size.minimum", "9"],
            "no batch size is left",
        ),
        (["--batch_size", "LosChange"], "Did you mean 'LossChange'?"),
        (["--budget.epochs", "0"], "budget: epochs must be above 0"),
        (["--batch_size", "0"], "batch_size must be at least 1 sample"),
        (["--model.config", "{}"], "model: "),
        (["--model.name_or_path", "/nowhere/at/all"], "model: "),
        (["--tokenizer", "/nowhere/at/all"], "tokenizer: "),
        (["--colour", "red"], "colour"),
        (["--training.learning_rat", "1"], "learning_rat"),
    ],
)
def test_wrong_input_names_the_field(
    recipe: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["train", str(recipe), *arguments])
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


def test_resume_auto_starts_anew_and_then_goes_on(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saving = ["--training.save_strategy", "steps", "--training.save_steps", "2", "--training.save_total_limit", "2"]
    command = ["train", str(recipe), *saving]
    with pytest.raises(SystemExit):
        main([*command, "--resume", "must"])
    assert "No valid checkpoint found in output directory" in capsys.readouterr().err
    main([*command, "--resume", "auto"])
    assert "No complete checkpoint yet: starts anew" in capsys.readouterr().err
    assert "resume" not in yaml.safe_load((tmp_path / "run" / "recipe.yaml").read_text())
    whole = Ledger(tmp_path / "run" / "ledger").to_pandas()
    weights = (tmp_path / "run" / "model.safetensors").read_bytes()
    (tmp_path / "run" / "checkpoint-4" / "complete.json").unlink()  # as if the run had been killed while it saved
    main([*command, "--resume", "auto"])
    assert "Resumes from" in (printed := capsys.readouterr().err)
    assert "checkpoint-2" in printed
    assert Ledger(tmp_path / "run" / "ledger").to_pandas().equals(whole)
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == weights
    main([*command, "--resume", str(tmp_path / "run" / "checkpoint-2")])
    assert Ledger(tmp_path / "run" / "ledger").to_pandas().equals(whole)
    main([*command, "--resume", "never"])
    assert (tmp_path / "run" / "ledger-1").is_dir()
    with pytest.raises(SystemExit):
        main([*command, "--resume", "auto", "--training.resume_from_checkpoint", "true"])
    assert "give one of the two" in capsys.readouterr().err


def test_a_recipe_has_a_schedule_and_a_budget(recipe: Path, tmp_path: Path) -> None:
    content = yaml.safe_load(recipe.read_text())
    ramp = {"initial": 4, "final": 12, "over": 24, "unit": "samples", "learning_rate": "sqrt"}
    content["batch_size"] = {"class_path": "Ramp", "init_args": ramp}
    content["training"]["max_steps"] = -1
    recipe.write_text(yaml.safe_dump(content))
    main(["train", str(recipe), "--budget.samples", "50", "--batch_size.granularity", "2"])
    clock = Ledger(tmp_path / "run" / "ledger").clock()
    assert clock["batch_size"].tolist() == [4, 6, 8, 10, 12, 12]
    assert clock["samples"].tolist()[-1] == 50
    saved = yaml.safe_load((tmp_path / "run" / "recipe.yaml").read_text())
    assert saved["batch_size"]["init_args"]["granularity"] == 2
    assert saved["budget"]["samples"] == 50


def test_schedules_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    main(["schedules"])
    printed = capsys.readouterr().out
    assert "Seesaw" in printed
    assert "learning_rate" in printed
    (row,) = [row for row in _rows(printed) if row[0] == "NoiseScale"]
    assert row[1] == "gradient_noise"
    assert row[2].endswith(f"takes {STEP_WITH_VARIANCES:.2f} times as long on a single rank")


def test_policies_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    main(["policies"])
    printed = capsys.readouterr().out
    rows = {name: (needs, costs) for name, needs, costs, _ in _rows(printed)}
    assert rows.keys() == {"name", *policy_classes()}
    assert rows["name"] == ("needs", "costs")
    assert rows["Uniform"] == ("nothing", "nothing")
    assert rows["LossChange"] == ("loss", "nothing")
    assert rows["PiKE"] == ("gradient_variance", f"1 step in 20 takes {STEP_WITH_VARIANCES:.2f} times as long")
    assert rows["BalancedPiKE"] == ("gradient_variance, loss", rows["PiKE"][1])
    assert rows["DoReMi"] == (
        "excess_loss",
        "a forward of the reference model each step, micro-batches of one stream each",
    )
    assert rows["FAMO"] == ("loss, loss_after", "a second forward each step")
    assert rows["Hold"] == ("its inner policy's", "its inner policy's")


def _rows(printed: str) -> list[list[str]]:
    """Cells of a printed table, put together again where they take several lines."""
    rows: list[list[str]] = []
    for line in printed.splitlines():
        cells = [cell.strip() for cell in line.replace("┃", "│").strip("│").split("│")]
        if len(cells) < 4:
            continue
        if cells[0]:
            rows.append(cells)
        else:
            rows[-1] = [f"{before} {more}".strip() for before, more in zip(rows[-1], cells, strict=True)]
    return rows


def test_comparing_what_is_no_run_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["compare", str(tmp_path)])
    assert stop.value.code == 2
    assert "is not the folder of a run" in capsys.readouterr().err


def test_a_page_reports_two_runs(recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ramp = '{"class_path": "Ramp", "init_args": {"final": 18, "over": 40, "unit": "samples", "learning_rate": "sqrt"}}'
    main(["train", str(recipe), "--batch_size", ramp, "--training.max_steps", "6"])
    main(["train", str(recipe), "--mixing", "Uniform", "--training.output_dir", str(tmp_path / "second")])
    capsys.readouterr()
    main(["report", str(tmp_path / "run"), str(tmp_path / "second"), "--output", str(tmp_path / "page.html")])
    assert capsys.readouterr().out == f"{tmp_path / 'page.html'}\n"
    main(["report", str(tmp_path / "run")])
    assert capsys.readouterr().out == f"{tmp_path / 'run' / 'report.html'}\n"
    runs = read_runs([tmp_path / "run", tmp_path / "second"])
    clock = Ledger(tmp_path / "run" / "ledger").clock()
    (sizes,) = batch_size(runs, 100).panels
    assert sizes.figure.data[0].y.tolist() == clock["batch_size"].tolist()
    assert clock["batch_size"].iloc[-1] > clock["batch_size"].iloc[0]
    assert len(learning_rate(runs, 100).panels) == 2
    assert [panel.title for panel in losses(runs, 100).panels] == ["cpp", "python"]
    evaluations = Ledger(tmp_path / "second" / "ledger").evaluations()
    validation = losses(runs, 100).panels[0].figure.data[-1]
    assert validation.y.tolist() == pytest.approx(evaluations["loss"][evaluations["stream"] == "cpp"].tolist())


def test_a_page_without_its_libraries_says_how_to_get_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("mixer.analysis.report")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "plotly.graph_objects", None)
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(SystemExit) as stop:
        main(["report", str(tmp_path)])
    assert stop.value.code == 2
    assert "pip install 'adaptive-mixer[report]'" in capsys.readouterr().err


@pytest.mark.parametrize("folder", [".", "nowhere"])
def test_reporting_what_is_no_run_says_so(folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["report", str(tmp_path / folder)])
    assert stop.value.code == 2
    assert "pass the output folder of a run" in capsys.readouterr().err.lower()
