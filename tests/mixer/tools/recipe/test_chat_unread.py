"""What is said in a row of a chat is read, left unread by name, or refused by name."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import pytest

from mixer.tools.recipe.data import Chat, DataSource, Dialogue, formatted
from mixer.tools.recipe.data.validation import Validation
from mixer.tools.recipe.streams import StreamRecipe
from tests.mixer.tools.recipe.small_tokenizers import CHATML, byte_level
from tests.mixer.tools.recipe.test_chat import ASK, CALLED, LLAMA3, QWEN3, TALK, TOOLS, WEATHER, made
from tests.refusals import refused

FORMATS: list[Any] = [Chat, Dialogue]


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize(
    ("key", "value"),
    [("trainable", False), ("learn", 0), ("masked", True), ("reasoning", "so"), ("tools", [WEATHER]), ("name", "Ann")],
)
def test_a_key_of_a_turn_that_nothing_reads(kind: Any, key: str, value: Any) -> None:
    rows = [{"messages": TALK}, {"messages": [TALK[0], {**TALK[1], key: value}, *TALK[2:]]}]
    with refused(key, found=value, stream="s"):
        made(rows, CHATML, kind())
    plain = made([rows[0], rows[0]], CHATML, kind())
    assert made(rows, CHATML, kind(ignored_keys=[key])) == plain
    emptied = [rows[0], {"messages": [TALK[0], {**TALK[1], key: None}, *TALK[2:]]}]
    assert made(emptied, CHATML, kind()) == plain


@pytest.mark.parametrize("turn", [{"flag": False}, {"flag": True}, {"reasoning_content": "so"}, {"step": 0}])
def test_a_key_that_the_template_reads(turn: dict[str, Any]) -> None:
    template = "{% for one in messages %}" + QWEN3[QWEN3.index("<|im_start|>") :].replace(
        "message.reasoning_content or ''", "message.reasoning_content or message.flag or message.step"
    ).replace("message", "one").replace("loop.index0 > own.last", "loop.last")
    template = template.replace("one.content }}", "one.content }}{{ one.flag }}{{ one.step }}")
    made([{"messages": [TALK[0], {**TALK[1], **turn}, *TALK[2:]]}], template, Chat(train_on="all"))


@pytest.mark.parametrize("template", [CHATML, LLAMA3])
def test_a_tool_answers_a_call_by_its_name(template: str) -> None:
    answer = {"role": "tool", "tool_call_id": "call_0", "name": "weather", "content": "dry"}
    assert made([{"messages": [ASK, answer, *TALK[1:]]}], template)


def test_a_part_of_a_content() -> None:
    part = {"type": "text", "text": "rain?", "train": False}
    answer = {"role": "assistant", "content": [{"type": "text", "text": "no", "train": None}]}
    row = {"messages": [{"role": "user", "content": [part]}, answer]}
    with refused("train"):
        made([row], CHATML)
    assert made([row], CHATML, ignored_keys=["train"])


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("column", ["tool_defs", "persona", "score", "weight"])
def test_a_column_that_nothing_reads(kind: Any, column: str) -> None:
    said = {"tool_defs": [WEATHER], "persona": "a pirate", "score": 0.0, "weight": 0.5}[column]
    rows = [{"messages": CALLED, "tools": None, "id": 3, "prompt_id": "a", "source": "b", column: said}]
    with refused("ignored_columns", found=[column]):
        made(rows, TOOLS, kind())
    plain = made([{"messages": CALLED}], TOOLS, kind())
    assert made(rows, TOOLS, kind(ignored_columns=[column])) == plain
    assert made([{**rows[0], column: None}], TOOLS, kind()) == plain


def test_a_column_of_a_stream_of_rows() -> None:
    rows = datasets.Dataset.from_list([{"messages": TALK, "persona": "a pirate"}]).to_iterable_dataset()
    with refused("ignored_columns", found=["persona"]):
        formatted(rows, Chat(), byte_level(), called="s")


@pytest.mark.parametrize("kind", FORMATS)
def test_a_column_that_validation_is_stratified_by_is_named_already(kind: Any, tmp_path: Path) -> None:
    rows = [{"messages": TALK, "topic": topic} for topic in "abab"]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data, validation = DataSource(str(tmp_path / "rows.jsonl")), Validation(0.5, stratify_by="topic")
    trained = {"trainer": "sft", "training": SimpleNamespace(dataset_text_field="text", assistant_only_loss=False)}
    built = StreamRecipe(data=data, format=kind(), validation=validation).build(
        "s", byte_level(), **({} if kind is Chat else trained)
    )
    assert len(built.evaluation) == 2
