"""`mixer train`, `simulate` and `inspect` of recipes with a trainer of TRL."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig, LlamaForCausalLM

from mixer import Ledger
from tests.commands.recipes import LLAMA, QUIET, ROOT, Runs, write_recipe
from tests.mixer.tools.recipe.small_tokenizers import byte_level

PLAIN = {**QUIET, "bf16": False, "gradient_checkpointing": False, "max_steps": 2, "per_device_train_batch_size": 2}
PAGE = (ROOT / "docs" / "trl.md").read_text()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    byte_level().save_pretrained("my-model")
    LlamaForCausalLM(LlamaConfig(**{**LLAMA, "max_position_embeddings": 128})).save_pretrained("my-model")
    Path("data/maths").mkdir(parents=True)
    turns = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]
    Path("data/chat.jsonl").write_text(f"{json.dumps({'messages': turns})}\n" * 20)
    Path("data/maths/sums.csv").write_text("question,answer,level\n" + "1+1?, 2,low\n2+2?, 4,low\n" * 10)
    rows = [{"prompt": f"{n}?", "chosen": " yes", "rejected": " no"} for n in range(8)]
    Path("pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


@pytest.mark.parametrize("trainer", ["dpo", "reward"])
def test_preferences_are_shown_and_trained(trainer: str, folder: Path, printed: Runs, refused: Runs) -> None:
    fields: dict[str, Any] = {"trainer": trainer, "model": {"name_or_path": "my-model"}}
    pairs = {"pairs": {"data": {"path": "pairs.jsonl"}, "validation": 2}}
    training = {**PLAIN, "eval_on_start": False}
    recipe = write_recipe(folder, training, streams=pairs, mixing=None, batch_size=None, **fields)
    shown = printed("train", recipe, "--dry_run")
    assert "yes<|endoftext|>⟧ rather than ⟦" in shown
    assert "no<|endoftext|>⟧" in shown
    printed("train", recipe)
    assert Ledger(folder / "run").to_pandas()["count"].sum() == 4
    assert "training.center_reward" in refused("train", recipe, "--training.center_reward", "1")


@pytest.mark.full
def test_the_recipe_of_the_page_is_planned_shown_and_trained(folder: Path, printed: Runs) -> None:
    (recipe,) = re.findall(r"<!-- recipe: trl -->\n```\w+\n(.*?)```", PAGE, re.DOTALL)
    Path("recipe.yaml").write_text(recipe.replace("r: 16", "r: 2"))
    command = ["recipe.yaml", *(word for name, value in PLAIN.items() for word in (f"--training.{name}", str(value)))]
    assert "maths, first sample: 1+1?⟦ 2<|endoftext|>⟧" in printed("train", *command, "--dry_run")
    assert "chat" in printed("simulate", *command)
    printed("train", *command)
    assert Ledger(folder / "run").to_pandas().groupby("step")["tokens"].sum().min() > 64
    assert (folder / "run" / "adapter_model.safetensors").is_file()
