"""Recipes with `trainer: grpo`: rewards by dotted names, rows with all their columns."""

from pathlib import Path
from typing import Any

from mixer.tools.recipe.data import DataSource
from mixer.tools.recipe.model import ModelRecipe
from mixer.tools.recipe.recipe import Recipe
from mixer.tools.recipe.streams import StreamRecipe
from tests.mixer.trainer.grpo.cases import arguments, sets
from tests.mixer.trainer.trl.cases import model_of, tokenizer
from tests.refusals import refused

CASES = "tests.mixer.trainer.grpo.cases"
REWARDS: dict[str, str | list[str]] = {"a": [f"{CASES}.first_half", f"{CASES}.is_short"], "b": f"{CASES}.second_half"}


def recipe(folder: Path, **options: Any) -> Recipe:
    model_of().save_pretrained(folder / "base")
    tokenizer().save_pretrained(folder / "base")
    for name, rows in sets().items():
        rows.to_json(folder / f"{name}.jsonl")
    streams = {name: StreamRecipe(data=DataSource(str(folder / f"{name}.jsonl"))) for name in sets()}
    training = arguments(folder / "out", max_steps=2)
    return Recipe(ModelRecipe(name_or_path=str(folder / "base")), streams, training, mixing="MTGRPO", **options)


def test_functions_by_stream_score_what_files_hold(tmp_path: Path) -> None:
    trainer = recipe(tmp_path, trainer="grpo", rewards=REWARDS).build()
    trainer.train()
    assert trainer.reward_func_names == ["first_half", "is_short", "second_half"]
    assert trainer.ledger.rewards()["groups"].sum() == 2 * 4


def test_rewards_are_for_grpo_and_have_to_exist(tmp_path: Path) -> None:
    with refused("rewards"):
        recipe(tmp_path, trainer="grpo")
    with refused("rewards"):
        recipe(tmp_path, trainer="sft", rewards=REWARDS)
    with refused("rewards"):
        recipe(tmp_path, trainer="grpo", rewards="no.such_function").build()
