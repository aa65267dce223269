"""The command line as a user runs it."""

import json
import shutil
import sys
from functools import partial
from pathlib import Path

import pytest
import yaml

from mixer import Ledger
from mixer.measurements.gradients import STEP_WITH_VARIANCES
from mixer.policies import policy_classes
from mixer.tools.cli.entry import main
from tests.commands.recipes import RECIPE, SAVING, Runs, on_a_rank, write_recipe
from tests.ranks.warm import run_warm


def test_two_ranks_train_by_a_recipe_and_are_compared(tmp_path: Path, printed: Runs) -> None:
    recipe, folder = write_recipe(tmp_path), tmp_path / "run"
    codes, output = run_warm(tmp_path, partial(on_a_rank, ["train", recipe, "--training.seed", "7"]))
    assert codes == [0, 0], output[-4000:]
    assert Ledger(folder / "ledger").to_pandas().groupby("step")["count"].sum().tolist() == [9, 9, 9, 9]
    assert Ledger(folder / "ledger").evaluations()["step"].tolist() == [0, 0, 2, 2, 4, 4]
    assert (folder / "model.safetensors").is_file()
    assert yaml.safe_load((folder / "recipe.yaml").read_text())["training"]["seed"] == 7
    table = printed("compare", folder, folder)
    assert "python" in table
    assert "worst" in table


def test_one_process_trains_with_another_policy_and_model(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path)
    main(["train", recipe, "--mixing", "Uniform", "--model.config.hidden_size", "32", "--batch_size", "8"])
    assert Ledger(tmp_path / "run" / "ledger").to_pandas()["weight"].unique().tolist() == [0.5]
    # A saved model is loaded by name; weights are given by name.
    model = ["--model.name_or_path", str(tmp_path / "run"), "--model.config", "{}"]
    weights = ["--mixing", '{"python": 1, "cpp": 3}']
    main(["train", recipe, *model, *weights, "--training.output_dir", str(tmp_path / "second")])
    rows = Ledger(tmp_path / "second" / "ledger").to_pandas()
    assert rows.groupby("stream")["weight"].mean().to_dict() == {"python": 0.25, "cpp": 0.75}
    first, second = (Ledger(tmp_path / name / "ledger").evaluations()["loss"] for name in ("run", "second"))
    assert second.iloc[0] == pytest.approx(first.iloc[-2], abs=1e-4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--training.max_steps", "many"], "training.max_steps must be a whole number, got 'many'"),
        (["--streams.python.factory", "tasks.nowhere.f"], "streams.python.factory: 'tasks.nowhere.f' cannot be found"),
        (["--streams.python.arguments", '{"num_sample": 3}'], "streams.python.factory: tests.commands.recipes.tokens"),
        (["--batch_size", "LossChange", "--batch_size.maximum", "8", "--batch_size.minimum", "9"], "no batch size"),
    ],
)
def test_wrong_input_names_the_field(tmp_path: Path, arguments: list[str], message: str, refused: Runs) -> None:
    assert message in refused("train", write_recipe(tmp_path), *arguments)


def test_code_beside_a_recipe_is_found_while_its_command_runs(tmp_path: Path, printed: Runs) -> None:
    (tmp_path / "code_beside.py").write_text(
        "from mixer.policies import Uniform\nfrom tests.commands.recipes import tokens\nclass Mine(Uniform): ...\n"
    )
    python = {"factory": "code_beside.tokens", "arguments": RECIPE["streams"]["python"]["arguments"]}
    streams = {**RECIPE["streams"], "python": python}
    recipe, before = write_recipe(tmp_path, streams=streams, mixing={"class_path": "code_beside.Mine"}), [*sys.path]
    main(["train", recipe, "--training.max_steps", "1"])
    assert "python" in printed("inspect", recipe)
    assert sys.path == before


