"""`mixer inspect`, as a user runs it: files with known faults, in tables, as JSON and on a terminal."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification

from mixer.tools.cli.entry import main
from tests.commands.recipes import LLAMA, NO_EVALUATION, ROOT, Runs, write_recipe

SUMS = {"class_path": "Prompt", "init_args": {"prompt": "{question} = ", "completion": "{answer}", "max_length": 16}}


def write_files(folder: Path) -> None:
    """20 sums, of which 5 are cut off at 16 bytes and one is written twice; 12 texts, 3 of them in both streams."""
    sums = [{"question": f"{number:02d}+{number:02d}", "answer": f"{2 * number:04d}"} for number in range(14)]
    long = [{"question": "what is " + "one and " * 3 + str(number), "answer": "?"} for number in range(5)]
    texts = [{"text": f"a text of {number}"} for number in range(12)]
    others = [*({"text": f"more of {number}"} for number in range(9)), *texts[:3]]
    both = [*sums, sums[0], *long]
    for name, rows in {"sums": both, "sums_again": both, "one": texts, "two": others}.items():
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))


def write(folder: Path) -> Path:
    text = {"class_path": "Text", "init_args": {"max_length": 100}}
    streams: dict[str, Any] = {
        name: {"data": {"path": str(folder / f"{name}.jsonl")}, "format": SUMS if name == "sums" else text}
        for name in ("sums", "one", "two")
    }
    streams["sums"]["validation"] = 2
    model, tokenizer = {"config": LLAMA}, {"factory": "tests.mixer.tools.recipe.small_tokenizers.byte_level"}
    rules = {"streams": streams, "mixing": "Uniform", "batch_size": 12}
    return Path(write_recipe(folder, {"per_device_train_batch_size": 6}, model=model, tokenizer=tokenizer, **rules))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inspect")
    write_files(folder)
    return write(folder)


@pytest.fixture(autouse=True)
def _cache(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", written.parent / "cache")


@pytest.fixture
def as_json(printed: Runs) -> Callable[..., Any]:
    return lambda *options: json.loads(printed("inspect", *options, "--json"))


def test_one_document_says_everything(written: Path, as_json: Callable[..., Any]) -> None:
    document = as_json(written)
    assert not (written.parent / "run").exists()
    sums, one, two = document["streams"]
    assert sums["num_rows"] == 18
    assert sums["training"]["size"] + sums["validation"]["size"] == 15  # of the others nothing is learned
    assert sums["truncation"]["max_length"] == 16
    assert document["samples_read"] == 15 + one["training"]["size"] + two["training"]["size"]
    parts, shared = ("stream", "other", "num_samples", "num_read"), document["overlaps"]
    shared = [tuple(row[part] for part in parts) for row in shared if row["kind"] == "rows"]
    assert sorted(shared) == [("one", "two", 3, 12), ("two", "one", 3, 12)]
    rows = [stream for micro in document["batch"]["micro_batches"] for stream in micro["streams"]]
    assert rows == ["sums"] * 4 + ["one"] * 4 + ["two"] * 4
    assert [micro["shapes"]["input_ids"][0] for micro in document["batch"]["micro_batches"]] == [6, 6]
    assert {"shared_samples", "no_evaluation"} <= {warning["kind"] for warning in document["warnings"]}


def test_the_objective_is_shown_with_the_rows_that_judge(written, as_json, printed) -> None:
    options = ("--streams.sums.validation", "8", "--objective", "sums", "--mixing", "MarginalValue")
    document = as_json(written, *options)
    size = document["streams"][0]["validation"]["size"]
    test_rows = size - round(size / 4)
    assert document["objective"] == {"in_words": "loss of sums", "test_rows": {"sums": test_rows}}
    assert f"Loss of sums; evaluated on {test_rows} rows of sums." in printed("inspect", written, *options)


def test_what_is_cut_off_is_counted_by_the_rows(written: Path, as_json: Callable[..., Any]) -> None:
    unevaluated = ["--training.eval_strategy", "no", "--training.eval_on_start", "false"]
    (sums, *_) = as_json(written, "--streams.sums.validation", "null", *unevaluated)["streams"]
    # 15 sums of 5 + 3 + 4 + 1 bytes; 5 questions of 33 + 3 bytes, which are cut off before anything is learned.
    assert sums["num_rows"] == 20
    assert sums["training"]["size"] == 15
    assert sums["training"]["lengths"]["quantiles"]["0.5"] == 13
    shares = {"share_cut": 0.25, "share_lost": pytest.approx(5 * (38 - 16) / (15 * 13 + 5 * 38))}
    answers = {"num_unlearned": 5, "num_learned_partly": 0}
    assert sums["truncation"] == {"max_length": 16, "num_rows": 20, "num_cut": 5, **shares, **answers}


def test_validation_rows_that_are_trained_on_end_a_strict_look(written, capsys) -> None:
    leak = {"path": str(written.parent / "sums*.jsonl")}
    options = ["--streams.sums.data", json.dumps(leak), "--streams.sums.validation", "6"]
    with pytest.raises(SystemExit) as ended:
        main(["inspect", str(written), *options, "--strict"])
    assert ended.value.code == 3
    printed = " ".join(capsys.readouterr().out.split())
    assert "'sums' for validation are in its own training data too" in printed


def test_a_strict_look_at_good_data_ends_well(tmp_path: Path, printed: Runs) -> None:
    model = {"config": {**LLAMA, "vocab_size": 64}}
    streams = {"a": {"factory": "tests.mixer.tools.analysis.inspect.sources.plain"}}
    recipe = write_recipe(tmp_path, NO_EVALUATION, model=model, streams=streams, mixing=None, batch_size=None)
    assert "0 warnings" in printed("inspect", recipe, "--strict")


@pytest.mark.full
def test_a_recipe_with_a_memory(as_json: Callable[..., Any]) -> None:
    few = json.dumps({"num_samples": 40, "num_validation_samples": 8})
    options = ["--streams.old.arguments", few, "--streams.new.arguments", few]
    document = as_json(ROOT / "recipes" / "replay.yaml", *options)
    old, new, memory = document["streams"]
    assert [one["is_memory"] for one in (old, new, memory)] == [False, False, True]
    assert (memory["training"]["num_read"], memory["examples"]) == (0, {})
    assert document["batch"]["counts"] == {"old": 32, "new": 0, "memory": 0}  # the new task enters later
    assert old["training"]["lengths"]["mean"] == 128
    assert old["training"]["share_learned"] == pytest.approx(127 / 128)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--num_samples", "0"], "mixer inspect: --num_samples must be at least 1, got 0."),
        (["--streams.one.data.path", "none.jsonl"], "there is no file or folder"),
        (["--model.config", '{"hidden_size": 8}'], "model.name_or_path is needed"),
    ],
)
def test_wrong_input_is_refused(written: Path, options: list[str], message: str, refused: Runs) -> None:
    assert message in refused("inspect", written, *options)
    assert "recipe: there is no file" in refused("inspect", "none.yaml")


TOKENIZER = {"factory": "tests.mixer.tools.recipe.small_tokenizers.byte_level"}


def rows_of(task: str, seed: int) -> list[dict[str, Any]]:
    """Rows of 4 to 12 tokens; of a causal model the first labels of each are left out, and all of one row."""
    draw, rows = random.Random(seed), []
    for number in range(7):
        tokens = [draw.randrange(4, 250) for _ in range(draw.randrange(4, 13))]
        left_out = len(tokens) if number == 6 else 2
        of_tokens = [-100] * left_out + tokens[left_out:]
        rows.append({"input_ids": tokens, "labels": of_tokens if task == "causal-lm" else draw.randrange(3)})
    return rows


def sources_of(folder: Path, rows: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Writes rows by source; gives the parts of a recipe that has `held` for evaluation and streams of the others."""
    for name, own in rows.items():
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, own)))
    data = {name: {"data": {"path": str(folder / f"{name}.jsonl")}} for name in rows}
    return {"evaluation": {"held": data.pop("held")}, "streams": data}


