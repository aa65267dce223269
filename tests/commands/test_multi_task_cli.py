"""A model with one head per task by a recipe, from the command line."""

from pathlib import Path
from typing import Any

import datasets
import pytest
import yaml

from mixer import Ledger, MultiTaskModel
from mixer.cli.entry import main

HERE = "tests.commands.test_multi_task_cli.labelled"
SIZES = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}


def labelled(num_classes: int) -> dict[str, datasets.Dataset]:
    """Makes rows whose label is a function of their tokens."""
    rows = [{"input_ids": [number % 7, number % 5, 3], "labels": number % num_classes} for number in range(40)]
    return {"train": datasets.Dataset.from_list(rows), "validation": datasets.Dataset.from_list(rows[:8])}


def _write(folder: Path, **model: Any) -> Path:
    config = {"model_type": "bert", "vocab_size": 10, "max_position_embeddings": 8, **SIZES}
    streams = {name: {"factory": HERE, "arguments": {"num_classes": size}} for name, size in _CLASSES.items()}
    streams["sign"] |= {"loss_weight": 0.5}
    streams["again"] = {"factory": HERE, "arguments": {"num_classes": 2}, "head": "sign"}
    training = {"output_dir": str(folder / "run"), "max_steps": 2, "use_cpu": True, "report_to": "none"}
    recipe = {
        "model": {"task": "encoder", "config": config, "heads": _HEADS, **model},
        "streams": streams,
        "batch_size": 12,
        "training": {**training, "eval_strategy": "epoch", "save_strategy": "no", "disable_tqdm": True},
    }
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe))
    return path


_CLASSES = {"topic": 5, "sign": 2}
_HEADS = {name: {"num_labels": size} for name, size in _CLASSES.items()}


def test_two_heads_and_three_streams(tmp_path: Path) -> None:
    main(["train", str(_write(tmp_path))])
    ledger = Ledger(tmp_path / "run" / "ledger")
    assert ledger.to_pandas().groupby("stream")["count"].sum().to_dict() == {"topic": 8, "sign": 8, "again": 8}
    assert set(ledger.evaluations()["stream"]) == {"topic", "sign", "again"}
    assert set(MultiTaskModel.from_pretrained(tmp_path / "run").heads) == {"topic", "sign"}


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"task": "causal-lm"}, "set task to encoder"),
        ({"heads": {"topic": {"num_labels": 5}}}, "none for ['sign']"),
        ({"heads": {**_HEADS, "sign": {"num_labels": 1, "kind": "classification"}}}, "at least 2"),
        ({"heads": {**_HEADS, "topic": {"num_labels": 4}}}, "'topic': it has the label 4"),
    ],
)
def test_wrong_models_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], model: dict[str, Any], message: str
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["train", str(_write(tmp_path, **model))])
    assert end.value.code == 2
    assert message in capsys.readouterr().err
