"""Parts of a recipe that do or do not fit together."""

import contextlib
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from jsonargparse import ArgumentParser

from mixer.tools.cli.command import build_recipe
from mixer.tools.recipe.data import DataSource
from mixer.tools.recipe.data.formats.dialogue import Dialogue
from mixer.tools.recipe.data.formats.template import chat_template_of
from mixer.tools.recipe.places import placed
from mixer.tools.recipe.recipe import Recipe
from mixer.tools.recipe.streams import StreamRecipe
from mixer.utils.errors import InvalidValueError, wrong_value
from tests.helpers import plain_options
from tests.mixer.tools.recipe.small_tokenizers import CHATML, byte_level
from tests.refusals import refused


@cache
def parser_of(trainer: str | None) -> tuple[type[Recipe], ArgumentParser]:
    """The recipes of a trainer, and what parses them, which holds nothing of what it parsed."""
    kind, parser = Recipe.for_trainer(trainer), ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(kind)
    return kind, parser


def built(folder: Path, **fields: Any) -> Any:
    (folder / "rows.jsonl").write_text((json.dumps({"input_ids": [1, 2, 3], "labels": [1, 2, 3]}) + "\n") * 8)
    data = {"path": str(folder / "rows.jsonl")}
    stream, sets = {"data": data}, dict[str, Any]()
    for field in ("evaluation", "targets"):
        sets[field] = {name: {"data": {**data, **changes}} for name, changes in fields.pop(field, {}).items()}
    model = {"factory": "tests.helpers.build_model", "arguments": {"name": "llama"}}
    content = {"model": model, "streams": {"a": {**stream, "validation": 2}}, "training": plain_options(folder)}
    kind, parser = parser_of(fields.get("trainer"))
    return build_recipe(kind, parser, parser.parse_object({**content, **sets, **fields})).build()


@pytest.mark.parametrize(
    ("fields", "option"),
    [
        ({"evaluation": {"a": {}}}, "evaluation"),
        ({"targets": {"a": {}}}, "targets"),
        ({"evaluation": {"b": {"split": "test"}}}, "evaluation.b.data.split"),
        ({"chat_template": CHATML}, "chat_template"),
        ({"trainer": "sft"}, "tokenizer"),
    ],
)
def test_fields_that_need_or_exclude_another_are_refused(fields: dict[str, Any], option: str, tmp_path: Path) -> None:
    with refused(option):
        built(tmp_path, **fields)


def test_rows_of_targets_become_development_rows(tmp_path: Path) -> None:
    trainer = built(tmp_path, targets={"a": {}}, objective=["a"], mixing="MarginalValue")
    (rows,) = trainer._parts.plan.target_splits.rows.values()
    assert len(rows) == 8


ROWS = {"factory": "builtins.dict", "arguments": {"test": [{"labels": 1}]}}


@pytest.mark.parametrize(
    ("stream", "option"),
    [
        (StreamRecipe(), "data"),
        (StreamRecipe(factory="builtins.dict", data=DataSource("a")), "data"),
        (StreamRecipe(data=DataSource("a"), train_split="test"), "train_split"),
        (StreamRecipe(**ROWS), "train_split"),
        (StreamRecipe(**ROWS, train_split="test", format=Dialogue()), "format"),
        (StreamRecipe(factory="builtins.zip", rows_share=0.5), "rows_share"),
    ],
)
def test_a_stream_whose_fields_do_not_fit_is_refused(stream: StreamRecipe, option: str) -> None:
    with refused(f"streams.s.{option}"):
        stream.build("s", None, "causal-lm")


def test_a_template_is_written_out_in_a_file_or_a_tokenizers(tmp_path: Path) -> None:
    byte_level(chat_template=CHATML).save_pretrained(tmp_path / "own")
    byte_level(chat_template=None).save_pretrained(tmp_path / "bare")
    (tmp_path / "file").write_text(CHATML)
    assert {chat_template_of(str(given)) for given in (CHATML, tmp_path / "file", tmp_path / "own")} == {CHATML}
    for given in (str(tmp_path / "bare"), "lama3"):
        with refused("chat_template", found=given):
            chat_template_of(given)


@pytest.mark.parametrize(
    ("error", "option"),
    [
        (FileNotFoundError("there is no file"), "streams.web.data"),
        (wrong_value("split", "is none."), "streams.web.data.split"),
        (InvalidValueError("a file is torn", option="a.csv", stream="web"), "a.csv"),
    ],
)
def test_an_error_names_its_place_once(error: Exception, option: str) -> None:
    with refused(option, type(error)) as caught, placed("streams.web"), placed("data"):
        raise error
    assert str(caught.value).partition(" ")[0] in ("streams.web.data:", "streams.web.data.split")


def test_a_larger_share_of_the_rows_has_those_of_a_smaller_one() -> None:
    rows = {"factory": "datasets.Dataset.from_dict", "arguments": {"mapping": {"labels": list(range(200))}}}
    parts = [StreamRecipe(**rows, rows_share=share).build("a").stream.dataset for share in (0.1, 0.2, 0.1)]
    few, more, again = ({*part["labels"]} for part in parts)
    assert (len(few), len(more)) == (20, 40)
    assert few == again
    assert few < more


def _told(error: ValueError, places: list[str]) -> None:
    with contextlib.ExitStack() as stack:
        for place in places:
            stack.enter_context(placed(place))
        raise error


@pytest.mark.parametrize(
    ("error", "places", "told"),
    [
        (wrong_value("lora", "must be a mapping, got 3."), ["model"], "model.lora must be a mapping, got 3."),
        (ValueError("lora_alpha must be above 0"), ["model", "lora"], "model.lora: lora_alpha must be above 0"),
        (ValueError("modeling_x.py is missing"), ["model"], "model: modeling_x.py is missing"),
        (ValueError("model.lora: it has no layers"), ["model"], "model.lora: it has no layers"),
    ],
)
def test_a_place_is_told_once_and_is_no_part_of_a_word(error: ValueError, places: list[str], told: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        _told(error, places)
    assert str(caught.value) == told
