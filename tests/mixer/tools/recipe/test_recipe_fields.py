import copy
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from mixer.tools.recipe.fields import check_fields, check_recipe, check_written_classes
from mixer.tools.recipe.recipe import Recipe
from mixer.tools.recipe.stream_checks import in_words_of_recipes
from mixer.utils.text import did_you_mean

RECIPE: dict[str, Any] = {
    "model": {"config": {"model_type": "llama"}, "heads": {"a": {"num_labels": 2}}},
    "streams": {
        "a": {"data": {"path": "x"}, "format": {"class_path": "Prompt", "init_args": {"prompt": "{q}"}}},
        "b": {"factory": "f", "validation": {"size": 3}, "format": "Chat"},
    },
    "mixing": {"class_path": "Floor", "init_args": {"policy": {"class_path": "LossChange", "init_args": {}}}},
    "batch_size": {"class_path": "Ramp", "init_args": {"final": 8}},
    "groupings": [{"name": "language", "weights": {"de": 1}}],
    "budget": {"epochs": 1},
    "tokenizer": {"factory": "f"},
    "training": {"seed": 1},
}
OPTIONS = ("--recipe", "--resume", "--model", "--streams", "--mixing", "--batch_size", "--groupings", "--training")
OPTIONS += ("--budget", "--tokenizer", "--training.seed")

# Where something is put that is not known, and what is said of it.
UNKNOWN = [
    ("trainig.seed", "trainig: there is no field 'trainig'. Did you mean 'training'?"),
    ("training.lerning_rate", "training.lerning_rate: there is no field 'lerning_rate'. Did you mean 'learning_rate'?"),
    ("streams.a.weigth", "streams.a.weigth: there is no field 'weigth'. Did you mean 'weight'?"),
    ("streams.a.data.splitt", "streams.a.data.splitt: there is no field 'splitt'. Did you mean 'split'?"),
    ("streams.a.format.init_args.promt", "streams.a.format.init_args.promt: .* Did you mean 'prompt'?"),
    ("streams.a.format.promt", "streams.a.format.promt: .* Did you mean 'prompt'?"),
    ("streams.a.format.init_arg", "Did you mean 'init_args'?"),
    ("streams.b.format.train_one", "streams.b.format.train_one: .* Did you mean 'train_on'?"),
    ("model.heads.a.num_label", "model.heads.a.num_label: .* Did you mean 'num_labels'?"),
    ("mixing.init_args.policy.init_args.temperatur", "mixing.init_args.policy.init_args.temperatur: .*'temperature'"),
    ("batch_size.maximun", "Did you mean 'maximum'?"),
    ("budget.zzz", "there is no field 'zzz'. There are epochs, samples, tokens, steps."),
]


def put(content: dict[str, Any], path: str, value: Any) -> None:
    *names, last = path.split(".")
    for name in names:
        content = content.setdefault(name, {})
    content[last] = value


@pytest.mark.parametrize(("path", "message"), UNKNOWN)
def test_on_the_command_line_and_in_the_file(path: str, message: str, tmp_path: Path) -> None:
    arguments, message = ["--recipe", str(tmp_path / "recipe.yaml")], message.replace("?", r"\?")
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(RECIPE))
    check_recipe(Recipe, arguments, OPTIONS)
    for more in ([f"--{path}", "1"], [f"--{path}=1"]):
        with pytest.raises(ValueError, match=message.replace("trainig:", "--trainig.seed:")):
            check_recipe(Recipe, [*arguments, *more], OPTIONS)
    if "streams.b.format" in path:
        return
    content = copy.deepcopy(RECIPE)
    put(content, path, 1)
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(content))
    with pytest.raises(ValueError, match=message):
        check_recipe(Recipe, arguments, OPTIONS)


@pytest.mark.parametrize("written", ["Promt", {"class_path": "Promt"}])
def test_a_class_that_is_none_is_told_with_the_nearest(written: Any) -> None:
    with pytest.raises(ValueError, match=r"streams\.a\.format.*: there is no Format 'Promt'\. Did you mean 'Prompt'\?"):
        check_fields(Recipe, {"streams": {"a": {"format": written}}})


