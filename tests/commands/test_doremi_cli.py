"""The search for weights by a reference and a proxy, as a user runs it."""

import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from mixer import DoReMi, Floor, Ledger, Mixture, Observation
from mixer.analysis.doremi.runs import averaged_weights
from mixer.cli.entry import main
from tests.commands.doremi import fails, trained
from tests.commands.test_cli import RECIPE, ROOT
from tests.ranks.warm import run_warm

__all__ = ["trained"]  # a fixture
POLICY = {"class_path": "mixer.DoReMi", "init_args": {"step_size": 3.0, "acts_on": "sampling"}}
SAVING = ["--training.save_strategy", "steps", "--training.save_steps", "1"]


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    training = {**RECIPE["training"], "eval_strategy": "no", "eval_on_start": False}
    content = {**RECIPE, "mixing": POLICY, "training": {**training, "output_dir": str(tmp_path / "run")}}
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def weights_in(folder: Path) -> Any:
    rows = Ledger(folder / "ledger").to_pandas()
    return rows.pivot_table(index="step", columns="stream", values="weight")[["python", "cpp"]].to_numpy()


def test_the_weights_are_the_averages_of_the_proxy_and_rule_the_main_run(
    recipe: Path, tmp_path: Path, trained: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    main(["doremi", str(recipe), "--train"])
    assert trained == ["reference", "proxy", "main"]
    run = tmp_path / "run"
    weights = json.loads((run / "weights.json").read_text())
    # The reference's shares are by size; the ledger has the proxy's weights in the steps that they ruled: all but the
    # last ones, which came after the last step, and the first, which were decided before it.
    np.testing.assert_allclose(weights_in(run / "reference"), [[0.6, 0.4]] * 4)
    proxy = weights_in(run / "proxy")
    np.testing.assert_allclose(proxy[0], 0.5)
    assert abs(proxy[1:] - 0.5).min() > 1e-6
    last = 4 * np.array([weights["python"], weights["cpp"]]) - proxy[1:].sum(axis=0)
    assert last.sum() == pytest.approx(1.0, abs=1e-9)
    assert last.min() > 0
    np.testing.assert_allclose(weights_in(run / "main"), [[weights["python"], weights["cpp"]]] * 4)
    printed = capsys.readouterr().out
    assert f"{weights['python']:.4f}" in printed
    assert str(run / "weights.json") in printed
    # The proxy is what its recipe gives: a model of the recipe's own beside the one that it is compared with.
    main(["train", str(run / "proxy" / "recipe.yaml"), "--training.output_dir", str(tmp_path / "second")])
    models = [(folder / "model.safetensors").read_bytes() for folder in (run / "proxy", tmp_path / "second")]
    assert models[0] == models[1]
    # Weights can be given to a run, and so can the recipe of the main one.
    main(["train", str(recipe), "--mixing", json.dumps(weights), "--training.output_dir", str(tmp_path / "own")])
    main(["train", str(run / "main" / "recipe.yaml"), "--training.output_dir", str(tmp_path / "again")])
    for folder in ("own", "again"):
        assert (tmp_path / folder / "model.safetensors").read_bytes() == (
            run / "main" / "model.safetensors"
        ).read_bytes()


def test_steps_at_their_end_are_not_trained_again_and_others_go_on(
    recipe: Path, tmp_path: Path, trained: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["doremi", str(recipe), *SAVING]
    main(command)
    run = tmp_path / "run"
    found, proxy = (run / "weights.json").read_bytes(), Ledger(run / "proxy" / "ledger").to_pandas()
    assert not (run / "main").exists()
    capsys.readouterr()
    main(command)
    assert trained == ["reference", "proxy"]
    assert str(run / "weights.json") in capsys.readouterr().out
    main([*command, "--json"])
    document = json.loads(capsys.readouterr().out)
    assert document["mixing"] == json.loads(found)
    assert (document["weights"], document["unit"]) == (document["mixing"], "samples")
    assert document["path"] == str(run / "weights.json")
    # As if the proxy had been killed while it wrote its third checkpoint.
    for file in ("weights.json", "proxy/finished.json", "proxy/checkpoint-3/complete.json"):
        (run / file).unlink()
    (run / "proxy" / "checkpoint-4" / "complete.json").unlink()
    main(command)
    assert trained == ["reference", "proxy", "proxy"]
    assert (run / "weights.json").read_bytes() == found
    assert Ledger(run / "proxy" / "ledger").to_pandas().equals(proxy)
    capsys.readouterr()
    main([*command, "--train", "--json"])
    assert trained[3:] == ["main"]
    assert json.loads(capsys.readouterr().out) == document  # what training prints goes elsewhere


def test_another_recipe_is_refused_in_the_same_folder(
    recipe: Path, capsys: pytest.CaptureFixture[str], trained: list[str]
) -> None:
    main(["doremi", str(recipe)])
    message = fails(capsys, str(recipe), "--training.max_steps", "5", "--batch_size", "10")
    assert "run/reference was trained with another recipe, which differs in batch_size, training.max_steps" in message
    assert "another training.output_dir" in message
    # The policy is the proxy's alone, and the main run's learning rate would be that of all.
    message = fails(capsys, str(recipe), "--mixing.init_args.step_size", "2")
    assert "run/proxy was trained with another recipe, which differs in mixing.init_args.step_size." in message
    assert trained == ["reference", "proxy"]


def test_a_smaller_proxy_and_another_mixture_of_the_reference(recipe: Path, tmp_path: Path) -> None:
    small = {**RECIPE["model"]["config"], "hidden_size": 8}
    options = ["--proxy_model.config", json.dumps(small), "--reference_mixing", '{"python": 1, "cpp": 3}']
    main(["doremi", str(recipe), "--train", *options, "--mixing.init_args.unit", "tokens"])
    run = tmp_path / "run"
    sizes = {
        name: json.loads((run / name / "config.json").read_text())["hidden_size"]
        for name in ("reference", "proxy", "main")
    }
    assert sizes == {"reference": 8, "proxy": 8, "main": 16}
    np.testing.assert_allclose(weights_in(run / "reference"), [[0.25, 0.75]] * 4)
    # The weights are shares of tokens, and written as such: a run that they are given to is the main one.
    mixing = (run / "weights.json").read_text()
    assert json.loads(mixing)["init_args"]["unit"] == "tokens"
    main(["train", str(recipe), "--mixing", mixing, "--training.output_dir", str(tmp_path / "own")])
    models = [(folder / "model.safetensors").read_bytes() for folder in (run / "main", tmp_path / "own")]
    assert models[0] == models[1]


def test_a_proxy_has_the_head_of_the_recipes_model(recipe: Path, tmp_path: Path) -> None:
    bert = {**RECIPE["model"]["config"], "model_type": "bert"}
    small = {**bert, "hidden_size": 8}
    model = ["--model.task", "masked-lm", "--model.config", json.dumps(bert), "--training.max_steps", "1"]
    main(["doremi", str(recipe), *model, "--proxy_model.config", json.dumps(small)])
    for name in ("reference", "proxy"):
        config = json.loads((tmp_path / "run" / name / "config.json").read_text())
        assert (config["architectures"], config["hidden_size"]) == (["BertForMaskedLM"], 8)


def test_a_stream_without_weight_has_no_share(recipe: Path, tmp_path: Path) -> None:
    main(["doremi", str(recipe), "--mixing", "DoReMi", "--streams.cpp.weight", "0", "--streams.python.weight", "1"])
    weights = json.loads((tmp_path / "run" / "weights.json").read_text())
    assert weights == {"python": 1.0, "cpp": 0.0}


def test_the_command_of_the_documentation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    page = (ROOT / "docs" / "command_line.md").read_text()
    lines = [line for line in page.splitlines() if line.startswith("mixer doremi recipes/")]
    demo = yaml.safe_load((ROOT / "recipes" / "demo.yaml").read_text())
    few = ["--training.max_steps", "1", "--training.eval_strategy", "no", "--training.eval_on_start", "false"]
    for name in demo["streams"]:
        few += [f"--streams.{name}.arguments", '{"num_samples": 40, "num_validation_samples": 4, "block_length": 16}']
    small = ["--batch_size", "6", "--model.config", json.dumps(RECIPE["model"]["config"])]
    assert lines
    for number, line in enumerate(lines):
        run = tmp_path / str(number)
        main([*shlex.split(line, comments=True)[1:], *few, *small, "--training.output_dir", str(run)])
        assert sum(json.loads((run / "weights.json").read_text()).values()) == pytest.approx(1.0)


def test_without_a_policy_it_is_the_papers(recipe: Path, tmp_path: Path, trained: list[str]) -> None:
    content = yaml.safe_load(recipe.read_text())
    del content["mixing"]
    recipe.write_text(yaml.safe_dump(content))
    main(["doremi", str(recipe)])
    assert trained == ["reference", "proxy"]
    run = tmp_path / "run"
    assert yaml.safe_load((run / "proxy" / "recipe.yaml").read_text())["mixing"] == "DoReMi"
    # It weighs the proxy's losses; its samples are drawn by the streams' own weights all the time.
    drawn = weights_in(run / "proxy")
    np.testing.assert_allclose(drawn, drawn[:1].repeat(len(drawn), axis=0))
    found = json.loads((run / "weights.json").read_text())
    assert sum(found.values()) == pytest.approx(1.0)
    assert found["python"] != pytest.approx(drawn[0, 0], abs=1e-6)


def test_weights_are_those_of_the_policy_that_others_are_wrapped_around() -> None:
    policy = Floor(DoReMi(), 0.3)
    decision = policy.start(Mixture(("a", "b"), np.array([5, 6]), np.array([0.5, 0.5])))
    ones = np.ones(2, dtype=np.int64)
    losses = np.full(2, np.nan)
    policy.update(
        Observation(1, 0.5, decision.weights, ones, ones, ones, losses, excess_losses=np.array([np.log(3.0), 0.0]))
    )
    found = averaged_weights(policy, ("a", "b"))
    assert found == pytest.approx({"a": 0.999 * 0.75 + 0.0005, "b": 0.999 * 0.25 + 0.0005})
    with pytest.raises(ValueError, match=r"DoReMi.averaged_weights: .* unknown: \['b'\]"):
        averaged_weights(policy, ("a", "c"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--mixing", "LossChange"],
            "mixing: LossChange does not average its weights over the run, as the proxy's policy must. Use --mixing "
            "DoReMi, or another",
        ),
        (["--mixing", '{"python": 1, "cpp": 1}'], "mixing: Fixed does not average its weights"),
        (
            ["--mixing.init_args.reference_losses", '{"python": 1, "cpp": 2}'],
            "mixing: DoReMi with these arguments needs no reference",
        ),
        (["--reference_model", "x"], "doremi trains the reference itself"),
        (["--training.resume_from_checkpoint", "x"], "mixer doremi resumes by itself"),
        (["--reference_mixing", "LosChange"], "LossChange"),
        (
            ["--reference_mixing", '{"class_path": "Temperature", "init_args": {"temperature": -1}}'],
            "mixer doremi: reference_mixing: temperature",
        ),
        (["--proxy_model.config", '{"hidden_size": 8}'], "mixer doremi: proxy_model: give name_or_path, or a config"),
        (["--proxy_model.name_or_path", "/nowhere/at/all"], "mixer doremi: proxy_model: "),
        (["--batch_size", "0"], "batch_size must be at least 1 sample"),
        (["--training.learning_rat", "1"], "learning_rat"),
    ],
)
def test_wrong_input_is_refused_before_anything_is_trained(
    recipe: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], trained: list[str]
) -> None:
    assert message in fails(capsys, str(recipe), *arguments)
    assert trained == []


