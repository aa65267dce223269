import copy
import logging
from pathlib import Path
from typing import Any

import pytest
import yaml

from mixer.tools.recipe.fields import check_fields
from mixer.tools.recipe.given import Given, check_recipe, given_in
from mixer.tools.recipe.recipe import Recipe
from mixer.tools.recipe.stream_checks import in_words_of_recipes
from mixer.utils.errors import InvalidValueError
from mixer.utils.text import did_you_mean
from tests.refusals import refused

PROMPT = {"prompt": "", "completion": "{a}"}
RECIPE: dict[str, Any] = {
    "model": {"config": {"model_type": "llama"}, "heads": {"a": {"num_labels": 2}}},
    "streams": {
        "a": {
            "data": {"path": "x"},
            "format": {"class_path": "Prompt", "init_args": {"prompt": "", "completion": "{a}"}},
        },
        "b": {"factory": "f", "validation": {"size": 3}, "format": "Chat"},
    },
    "mixing": {"class_path": "Floor", "init_args": {"policy": {"class_path": "LossChange", "init_args": {}}}},
    "batch_size": {"class_path": "Ramp", "init_args": {"final": 8, "over": 2}},
    "groupings": [{"name": "language", "weights": {"de": 1}}],
    "budget": {"epochs": 1},
    "tokenizer": {"factory": "f"},
    "training": {"seed": 1},
}
OPTIONS = ("--recipe", "--resume", "--model", "--streams", "--mixing", "--batch_size", "--groupings", "--training")
OPTIONS += ("--budget", "--tokenizer", "--training.seed")

# Where something is put that is not known, and the nearest name.
UNKNOWN = [
    ("trainig", "training"),
    ("training.lerning_rate", "learning_rate"),
    ("streams.a.weigth", "weight"),
    ("streams.a.data.splitt", "split"),
    ("streams.a.format.init_args.promt", "prompt"),
    ("streams.a.format.promt", "prompt"),
    ("streams.a.format.init_arg", "init_args"),
    ("streams.b.format.train_one", "train_on"),
    ("model.heads.a.num_label", "num_labels"),
    ("mixing.init_args.policy.init_args.temperatur", "temperature"),
    ("batch_size.maximun", "maximum"),
    ("budget.zzz", "epochs, samples, tokens, steps"),
]


def put(content: dict[str, Any], path: str, value: Any) -> None:
    *names, last = path.split(".")
    for name in names:
        content = content.setdefault(name, {})
    content[last] = value


def check(*words: str) -> Given:
    given = given_in(Recipe, words, OPTIONS)
    check_recipe(Recipe, given.fields)
    return given


@pytest.mark.parametrize(("path", "nearest"), UNKNOWN)
def test_an_unknown_name_is_told_with_the_nearest(path: str, nearest: str, tmp_path: Path) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_text(yaml.safe_dump(RECIPE))
    assert check("--recipe", str(file), "--resume", "x").others == ["--resume", "x"]
    content, option = copy.deepcopy(RECIPE), path.replace("init_args.", "")
    for more in ([f"--{path}", "1"], [f"--{path}=1"]):
        with refused(option if "." in path else f"--{option}") as caught:
            check("--recipe", str(file), *more)
        assert nearest in caught.value.hint
    if "streams.b.format" in path:  # a name alone
        return
    put(content, path, 1)
    file.write_text(yaml.safe_dump(content))
    with refused(option):
        check("--recipe", str(file))


@pytest.mark.parametrize("written", ["Promt", {"class_path": "Promt"}])
def test_a_class_that_is_none_is_told_with_the_nearest(written: Any) -> None:
    with refused("streams.a.format", found="Promt", hint="Did you mean 'Prompt'?"):
        check_fields(Recipe, {"streams": {"a": {"format": written}}})


@pytest.mark.parametrize("option", ["streams.a.arguments.n", "model.config.size", "mixing.a", "streams.a.weight"])
def test_an_option_reaches_its_place_at_any_depth(option: str) -> None:
    found: Any = check(f"--{option}", "3").fields
    for name in option.split("."):
        found = found[name]
    assert found == "3"


def test_free_content_and_classes_elsewhere_are_left_alone() -> None:
    check_fields(Recipe, {"model": {"config": {"any": {"thing": 1}}, "lora": {"r": 1}}, "mixing": {"a": 1, "b": 2}})
    check_fields(Recipe, {"streams": {"a": {"arguments": {"x": 1}, "format": {"class_path": "nowhere.at.All"}}}})
    assert did_you_mean("zzz", ["abc"]) == ""


