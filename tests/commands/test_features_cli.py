"""What recipes can say beside a mixture - probes, aggregated gradients, memories, heads - as a user runs it."""

import json
from pathlib import Path
from typing import Any

import datasets
import pytest
import yaml

from mixer import Ledger, MultiTaskModel
from mixer.tools.cli.entry import main
from tests.commands.recipes import FACTORY, NO_EVALUATION, QUIET, ROOT, SAVING, SIZES, Runs, write_recipe


def gradients_in(folder: Path) -> Any:
    return Ledger(folder / "run" / "ledger").gradients()


def test_one_word_makes_a_mixture_go_by_gradients_and_a_recipe_says_how_they_are_measured(tmp_path: Path) -> None:
    probe = {"mode": "sketch", "interval_steps": 3, "layers": ["*"]}
    main(["train", write_recipe(tmp_path, NO_EVALUATION, probe=probe), "--probe.interval_steps", "2"])
    assert gradients_in(tmp_path)["step"].unique().tolist() == [2, 4]
    assert (gradients_in(tmp_path)["gram_error"].map(max) > 0).all()
    saved = yaml.safe_load((tmp_path / "run" / "recipe.yaml").read_text())["probe"]
    assert (saved["interval_steps"], saved["layers"], saved["mode"]) == (2, ["*"], "sketch")
    recipe = write_recipe(tmp_path, NO_EVALUATION, mixing="Uniform")
    main(["train", recipe, "--overwrite", "--mixing", "PiKE", "--mixing.interval_steps", "2"])
    assert gradients_in(tmp_path)["step"].unique().tolist() == [2, 4]
    weights = Ledger(tmp_path / "run" / "ledger").to_pandas()["weight"]
    assert (weights[:4] == 0.5).all()
    assert (weights[4:] != 0.5).all()


def norms_in(folder: Path) -> list[float]:
    state = json.loads((folder / "checkpoint-4" / "trainer_state.json").read_text())
    return [entry["grad_norm"] for entry in state["log_history"] if "grad_norm" in entry]


def test_aggregation_is_a_name_or_a_class_and_the_written_recipe_trains_the_same(tmp_path: Path) -> None:
    pytest.importorskip("torchjd")
    recipe = write_recipe(tmp_path, NO_EVALUATION, conflict="mgda")
    main(["train", recipe, *SAVING, "4"])
    assert len(found := norms_in(tmp_path / "run")) == 2
    main(["train", str(tmp_path / "run" / "recipe.yaml"), "--training.output_dir", str(tmp_path / "again")])
    assert norms_in(tmp_path / "again") == found
    given = {"class_path": "GradientAggregation", "init_args": {"aggregator": "mgda"}}
    own = {
        "class_path": "GradientAggregation",
        "init_args": {"aggregator": {"class_path": "torchjd.aggregation.PCGrad"}},
    }
    for value, is_same in ((json.dumps(given), True), ("pcgrad", False), ("null", False), (json.dumps(own), False)):
        main(["train", recipe, "--overwrite", *SAVING, "4", "--conflict", value])
        assert (norms_in(tmp_path / "run") == found) is is_same


def replay(folder: Path, *arguments: str) -> list[str]:
    """The command of the recipe of replay, made small."""
    options: dict[str, Any] = {f"model.config.{name}": value for name, value in SIZES.items()}
    for name in ("old", "new"):
        few = {"num_samples": 60, "num_validation_samples": 4, "block_length": 16}
        options |= {f"streams.{name}.factory": FACTORY, f"streams.{name}.arguments": json.dumps(few)}
    options |= {"streams.memory.arguments": '{"capacity": 30}', "batch_size": 10, "model.config.num_key_value_heads": 2}
    options |= {"model.config.max_position_embeddings": 32, "training.max_steps": 8, "training.logging_steps": 2}
    options |= {"training.eval_steps": 4, "training.warmup_steps": 1, "training.output_dir": folder}
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    return ["train", str(ROOT / "recipes" / "replay.yaml"), *words, *arguments]


def counts_in(folder: Path) -> Any:
    return Ledger(folder / "ledger").to_pandas().pivot(index="step", columns="stream", values="count")


def test_the_recipe_replays_the_old_task_and_is_resumed_to_the_bit(tmp_path, refused) -> None:
    command = replay(tmp_path / "run", *SAVING, "3", "--mixing.init_args.ratio", "0.3")
    main(command)
    whole, weights = counts_in(tmp_path / "run"), (tmp_path / "run" / "model.safetensors").read_bytes()
    assert whole["old"].iloc[4:].sum() == whole["new"].iloc[:4].sum() == 0
    assert (whole.sum(axis=1) == 10).all()
    assert whole["memory"].tolist() == [0] * 4 + [3] * 4
    main([*command, "--resume", str(tmp_path / "run" / "checkpoint-3")])
    assert counts_in(tmp_path / "run").equals(whole)
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == weights
    misspelt = ["--streams.memory.arguments", '{"capacity": 9, "selection": "Reservior"}']
    assert "Did you mean 'Reservoir'" in refused(*replay(tmp_path, *misspelt))
    assert "ReplayRatio(0.1" in refused(*replay(tmp_path, "--mixing", "Proportional"))


def labelled(num_classes: int) -> dict[str, datasets.Dataset]:
    rows = [{"input_ids": [number % 7, number % 5, 3], "labels": number % num_classes} for number in range(40)]
    return {"train": datasets.Dataset.from_list(rows), "validation": datasets.Dataset.from_list(rows[:8])}


CLASSES = {"topic": 5, "sign": 2}
HEADS = {name: {"num_labels": size} for name, size in CLASSES.items()}


def headed(folder: Path, **model: Any) -> str:
    factory = f"{__name__}.labelled"
    streams = {name: {"factory": factory, "arguments": {"num_classes": size}} for name, size in CLASSES.items()}
    streams["sign"] |= {"loss_weight": 0.5}
    streams["again"] = {"factory": factory, "arguments": {"num_classes": 2}, "head": "sign"}
    config = {"model_type": "bert", "vocab_size": 10, "max_position_embeddings": 8, **SIZES}
    made = {"task": "encoder", "config": config, "heads": HEADS, **model}
    training = {**QUIET, "max_steps": 2, "eval_strategy": "epoch"}
    return write_recipe(folder, training, model=made, streams=streams, mixing=None, batch_size=12)


def test_two_heads_and_three_streams(tmp_path: Path, refused: Runs) -> None:
    main(["train", headed(tmp_path)])
    ledger = Ledger(tmp_path / "run" / "ledger")
    assert ledger.to_pandas().groupby("stream")["count"].sum().to_dict() == {"topic": 8, "sign": 8, "again": 8}
    assert set(ledger.evaluations()["stream"]) == {"topic", "sign", "again"}
    assert set(MultiTaskModel.from_pretrained(tmp_path / "run").heads) == {"topic", "sign"}
    wrong: dict[str, dict[str, Any]] = {
        "set it to encoder": {"task": "causal-lm"},
        "at least 2": {"heads": {**HEADS, "sign": {"num_labels": 1, "kind": "classification"}}},
        "'topic': it has the label 4": {"heads": {**HEADS, "topic": {"num_labels": 4}}},
    }
    for message, changes in wrong.items():
        assert message in refused("train", headed(tmp_path, **changes), "--overwrite")