@pytest.mark.parametrize("option", ["streams.a.arguments.num_samples", "streams.a.groups.kind"])
def test_an_option_that_would_not_reach_a_mapping_is_told_how_to(option: str) -> None:
    whole, _, last = option.rpartition(".")
    message = f"--{option}: {whole} is a mapping .* --{whole} '{{\"{last}\": 300}}'"
    for given in ([f"--{option}", "300"], [f"--{option}=300"]):
        with pytest.raises(ValueError, match=message):
            check_recipe(Recipe, given, OPTIONS)


@pytest.mark.parametrize("option", ["streams.a.weight", "streams.a.arguments", "model.config.hidden_size", "mixing.a"])
def test_an_option_that_reaches_its_field_is_let_through(option: str) -> None:
    check_recipe(Recipe, [f"--{option}", "{}" if option.endswith("arguments") else "3"], OPTIONS)


def test_free_content_and_what_the_parser_refuses_better_are_left_alone() -> None:
    check_fields(Recipe, {"model": {"config": {"any": {"thing": 1}}, "lora": {"r": 1}}, "mixing": {"a": 1, "b": 2}})
    check_fields(Recipe, {"streams": {"a": {"arguments": {"x": 1}, "format": {"class_path": "nowhere.at.All"}}}})
    check_fields(Recipe, {"streams": ["a"], "training": "x", "budget": 3})
    assert did_you_mean("zzz", ["abc"]) == ""


def test_a_recipe_that_is_not_there_or_no_yaml_is_named(tmp_path: Path, refused: Callable[..., str]) -> None:
    (tmp_path / "torn.yaml").write_text("streams: [")
    for name, message in (("none.yaml", f"there is no file '{tmp_path}/none.yaml'"), ("torn.yaml", "as YAML")):
        assert message in refused("train", tmp_path / name)


def test_a_key_that_stands_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text("streams:\n  a: {factory: f, weight: 1}\n  b: &b {factory: f}\n  c: {<<: *b, factory: g}\n")
    check_recipe(Recipe, ["--recipe", str(path)], OPTIONS)
    path.write_text("streams:\n  a: {factory: f}\n  b:\n    weight: 1\n    factory: f\n    weight: 2\n")
    with pytest.raises(ValueError, match="the key 'weight' stands twice, in line 4 and 6"):
        check_recipe(Recipe, ["--recipe", str(path)], OPTIONS)
    with pytest.raises(ValueError, match=r"--mixing: the key 'a' stands twice"):
        check_recipe(Recipe, ["--mixing", '{"a": 1, "a": 2}'], OPTIONS)


@pytest.mark.parametrize(
    ("path", "wrong", "right"),
    [
        ("streams.a.weight", "a", "1e-3"),
        ("streams.a.weight", "x", "null"),
        ("training.learning_rate", "fast", "0.1"),
        ("mixing.init_args.policy.init_args.temperature", "warm", "2"),
    ],
)
def test_words_for_a_number_name_the_field(path: str, wrong: str, right: str) -> None:
    recipe = copy.deepcopy(RECIPE)
    put(recipe, path, right)
    check_fields(Recipe, recipe)
    put(recipe, path, wrong)
    with pytest.raises(ValueError, match=f"^{path}: it must be a number"):
        check_fields(Recipe, recipe)


def _written(name: str, **arguments: Any) -> str:
    return json.dumps({"class_path": name, "init_args": arguments})


WRONG_CLASSES = [
    ("mixing", _written("GroupDRO", acts_on="both"), r"^mixing\.acts_on: Expected .*'sampling'.*: both$"),
    ("mixing", "{class_path: Uniform, init_args: {unit: words}}", r"^mixing\.unit: Expected .*'tokens'.*: words$"),
    ("mixing", _written("Uniform", telepathy=1), "^mixing: Option 'telepathy' is not accepted$"),
    ("mixing", _written("Floor", policy={"class_path": "Uniform", "init_args": {"unit": "w"}}), r"^mixing\.policy\.u"),
    ("mixing", _written("Unifrom"), "^mixing: .*Unifrom$"),
    ("mixing", _written("nowhere.Mine"), "^mixing: No module named 'nowhere'$"),
    ("mixing", "{class_path: [", "^mixing: "),
    ("batch_size", _written("Constant", batch_size=[]), r"^batch_size\.batch_size: Expected a <class 'int'>; "),
]


