"""Scripts that people have, before and after one line was changed: the same results; and then with several streams."""

import json
import random
import runpy
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import datasets
import pytest
from transformers import AutoModelForSequenceClassification, BertConfig

from tests.commands.recipes import SIZES
from tests.seq2seq import WORDS, tokenizer

SCRIPTS = Path(__file__).with_name("scripts")
CLASS = {"from transformers import Trainer": "from mixer import MixingTrainer as Trainer"}
OF_TRL = {
    "from trl import SFTTrainer": "from mixer import MixingSFTTrainer as SFTTrainer",
    "train_dataset=concatenate_datasets([math, code])": 'train_dataset={"math": math, "code": code}',
}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model, a tokenizer and data; what `datasets` keeps goes there too."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    draw = random.Random(0)
    for name, size in {"train": 30, "validation": 10, "test": 6}.items():
        texts = [" ".join(draw.choices(WORDS, k=draw.randint(2, 9))) for _ in range(size)]
        rows = [{"text": text, "label": n % 2, "source": "math" if n % 3 else "code"} for n, text in enumerate(texts)]
        (tmp_path / f"{name}.json").write_text("\n".join(map(json.dumps, rows)))
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config = BertConfig(vocab_size=len(tokenizer()), pad_token_id=0, **SIZES, **dropout)
    for part in (config, tokenizer()):
        part.save_pretrained(tmp_path / "model")
    return tmp_path


def _run(
    script: str, changes: Mapping[str, str], name: str, options: list[str], world: Path, patch: pytest.MonkeyPatch
) -> Path:
    """Runs a script in which parts that are there once are changed; gives its output folder."""
    text = (SCRIPTS / script).read_text()
    for before, after in changes.items():
        assert text.count(before) == 1
        text = text.replace(before, after)
    path, output = world / f"{name}.py", world / name
    path.write_text(text)
    patch.setattr(sys, "argv", [str(path), "--output_dir", str(output), *options])
    runpy.run_path(str(path), run_name="__main__")
    return output


def _options(world: Path, **more: Any) -> list[str]:
    options = {
        "model_name_or_path": world / "model",
        **{f"{name}_file": world / f"{name}.json" for name in ("train", "validation", "test")},
        **dict.fromkeys(("do_train", "do_eval", "do_predict", "load_best_model_at_end"), True),
        **dict.fromkeys(("eval_strategy", "save_strategy"), "epoch"),
        "per_device_train_batch_size": 4,
        "num_train_epochs": 2,
        "learning_rate": 1e-2,
        "logging_steps": 1,
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        "max_seq_length": 8,
        "metric_for_best_model": "accuracy",
        "train_sampling_strategy": "sequential",  # both shuffle, but each in an order of its own
        **more,
    }
    return [word for name, value in options.items() for word in (f"--{name}", str(value))]


def _figures(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if not key.endswith(("_runtime", "_per_second"))}


def _logs(folder: Path) -> list[dict[str, Any]]:
    logs: list[dict[str, Any]] = json.loads((folder / "trainer_state.json").read_text())["log_history"]
    return logs


def test_one_line_changes_no_result(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, after = (
        _run("classify.py", changes, name, _options(world), world, monkeypatch)
        for name, changes in {"before": {}, "after": CLASS}.items()
    )
    theirs, mine = (_figures(json.loads((folder / "all_results.json").read_text())) for folder in (before, after))
    assert mine == pytest.approx(theirs, abs=1e-6)
    assert {"eval_loss", "eval_accuracy"} <= mine.keys()
    for entry, original in zip(_logs(after), map(_figures, _logs(before)), strict=True):
        assert {key: entry[key] for key in original} == pytest.approx(original, abs=1e-6)
    assert {path.name for path in after.iterdir()} == {path.name for path in before.iterdir()} | {"ledger"}
    assert len({(folder / "predict_results.txt").read_text() for folder in (before, after)}) == 1
    AutoModelForSequenceClassification.from_pretrained(after)


@pytest.mark.full
def test_a_script_of_trl_learns_a_mixture_as_the_concatenation(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = {"before": {}, "after": OF_TRL}
    folders = [_run("sft.py", changes[name], name, [], world, monkeypatch) for name in changes]
    before, after = ([entry for entry in _logs(folder) if "loss" in entry] for folder in folders)
    # An epoch of the mixture is that of the concatenation, step by step, with the same learning rates.
    for key in ("learning_rate", "epoch"):
        assert [entry[key] for entry in after] == [entry[key] for entry in before]
    assert len(after) == 10
    assert [sum(entry[f"count/{name}"] for entry in after) for name in ("math", "code")] == [24, 16]
    # Whatever the order, an epoch over the same samples learns about the same.
    for trained in (before, after):
        assert trained[-1]["loss"] < trained[0]["loss"]
    for key in ("eval_math_loss", "eval_code_loss"):
        theirs, mine = (next(entry[key] for entry in _logs(folder) if key in entry) for folder in folders)
        assert mine == pytest.approx(theirs, rel=0.05)
    for folder in folders:
        assert (folder / "final" / "model.safetensors").exists()
