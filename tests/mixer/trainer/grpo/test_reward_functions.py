"""Reward functions, and recipes with `trainer: grpo`: rewards by dotted names, rows with all their columns."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from mixer.tools.recipe.data import DataSource
from mixer.tools.recipe.model import ModelRecipe
from mixer.tools.recipe.recipe import Recipe
from mixer.tools.recipe.streams import StreamRecipe
from mixer.trainer.grpo.reward_functions import as_one_list
from tests.mixer.trainer.grpo.cases import arguments, sets
from tests.mixer.trainer.trl.cases import model_of, tokenizer
from tests.refusals import refused

ROWS: dict[str, Any] = {
    "stream": ["a", "b", "a"],
    "completions": ["x", "y", "zz"],
    "answer": ["x", None, "z"],
    "wanted": [None, "y", None],
    "trainer_state": object(),
}


def right(completions: list[str], answer: list[str], **columns: Any) -> list[float]:
    assert "wanted" not in columns
    return [float(own == one) for own, one in zip(completions, answer, strict=True)]


def length(completions: list[str], **columns: Any) -> list[int]:
    return [len(own) for own in completions]


async def later(completions: list[str], **columns: Any) -> list[int]:
    return length(completions)


def test_functions_score_the_rows_of_their_streams_with_their_columns() -> None:
    functions, streams = as_one_list({"a": [right, length], "b": length}, ["a", "b"])
    assert streams == [{"a"}, {"a", "b"}]
    assert [function.__name__ for function in functions] == ["right", "length"]
    assert [function(**ROWS) for function in functions] == [[1.0, None, 0.0], [1, 1, 2]]


def test_async_functions_are_awaited_and_models_left_to_trl() -> None:
    functions, _ = as_one_list({"a": [later, "org/model"], "b": length}, ["a", "b"])
    with ThreadPoolExecutor(1) as threads:  # another test's loop may run in this one
        assert threads.submit(asyncio.run, functions[0](**ROWS)).result() == [1, None, 2]
    assert functions[1] == "org/model"


def test_functions_of_all_streams_are_those_of_trl() -> None:
    given = [right, length]
    assert as_one_list(given, ["a"]) == as_one_list(tuple(given), ["a"]) == (given, None)


def test_a_function_that_needs_a_column_of_another_stream_is_named_with_its_streams() -> None:
    functions, _ = as_one_list({"a": length, "b": right}, ["a", "b"])
    with refused("reward_funcs", found=["answer"]) as caught:
        functions[1](**ROWS)
    assert "['b']" in str(caught.value)


def test_extra_columns_are_logged_for_all_rows() -> None:
    logged: dict[str, Any] = {}

    def logging(log_extra: Any, completions: list[str], **columns: Any) -> list[int]:
        log_extra("seen", completions)
        return length(completions)

    functions, _ = as_one_list({"a": logging, "b": length}, ["a", "b"])
    functions[0](**ROWS, log_extra=logged.__setitem__)
    assert logged == {"seen": ["x", None, "zz"]}


def test_too_few_rewards_are_refused() -> None:
    functions, _ = as_one_list({"a": lambda **columns: [1.0]}, ["a"])
    with refused("reward_funcs"):
        functions[0](**ROWS)


@pytest.mark.parametrize("rewards", [{"a": []}, {"b": length}, {"a": length, "c": length}])
def test_every_stream_has_a_function(rewards: Any) -> None:
    with refused("reward_funcs"):
        as_one_list(rewards, ["a"])


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
