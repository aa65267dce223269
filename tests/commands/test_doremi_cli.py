"""The search for weights by a reference and a proxy, as a user runs it; called again, it goes on where it was."""

import json
import logging
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from mixer import DoReMi, Floor, Ledger, MixingTrainer, Mixture, Observation
from mixer.analysis.doremi.runs import averaged_weights
from mixer.cli.entry import main
from mixer.measurements import ExcessLoss
from tests.commands.recipes import LLAMA, NO_EVALUATION, RECIPE, SAVING, Runs, on_a_rank, write_recipe
from tests.ranks.warm import run_warm

MODEL = "model.safetensors"
POLICY = {"class_path": "mixer.DoReMi", "init_args": {"step_size": 3.0, "acts_on": "sampling"}}


def write(folder: Path, mixing: Any = POLICY) -> str:
    return write_recipe(folder, {**NO_EVALUATION, "max_steps": 3}, mixing=mixing)


def weights_in(folder: Path) -> Any:
    rows = Ledger(folder / "ledger").to_pandas()
    return rows.pivot_table(index="step", columns="stream", values="weight")[["python", "cpp"]].to_numpy()


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    names: list[str] = []
    train = MixingTrainer.train

    def noted(self: MixingTrainer, *args: Any, **kwargs: Any) -> Any:
        names.append(Path(str(self.args.output_dir)).name)
        return train(self, *args, **kwargs)

    monkeypatch.setattr(MixingTrainer, "train", noted)
    return names


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("done")
    main(["doremi", write(folder), *SAVING, "1"])
    return folder


@pytest.fixture
def finished(done: Path, tmp_path: Path) -> Path:
    shutil.copytree(done / "run", tmp_path / "run")
    write(tmp_path)
    return tmp_path


def test_the_weights_are_the_averages_of_the_proxy_and_rule_the_main_run(
    finished: Path, trained: list[str], printed: Runs
) -> None:
    run, recipe = finished / "run", str(finished / "recipe.yaml")
    shown = printed("doremi", recipe, "--train", "--training.logging_steps", "1")
    assert trained == ["main"]  # the steps at their end are not trained again, with other logs neither
    weights = json.loads((run / "weights.json").read_text())
    # The reference's shares are by size; the ledger has the proxy's weights in the steps that they ruled: all but the
    # last ones, which came after the last step, and the first, which were decided before it.
    np.testing.assert_allclose(weights_in(run / "reference"), [[0.6, 0.4]] * 3)
    proxy = weights_in(run / "proxy")
    np.testing.assert_allclose(proxy[0], 0.5)
    assert abs(proxy[1:] - 0.5).min() > 1e-6
    last = 3 * np.array([weights["python"], weights["cpp"]]) - proxy[1:].sum(axis=0)
    assert last.sum() == pytest.approx(1.0, abs=1e-9)
    assert last.min() > 0
    np.testing.assert_allclose(weights_in(run / "main"), [[weights["python"], weights["cpp"]]] * 3)
    assert f"{weights['python']:.4f}" in shown
    document = json.loads(printed("doremi", recipe, "--train", "--json"))
    assert document["mixing"] == document["weights"] == weights
    assert (document["unit"], document["path"]) == ("samples", str(run / "weights.json"))
    # Weights can be given to a run; the proxy is what its recipe gives.
    of_proxy = [str(run / "proxy" / "recipe.yaml")]
    for name, given in {"main": [recipe, "--mixing", json.dumps(weights)], "proxy": of_proxy}.items():
        main(["train", *given, "--training.output_dir", str(finished / "own")])
        assert (finished / "own" / MODEL).read_bytes() == (run / name / MODEL).read_bytes()