@pytest.mark.parametrize(("field", "text", "message"), WRONG_CLASSES)
def test_a_class_with_wrong_arguments_is_no_name(field: str, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_written_classes(Recipe, {field: text, "tokenizer": "a"})
    check_written_classes(Recipe, {"mixing": "LosChange", "batch_size": _written("Constant", batch_size=8)})


WRONG_KINDS: list[tuple[dict[str, Any], str]] = [
    (
        {"streams": {"a": {"format": {"class_path": "Prompt", "init_args": {"prompt": "{q}"}}}}},
        "streams.a.format: Prompt needs completion: write {class_path: Prompt, init_args: {completion: ...}}.",
    ),
    ({"mixing": {"class_path": "Floor", "init_args": {"policy": "Scheduled"}}}, "mixing.policy: Scheduled needs poin"),
    ({"batch_size": {"class_path": "Ramp"}}, "batch_size: Ramp needs final, over: write {class_path: Ramp, "),
    ({"streams": {"a": {"shuffle": "maybe"}}}, "streams.a.shuffle: Expected a <class 'bool'>. Got value: maybe"),
    ({"streams": ["a"]}, "streams: Expected a <class 'dict'>. Got value: ['a']"),
    ({"drawing": "exact"}, "drawing: write training.drawing."),
    ({}, "the following arguments are required: streams"),
]


@pytest.mark.parametrize(("fields", "message"), WRONG_KINDS)
def test_wrong_kinds_and_missing_fields_are_refused(fields, message, tmp_path, refused) -> None:
    streams = {} if not fields else {"streams": {"a": {"factory": "f"}}}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump({**streams, **fields}))
    error = refused("train", tmp_path / "recipe.yaml", "--training.output_dir", tmp_path)
    assert error.startswith(f"mixer train: {message}")


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ({"streams", "evaluation", "mixing"}, "add to evaluation, mixing: null or mixing: auto, not head=None."),
        ({"sequence", "head"}, "add to eval_dataset, mixing=None or mixing='auto', not head: null."),
    ],
)
def test_a_recipe_is_told_of_the_fields_that_it_has(known: set[str], expected: str) -> None:
    told = "args.group_size: add to eval_dataset, mixing=None or mixing='auto', not head=None."
    with pytest.raises(ValueError, match="group_size") as error, in_words_of_recipes(known):
        raise ValueError(told)
    assert str(error.value) == f"training.group_size: {expected}"


_SMALL = {"model_type": "llama", "vocab_size": 60, "hidden_size": 8, "intermediate_size": 16}


@pytest.mark.parametrize("command", ["train", "search", "headroom", "simulate"])
def test_every_command_speaks_in_the_words_of_recipes(command, tmp_path, refused) -> None:
    (tmp_path / "rows.jsonl").write_text('{"input_ids": [1, 2, 3], "labels": [1, 2, 3]}\n' * 8)
    recipe: dict[str, Any] = {"model": {"config": {**_SMALL, "num_hidden_layers": 1, "num_attention_heads": 2}}}
    recipe |= {"streams": {"a": {"data": {"path": str(tmp_path / "rows.jsonl")}, "validation": 2}}, "objective": ["b"]}
    recipe["training"] = {"output_dir": str(tmp_path / "run"), "max_steps": 2, "use_cpu": True, "report_to": "none"}
    recipe["training"] |= {"eval_strategy": "epoch"}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    error = refused(command, tmp_path / "recipe.yaml")
    assert "evaluation" in error
    assert "eval_dataset" not in error


def test_warnings_are_told_in_the_words_of_recipes_too() -> None:
    kept: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: kept.append(record.getMessage())  # type: ignore[method-assign]
    for name in ("mixer.measure.of_a_test", "elsewhere"):
        logger = logging.getLogger(name)
        logger.addHandler(handler)
        with in_words_of_recipes():
            logger.warning("Load the model in float32 and set bf16=True, or %s.", "eval_dataset")
        logger.warning("eval_dataset")
        logger.removeHandler(handler)
    assert kept == [
        "Set model.config.dtype: float32 and set training.bf16: true, or eval_dataset.",
        "eval_dataset",
        "Load the model in float32 and set bf16=True, or eval_dataset.",
        "eval_dataset",
    ]
