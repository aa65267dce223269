"""`mixer inspect --losses`: losses and entropies by source, compared with transformers' own forward on each row."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification

from tests.commands.recipes import LLAMA, NO_EVALUATION, Runs, write_recipe

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