def test_a_killed_proxy_goes_on_with_other_logs_and_what_cannot_be_read_is_told_with_a_way_out(
    finished: Path, trained: list[str], caplog: pytest.LogCaptureFixture, refused: Runs
) -> None:
    run, recipe = finished / "run", str(finished / "recipe.yaml")
    found, proxy = (run / "weights.json").read_bytes(), Ledger(run / "proxy" / "ledger").to_pandas()
    text = (run / "proxy" / "recipe.yaml").read_text()
    (run / "proxy" / "recipe.yaml").write_text(text[: len(text) // 2].rstrip("\n"))
    message = refused("doremi", recipe)
    assert f"{run / 'proxy' / 'recipe.yaml'} cannot be read (it " in message
    assert "delete that file to continue" in message
    (run / "proxy" / "recipe.yaml").unlink()
    (run / "proxy" / "finished.json").write_text('{"weights')
    assert f"{run / 'proxy' / 'finished.json'} cannot be read" in refused("doremi", recipe)
    # As if the proxy had been killed while it wrote its second checkpoint.
    for file in ("weights.json", "proxy/finished.json", "proxy/checkpoint-2/complete.json"):
        (run / file).unlink()
    (run / "proxy" / "checkpoint-3" / "complete.json").unlink()
    with caplog.at_level(logging.WARNING, "mixer"):
        main(["doremi", recipe, *SAVING, "1", "--training.logging_steps", "1"])
    assert trained == ["proxy"]
    assert "start over" not in caplog.text
    assert (run / "weights.json").read_bytes() == found
    assert Ledger(run / "proxy" / "ledger").to_pandas().equals(proxy)


@pytest.mark.full
def test_a_step_that_left_nothing_starts_over_and_says_so(
    finished: Path, trained: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    proxy = finished / "run" / "proxy"
    shutil.rmtree(proxy)
    proxy.mkdir()
    (proxy / "recipe.yaml").write_text("model:\n  config:\n    mod")
    with caplog.at_level(logging.WARNING, "mixer"):  # of another recipe it could hold as little
        main(["doremi", str(finished / "recipe.yaml"), "--mixing.init_args.step_size", "2"])
    assert trained == ["proxy"]
    assert f"{proxy} was started before, but has no complete checkpoint: it starts over." in caplog.text
    reason = "training.save_strategy is 'no'"
    assert f"without checkpoints to resume from ({reason}): if interrupted, it would start over." in caplog.text
    assert yaml.safe_load((proxy / "recipe.yaml").read_text())["mixing"]["init_args"]["step_size"] == 2


@pytest.mark.full
def test_another_recipe_is_refused_in_the_same_folder(
    finished: Path, refused: Runs, trained: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = finished / "recipe.yaml"
    message = refused("doremi", recipe, "--training.max_steps", "5", "--batch_size", "10")
    assert "run/reference was trained with another recipe, which differs in batch_size, training.max_steps" in message
    assert "another training.output_dir" in message
    message = refused("doremi", recipe, "--mixing.init_args.step_size", "2")  # the policy is the proxy's alone
    assert "run/proxy was trained with another recipe, which differs in mixing.init_args.step_size." in message
    monkeypatch.chdir(finished)
    same = json.dumps({**POLICY, "class_path": "DoReMi"})  # the same, told otherwise
    main(["doremi", "recipe.yaml", "--training.output_dir", "./run/../run/", "--mixing", same])
    assert trained == []


@pytest.mark.full
def test_a_smaller_proxy_another_mixture_of_the_reference_and_shares_of_tokens(tmp_path: Path) -> None:
    recipe, run = write(tmp_path), tmp_path / "run"
    options = ["--proxy_model.config", json.dumps({**RECIPE["model"]["config"], "hidden_size": 8})]
    options += ["--reference_mixing", '{"python": 1, "cpp": 3}', "--mixing.init_args.unit", "tokens"]
    main(["doremi", recipe, "--train", *options])
    configs = [json.loads((run / name / "config.json").read_text()) for name in ("reference", "proxy", "main")]
    assert [config["hidden_size"] for config in configs] == [8, 8, 16]
    np.testing.assert_allclose(weights_in(run / "reference"), [[0.25, 0.75]] * 3)
    # The weights are shares of tokens, and written as such: a run that they are given to is the main one.
    mixing = (run / "weights.json").read_text()
    assert json.loads(mixing)["init_args"]["unit"] == "tokens"
    main(["train", recipe, "--mixing", mixing, "--training.output_dir", str(tmp_path / "own")])
    assert (run / "main" / MODEL).read_bytes() == (tmp_path / "own" / MODEL).read_bytes()


@pytest.mark.full
def test_without_a_policy_it_is_the_papers_and_a_proxy_has_the_head_of_the_recipes_model(tmp_path: Path) -> None:
    bert, run = {**LLAMA, "model_type": "bert"}, tmp_path / "run"
    options = ["--model.task", "masked-lm", "--model.config", json.dumps(bert)]
    main(["doremi", write(tmp_path, None), *options, "--proxy_model.config", json.dumps({**bert, "hidden_size": 8})])
    for name in ("reference", "proxy"):
        config = json.loads((run / name / "config.json").read_text())
        assert (config["architectures"], config["hidden_size"]) == (["BertForMaskedLM"], 8)
    assert yaml.safe_load((run / "proxy" / "recipe.yaml").read_text())["mixing"] == "DoReMi"
    # It weighs the proxy's losses; its samples are drawn by the streams' own weights all the time.
    drawn = weights_in(run / "proxy")
    np.testing.assert_allclose(drawn, drawn[:1].repeat(len(drawn), axis=0))
    assert json.loads((run / "weights.json").read_text())["python"] != pytest.approx(drawn[0, 0], abs=1e-6)


def test_weights_are_those_of_the_policy_that_others_are_wrapped_around() -> None:
    policy = Floor(DoReMi(), 0.3)
    weights = policy.start(Mixture(("a", "b"), np.array([5, 6]), np.array([0.5, 0.5]))).weights
    ones, excess = np.ones(2, dtype=np.int64), np.array([np.log(3.0), 0.0])
    policy.update(Observation(1, 0.5, weights, ones, ones, ones, measured={ExcessLoss: excess}))
    expected = {"a": 0.999 * 0.75 + 0.0005, "b": 0.999 * 0.25 + 0.0005}
    assert averaged_weights(policy, ("a", "b")) == pytest.approx(expected)
    with pytest.raises(ValueError, match=r"DoReMi.averaged_weights: .* unknown: \['b'\]"):
        averaged_weights(policy, ("a", "c"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--mixing", "LossChange"], "mixing: LossChange does not average its weights over the run, as the proxy's"),
        (["--mixing.init_args.reference_losses", '{"python": 1, "cpp": 2}'], "with these arguments needs no reference"),
        (["--reference_model", "x"], "doremi trains the reference itself"),
        (["--training.resume_from_checkpoint", "x"], "mixer doremi resumes by itself"),
        (["--proxy_model.name_or_path", "/nowhere/at/all"], "mixer doremi: proxy_model: "),
    ],
)
def test_wrong_input_is_refused_before_anything_is_trained(
    tmp_path: Path, arguments: list[str], message: str, refused: Runs, trained: list[str]
) -> None:
    assert message in refused("doremi", write(tmp_path), *arguments)
    assert trained == []


@pytest.mark.full
def test_two_ranks(tmp_path: Path) -> None:
    run, command = tmp_path / "run", ["doremi", write(tmp_path), "--train"]
    for times in range(2):  # once to train, once to find all of it at its end
        codes, output = run_warm(tmp_path, partial(on_a_rank, command))
        assert codes == [0, 0], (times, output[-4000:])
        assert output.count("weights.json") == 1
    main(["doremi", command[1], "--training.output_dir", str(tmp_path / "alone")])
    both, alone = (json.loads((folder / "weights.json").read_text()) for folder in (run, tmp_path / "alone"))
    assert both == pytest.approx(alone, abs=1e-5)
