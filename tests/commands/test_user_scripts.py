"""Scripts that people have, before and after one line was changed: the same results; and then with several streams."""

import difflib
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

from mixer import Ledger
from tests.seq2seq import WORDS, model, tokenizer

SCRIPTS = Path(__file__).with_name("scripts")
CLASSES = {
    "classify.py": {"from transformers import Trainer": "from mixer import MixingTrainer as Trainer"},
    "translate.py": {
        "from transformers import Seq2SeqTrainer": "from mixer import MixingSeq2SeqTrainer as Seq2SeqTrainer"
    },
    "sft.py": {"from trl import SFTTrainer": "from mixer import MixingSFTTrainer as SFTTrainer"},
}
BY_SOURCE = "{name: data[%r].filter(lambda row, name=name: row['source'] == name) for name in ('math', 'code')}"
SETS = {
    "classify.py": {
        '        train_dataset=data["train"] if training_args.do_train else None,': (
            f"        train_dataset={BY_SOURCE % 'train'},"
        ),
        '        eval_dataset=data["validation"] if training_args.do_eval else None,': (
            f"        eval_dataset={BY_SOURCE % 'validation'},"
        ),
    },
    "translate.py": {
        '        train_dataset=data["train"],': f"        train_dataset={BY_SOURCE % 'train'},",
        '        eval_dataset=data["validation"],': f"        eval_dataset={BY_SOURCE % 'validation'},",
    },
    "sft.py": {
        "    train_dataset=concatenate_datasets([math, code]),": '    train_dataset={"math": math, "code": code},',
    },
}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with models, tokenizers and data; what `datasets` keeps goes there too."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    draw = random.Random(0)
    for name, size in {"train": 30, "validation": 10, "test": 6}.items():
        with (tmp_path / f"{name}.json").open("w") as file:
            for number in range(size):
                words = draw.choices(WORDS, k=draw.randint(2, 9))
                row = {"text": " ".join(words), "label": number % 2, "target": " ".join(words[::-1])}
                file.write(json.dumps({**row, "source": "math" if number % 3 else "code"}) + "\n")
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config = BertConfig(vocab_size=len(tokenizer()), pad_token_id=0, **sizes, **dropout)
    for name, own in {"classify": config, "translate": model("t5").config}.items():
        own.save_pretrained(tmp_path / name)
        tokenizer().save_pretrained(tmp_path / name)
    return tmp_path


def _changed(script: str, lines: Mapping[str, str]) -> str:
    """Changes whole lines of a script, each of which is there once; gives the new text."""
    before = (SCRIPTS / script).read_text().splitlines()
    after = [lines.get(line, line) for line in before]
    difference = [line for line in difflib.ndiff(before, after) if line[:1] in "+-"]
    assert sorted(difference) == sorted(
        f"{sign} {line}" for pair in lines.items() for sign, line in zip("-+", pair, strict=True)
    )
    return "\n".join(after) + "\n"


def _run(text: str, name: str, options: list[str], world: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Runs a script, given as a text; gives its output folder."""
    script, output = world / f"{name}.py", world / name
    script.write_text(text)
    monkeypatch.setattr(sys, "argv", [str(script), "--output_dir", str(output), *options])
    runpy.run_path(str(script), run_name="__main__")
    return output


OWN_OPTIONS: dict[str, dict[str, Any]] = {
    "classify.py": {"metric_for_best_model": "accuracy", "max_seq_length": 8}
    | dict.fromkeys(("do_train", "do_eval", "do_predict"), True),
    "translate.py": {"predict_with_generate": True, "generation_max_length": 12, "label_smoothing_factor": 0.1},
}


def _options(script: str, world: Path, **more: Any) -> list[str]:
    files = [("train_file", "train"), ("validation_file", "validation")]
    files += [("test_file", "test")] if script == "classify.py" else []
    options = {
        "model_name_or_path": world / script.removesuffix(".py"),
        **{option: world / f"{name}.json" for option, name in files},
        "per_device_train_batch_size": 4,
        "num_train_epochs": 2,
        "learning_rate": 1e-2,
        "logging_steps": 1,
        "eval_strategy": "epoch",
        "save_strategy": "epoch",
        "load_best_model_at_end": True,
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        "train_sampling_strategy": "sequential",  # both shuffle, but each in an order of its own
        **OWN_OPTIONS[script],
        **more,
    }
    return [word for name, value in options.items() for word in (f"--{name}", str(value))]


def _figures(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if not key.endswith(("_runtime", "_per_second"))}


def _logs(folder: Path) -> list[dict[str, Any]]:
    logs: list[dict[str, Any]] = json.loads((folder / "trainer_state.json").read_text())["log_history"]
    return logs


@pytest.mark.parametrize("script", ["classify.py", pytest.param("translate.py", marks=pytest.mark.full)])
def test_one_line_changes_no_result(script: str, world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = _options(script, world)
    before = _run(_changed(script, {}), "before", options, world, monkeypatch)
    after = _run(_changed(script, CLASSES[script]), "after", options, world, monkeypatch)
    theirs, mine = (_figures(json.loads((folder / "all_results.json").read_text())) for folder in (before, after))
    assert mine == pytest.approx(theirs, abs=1e-6)
    assert {"eval_loss", "eval_accuracy" if script == "classify.py" else "eval_found"} <= mine.keys()
    for entry, original in zip(_logs(after), _logs(before), strict=True):
        original = _figures(original)
        assert {key: entry[key] for key in original} == pytest.approx(original, abs=1e-6)
    left_out = {"ledger"}
    assert {path.name for path in after.iterdir()} == {path.name for path in before.iterdir()} | left_out
    if script == "classify.py":
        names = [folder / "predict_results.txt" for folder in (before, after)]
        assert names[0].read_text() == names[1].read_text()
        AutoModelForSequenceClassification.from_pretrained(after)


@pytest.mark.full
@pytest.mark.parametrize("script", ["classify.py", "translate.py"])
def test_data_sets_by_name_have_figures_of_their_own(script: str, world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = _changed(script, {**CLASSES[script], **SETS[script]})
    output = _run(text, "mixed", _options(script, world, metric_for_best_model="worst_loss"), world, monkeypatch)
    results = json.loads((output / "all_results.json").read_text())
    metric = "accuracy" if script == "classify.py" else "found"
    for key in ("loss", metric):
        assert {f"eval_math_{key}", f"eval_code_{key}"} <= results.keys()
    assert results["eval_worst_loss"] == max(results["eval_math_loss"], results["eval_code_loss"])
    logged = next(entry for entry in _logs(output) if "loss" in entry)
    assert {"loss/math", "loss/code", "weight/math", "coverage/code"} <= logged.keys()
    rows = Ledger(output / "ledger").to_pandas()
    assert rows.groupby("stream")["count"].sum().to_dict() == {"math": 40, "code": 20}


@pytest.mark.full
def test_a_script_of_trl_learns_a_mixture_as_the_concatenation(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {"before": _changed("sft.py", {}), "after": _changed("sft.py", {**CLASSES["sft.py"], **SETS["sft.py"]})}
    folders = [_run(text, name, [], world, monkeypatch) for name, text in texts.items()]
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
        assert (folder / "README.md").exists()  # TRL's card of the model