def test_a_reference_that_cannot_be_loaded_is_named(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, message in (
        (["--reference_model", "/nowhere/at/all"], "reference_model: "),
        ([], "DoReMi needs the losses of a reference model"),
    ):
        with pytest.raises(SystemExit) as stop:
            main(["train", str(recipe), *arguments])
        assert stop.value.code == 2
        assert message in capsys.readouterr().err


def test_two_ranks(recipe: Path, tmp_path: Path) -> None:
    command = ("doremi", str(recipe), "--train")
    for times in range(2):  # once to train, once to find all of it at its end
        codes, output = run_warm("command_worker.py", tmp_path, *command)
        assert codes == [0, 0], (times, output[-4000:])
        assert output.count("weights.json") == 1
    both = json.loads((tmp_path / "run" / "weights.json").read_text())
    main(["doremi", str(recipe), "--training.output_dir", str(tmp_path / "alone")])
    alone = json.loads((tmp_path / "alone" / "weights.json").read_text())
    assert both == pytest.approx(alone, abs=1e-5)
    # What the main process cannot read stops the other one too.
    (tmp_path / "run" / "proxy" / "recipe.yaml").write_text("model: [\n")
    codes, output = run_warm("command_worker.py", tmp_path, *command)
    assert codes == [2, 2]
    assert output.count("recipe.yaml cannot be read") == 2