def test_resume_auto_starts_anew_and_then_goes_on(tmp_path, capsys, refused) -> None:
    command = ["train", write_recipe(tmp_path), *SAVING, "2", "--training.save_total_limit", "2", "--resume"]
    assert "No valid checkpoint found in output directory" in refused(*command, "must")
    main([*command, "auto"])
    assert "No complete checkpoint yet: starts anew" in capsys.readouterr().err
    assert "resume" not in yaml.safe_load((tmp_path / "run" / "recipe.yaml").read_text())
    whole = Ledger(tmp_path / "run" / "ledger").to_pandas()
    weights = (tmp_path / "run" / "model.safetensors").read_bytes()
    (tmp_path / "run" / "checkpoint-4" / "complete.json").unlink()  # as if the run had been killed while it saved
    main([*command, "auto"])
    assert "Resumes from" in (said := capsys.readouterr().err)
    assert "checkpoint-2" in said
    assert Ledger(tmp_path / "run" / "ledger").to_pandas().equals(whole)
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == weights
    main([*command, "never", "--training.max_steps", "1"])
    assert (tmp_path / "run" / "ledger-1").is_dir()
    assert "give one of the two" in refused(*command, "auto", "--training.resume_from_checkpoint", "true")


def test_a_run_that_is_there_is_replaced_only_if_told_to(tmp_path: Path, refused: Runs, printed: Runs) -> None:
    run, command = tmp_path / "run", ["train", write_recipe(tmp_path)]
    saving = [*command, *SAVING, "2", "--training.save_total_limit", "1"]
    main(saving)

    def kept() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}

    before = kept()
    elsewhere = shutil.copytree(run / "checkpoint-4", tmp_path / "checkpoint-4")
    fork = ["fork", run, "--at", "4", "--training.output_dir"]
    for words in (saving, command, [*saving, "--resume", elsewhere]):
        said = refused(*words)
        assert all(part in said for part in (str(run), "checkpoint-4", "--resume auto", "--overwrite"))
    assert "give one of the two" in refused(*saving, "--overwrite", "--resume", "auto")
    assert kept() == before
    main([str(word) for word in [*fork, tmp_path / "fork", *SAVING, "2"]])
    assert f"mixer train {tmp_path / 'fork'} --resume auto" in refused(*fork, tmp_path / "fork")
    main([str(word) for word in [*fork, tmp_path / "fork", "--overwrite"]])
    main([*command, "--overwrite", "--training.max_steps", "1"])
    assert Ledger(run / "ledger").clock()["step"].tolist() == [1]
    assert "which has finished" in refused(*command)  # without a checkpoint of its own
    printed(*command, "--dry_run")


def test_a_recipe_has_a_schedule_and_a_budget(tmp_path: Path) -> None:
    ramp = {"initial": 4, "final": 12, "over": 24, "unit": "samples", "learning_rate": "sqrt"}
    rules = {"batch_size": {"class_path": "Ramp", "init_args": ramp}, "mixing": "Uniform"}
    recipe, run = write_recipe(tmp_path, {"max_steps": -1}, **rules), tmp_path / "run"
    main(["train", recipe, "--budget.samples", "50", "--batch_size.granularity", "2"])
    clock = Ledger(run / "ledger").clock()
    assert clock["batch_size"].tolist() == [4, 6, 8, 10, 12, 12]
    assert clock["samples"].tolist()[-1] == 50
    saved = yaml.safe_load((run / "recipe.yaml").read_text())
    assert saved["batch_size"]["init_args"]["granularity"] == 2
    assert saved["budget"]["samples"] == 50


def test_policies_and_schedules_are_listed(printed: Runs) -> None:
    assert "Uniform" in printed("policies")
    listed = [row for command in ("policies", "schedules") for row in json.loads(printed(command, "--json"))]
    rows = {row.pop("name"): row for row in listed}
    assert rows.keys() >= {*policy_classes(), "ReplayRatio", "ReplayBound", "NoiseScale"}
    assert all(set(row) == {"needs", "costs", "summary"} for row in listed)
    assert (rows["Uniform"]["needs"], rows["SkillIt"]["needs"]) == ([], ["EvaluationLoss"])
    for name in ("PiKE", "BalancedPiKE", "NoiseScale"):
        assert f"1 step in 20 takes {STEP_WITH_VARIANCES:.2f} times as long" in rows[name]["costs"]


def test_a_page_without_its_libraries_or_of_no_run_is_refused(tmp_path, refused, monkeypatch) -> None:
    for command in ("compare", "watch"):
        assert "is not the folder of a run" in refused(command, tmp_path)
    for folder in (tmp_path, tmp_path / "nowhere"):
        assert "pass the output folder of a run" in refused("report", folder).lower()
    for name in [name for name in sys.modules if name.startswith("mixer.tools.report")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "plotly.graph_objects", None)
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    assert "pip install 'adaptive-mixer[report]'" in refused("report", tmp_path)