def expected(model: Any, rows: list[dict[str, Any]]) -> tuple[float, float, list[float]]:
    """Mean loss and entropy of a label, and the mean loss of each row, by the model's own loss and a softmax."""
    losses, entropies, weights = [], [], []
    for row in rows:
        labels = torch.tensor([row["labels"]])
        counted = labels[:, 1:] != -100 if labels.dim() > 1 else torch.ones(1, dtype=torch.bool)
        if not counted.any():
            continue
        with torch.no_grad():
            output = model(input_ids=torch.tensor([row["input_ids"]]), labels=labels)
        logits = output.logits[:, :-1] if labels.dim() > 1 else output.logits
        shares = logits[counted].softmax(-1)
        entropies += [float(value) for value in -(shares * shares.log()).sum(-1)]
        losses.append(float(output.loss))
        weights.append(int(counted.sum()))
    return float(np.average(losses, weights=weights)), float(np.mean(entropies)), losses


@pytest.mark.parametrize("task", ["causal-lm", "sequence-classification"])
def test_losses_and_entropies_are_those_of_transformers(task: str, tmp_path: Path, printed: Runs) -> None:
    kind: Any = AutoModelForCausalLM if task == "causal-lm" else AutoModelForSequenceClassification
    torch.manual_seed(0)
    sizes = {**LLAMA, "pad_token_id": 0, "num_labels": 3, "attention_dropout": 0.5}
    model = kind.from_config(AutoConfig.for_model(**sizes)).eval()
    model.save_pretrained(tmp_path / "model")
    rows = {name: rows_of(task, seed) for seed, name in enumerate(("one", "two", "held"))}
    parts = sources_of(tmp_path, rows)
    own = {"task": task, "name_or_path": str(tmp_path / "model")}
    recipe = write_recipe(
        tmp_path, {**NO_EVALUATION, "per_device_eval_batch_size": 3}, **parts, model=own, tokenizer=TOKENIZER
    )
    losses = json.loads(printed("inspect", recipe, "--losses", "--json"))["losses"]
    assert [(one["source"], one["is_validation"]) for one in losses] == [("one", False), ("two", False), ("held", True)]
    for one in losses:
        loss, entropy, of_rows = expected(model, rows[one["source"]])
        assert one["num_rows"] == 7
        assert (one["loss"], one["entropy"]) == pytest.approx((loss, entropy), abs=1e-6)
        assert [*one["row_losses"].values()] == pytest.approx(np.quantile(of_rows, [0.05, 0.5, 0.95]), abs=1e-6)
    if task == "causal-lm":
        new = write_recipe(tmp_path, NO_EVALUATION, **parts, model={"config": LLAMA}, tokenizer=TOKENIZER)
        named = json.loads(printed("inspect", new, "--losses", tmp_path / "model", "--json"))["losses"]
        assert named[0]["loss"] == losses[0]["loss"]
        assert json.loads(printed("inspect", new, "--json"))["losses"] is None