def test_a_recipe_that_is_not_there_or_no_yaml_is_named(tmp_path: Path) -> None:
    (tmp_path / "torn.yaml").write_text("streams: [")
    with refused("recipe", found=str(tmp_path / "torn.yaml")):
        check("--recipe", str(tmp_path / "torn.yaml"))
    with pytest.raises(FileNotFoundError):
        check("--recipe", str(tmp_path / "none.yaml"))


def test_a_key_that_stands_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text("streams:\n  a: {factory: f, weight: 1}\n  b: &b {factory: f}\n  c: {<<: *b, factory: g}\n")
    check("--recipe", str(path))
    path.write_text("streams:\n  a: {factory: f}\n  b:\n    weight: 1\n    factory: f\n    weight: 2\n")
    with refused("recipe"):
        check("--recipe", str(path))
    with refused("--mixing"):
        check("--mixing", '{"a": 1, "a": 2}')


TEMPERATURE = "mixing.init_args.policy.init_args.temperature"
CLASSES: dict[str, Any] = {"unit": {"class_path": "Uniform", "init_args": {"unit": "words"}}}
# A field, a value that is refused, one that is taken, and the field that the error names if it is another.
VALUES: list[tuple[str, Any, Any, str]] = [
    ("streams.a.weight", "a", "1e-3", ""),
    ("streams.a.weight", True, "null", ""),
    ("streams.a.shuffle", "maybe", "true", ""),
    ("streams.a.data.path", 2024, "2024", ""),
    ("streams.a.max_samples", 1.5, 8, ""),
    ("streams", ["a"], {"a": {}}, ""),
    ("training", "x", {}, ""),
    ("training.learning_rate", "fast", "0.1", ""),
    (TEMPERATURE, "warm", "2", "mixing.policy.temperature"),
    ("groupings", [{"name": 3}], [], "groupings[0].name"),
    ("mixing", {"a": "x"}, {"a": "2"}, "mixing.a"),
    ("mixing", {"class_path": "GroupDRO", "init_args": {"acts_on": "both"}}, "GroupDRO", "mixing.acts_on"),
    ("mixing", {"class_path": "Floor", "init_args": {"policy": CLASSES["unit"]}}, "Uniform", "mixing.policy.unit"),
    ("mixing", {"class_path": "Floor", "init_args": {"policy": "Scheduled"}}, "mine", "mixing.policy"),
    ("mixing", {"class_path": "Uniform", "init_args": {"telepathy": 1}}, None, "mixing.telepathy"),
    ("batch_size", {"class_path": "Constant", "init_args": {"batch_size": []}}, 8, "batch_size.batch_size"),
    ("batch_size", {"class_path": "Ramp"}, "8", ""),
    ("streams.a.format", {"class_path": "Prompt", "init_args": {"prompt": "{q}"}}, "Chat", ""),
]


@pytest.mark.parametrize(("path", "wrong", "right", "named"), VALUES)
def test_a_value_of_another_type_names_the_field(path: str, wrong: Any, right: Any, named: str) -> None:
    recipe = copy.deepcopy(RECIPE)
    put(recipe, path, right)
    check_recipe(Recipe, recipe)
    put(recipe, path, wrong)
    with refused(named or path):
        check_recipe(Recipe, recipe)


@pytest.mark.parametrize(
    ("words", "option"), [(["--nonfinite", "x"], "--nonfinite"), (["--mixing", "--resume"], "--mixing")]
)
def test_an_option_of_a_section_and_one_without_a_value(words: list[str], option: str) -> None:
    with refused(option):
        check(*words)


@pytest.mark.parametrize(
    ("recipe", "message"),
    [({"drawing": "exact", "streams": {}}, "drawing: Write training.drawing."), ({}, "required: streams")],
)
def test_a_command_refuses_them(recipe: Any, message: str, tmp_path: Path, refused: Any) -> None:
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    assert message in refused("train", tmp_path / "recipe.yaml", "--training.output_dir", tmp_path)


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ({"streams", "evaluation", "mixing"}, "add to evaluation, not group_sizes."),
        ({"sequence", "head"}, "add to eval_dataset, not group_sizes."),
    ],
)
def test_a_recipe_is_told_of_the_fields_that_it_has(known: set[str], expected: str) -> None:
    told = "args.group_size: add to eval_dataset, not group_sizes."
    option = "evaluation" if "evaluation" in known else "eval_dataset"
    with refused(option, found=3) as error, in_words_of_recipes(known):
        raise InvalidValueError(told, option="eval_dataset", found=3)
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
