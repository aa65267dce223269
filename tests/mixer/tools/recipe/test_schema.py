"""The JSON schema of recipes says what the checks say."""

import copy
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from mixer.policies.registry import policy_classes
from mixer.schedules.registry import schedule_classes
from mixer.tools.recipe.fields import check_fields
from mixer.tools.recipe.given import read_recipe_file
from mixer.tools.recipe.recipe import Recipe
from mixer.tools.recipe.schema import schema_of, versions
from tasks.tools.recipe import ContinualRecipe

ROOT = Path(__file__).parents[4]
RECIPES = sorted(path for path in (ROOT / "recipes").rglob("*.yaml") if "tiny" not in path.parts)
CLASSES = {"train": Recipe, "continual": ContinualRecipe}
FIRST_LINE = "# yaml-language-server: $schema="
RECIPE = """
model: {name_or_path: my-model}
tokenizer: my-model
streams:
  math: {data: {path: math.jsonl}, format: Chat, weight: 2}
  code: {data: {path: code.csv}, format: {class_path: Prompt, init_args: {prompt: "{a}", completion: "{b}"}}}
objective: {targets: [math], bounds: {code: 1.05}}
mixing: {class_path: PiKE, init_args: {interval_steps: 20}}
batch_size: {class_path: Ramp, init_args: {final: 64, over: 0.5}}
training: {output_dir: run, max_steps: 10, learning_rate: 0.001, optim: adamw_torch}
"""
# A path in it, and what is put there; `...` takes it away.
WRONG: list[tuple[str, Any]] = [
    ("modle", {}),
    ("model", ...),
    ("streams", ...),
    ("training", ...),
    ("model", "my-model"),
    ("model.task", "causal_lm"),
    ("model.name", "my-model"),
    ("model.config", []),
    ("model.heads", {"topic": {"num_labels": "six"}}),
    ("model.heads", {"topic": {}}),
    ("model.heads", {"topic": {"num_labels": 2, "kind": "classify"}}),
    ("model.lora", 8),
    ("tokenizer", ["my-model"]),
    ("tokenizer", {"arguments": {}}),
    ("streams", ["math"]),
    ("streams.math", "math.jsonl"),
    ("streams.math.wieght", 2),
    ("streams.math.weight", "high"),
    ("streams.math.max_epochs", [1]),
    ("streams.math.max_samples", 1.5),
    ("streams.math.shuffle", "sometimes"),
    ("streams.math.enters_at", "decayed"),
    ("streams.math.validation", {"share": 0.1}),
    ("streams.math.on_sample_error", "ignore"),
    ("streams.math.groups", ["a"]),
    ("streams.math.data", {}),
    ("streams.math.data.pth", "math.jsonl"),
    ("streams.math.data.path", 3),
    ("streams.math.data.rows", "sentence"),
    ("streams.math.data.columns", "messages"),
    ("streams.math.data.streaming", "yes"),
    ("streams.math.format", "Chats"),
    ("streams.math.format", "Prompt"),
    ("streams.code.format.init_args", {"prompt": "{a}"}),
    ("streams.code.format.init_args.completions", "{b}"),
    ("streams.code.format.init_args.max_length", "long"),
    ("streams.code.format.arguments", {}),
    ("objective", {"target": ["math"]}),
    ("objective.kind", "mean"),
    ("objective.bounds", {"code": "5 %"}),
    ("mixing", "Pike"),
    ("mixing", 3),
    ("mixing", {"math": "much"}),
    ("mixing.init_args.interval", 20),
    ("mixing.init_args.mode", "theoretical"),
    ("mixing.class_path", "PIKE"),
    ("batch_size", "large"),
    ("batch_size", 2.5),
    ("batch_size.init_args", {"final": 64}),
    ("batch_size.init_args.learning_rate", "square"),
    ("budget", {"token": 1}),
    ("groupings", {"name": "language"}),
    ("groupings", [{"weights": {}}]),
    ("probe", {"mode": "exactly"}),
    ("trainer", "sfft"),
    ("evaluation", {"prose": {"data": {"paths": "x"}}}),
    ("training.max_stps", 3),
    ("training.max_steps", "ten"),
    ("training.max_steps", 1.5),
    ("training.drawing", "random"),
    ("training.nonfinite", "ignore"),
    ("training.max_length", 512),
]
# Found when the recipe is parsed.
PARSED = ("mixing", "batch_size", "objective.bounds")
# What only the schema knows, or only the checks: the Trainer itself refuses them, or other packages do.
EDITORS_ALONE = [("training.optim", "adam"), ("training.eval_strategy", "step"), ("mixing.init_args.unit", "token")]


@cache
def _validator(name: str) -> Draft202012Validator:
    return Draft202012Validator(schema_of(CLASSES[name]))


def _changed(path: str, value: Any) -> dict[str, Any]:
    recipe: dict[str, Any] = copy.deepcopy(yaml.safe_load(RECIPE))
    *sections, last = path.split(".")
    part: Any = recipe
    for section in sections:
        part = part[section]
    if value is ...:
        del part[last]
    else:
        part[last] = value
    return recipe


@pytest.mark.parametrize("name", CLASSES)
def test_the_schema_is_one_and_the_file_in_the_repository_is_that_of_its_versions(name: str) -> None:
    schema = _validator(name).schema
    Draft202012Validator.check_schema(schema)
    kept = json.loads((ROOT / "recipes" / "schema" / f"{name}.json").read_text(encoding="utf-8"))
    if kept["$comment"] == versions():
        command = "make schema"
        made = json.loads(json.dumps(schema))
        differing = [part for part in kept["$defs"] if kept["$defs"][part] != made["$defs"].get(part)]
        assert kept == made, f"{differing} differ; it is written anew by {command}"


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.relative_to(ROOT / "recipes").as_posix())
def test_every_recipe_names_the_schema_in_its_first_line_and_is_valid(path: Path) -> None:
    first = path.read_text(encoding="utf-8").splitlines()[0]
    assert first.startswith(FIRST_LINE)
    named = (path.parent / first.removeprefix(FIRST_LINE)).resolve()
    assert named.parent == ROOT / "recipes" / "schema"
    _validator(named.stem).validate(read_recipe_file(str(path)))


def test_what_is_right_is_valid_in_every_form() -> None:
    forms = {
        "mixing": [None, "auto", "mixer.PiKE", {"math": 2, "code": 1.5}, [1, 2], {"class_path": "my.package.Policy"}],
        "batch_size": [32, "Ramps.of.mine", {"class_path": "AdaBatch"}, None],
        "objective": ["average", ["math", "code"], {"math": 2}, {"class_path": "Objective", "init_args": {}}],
        "conflict": ["pcgrad", {"aggregator": "mgda"}, {"class_path": "GradientAggregation", "init_args": {}}],
        "methods": [[{"class_path": "replay.DER", "init_args": {"alpha": 0.5}}]],
        "streams.math.validation": [0.1, 200, {"size": 0.1, "stratify_by": "level"}],
    }
    for path, values in forms.items():
        for value in values:
            _validator("train").validate(_changed(path, value))


@pytest.mark.parametrize(("path", "value"), WRONG, ids=[f"{path}={value!r:.30}" for path, value in WRONG])
def test_what_is_wrong_is_found_by_the_schema_and_by_the_checks(path: str, value: Any) -> None:
    recipe = _changed(path, value)
    assert not _validator("train").is_valid(recipe)
    if value is not ... and path not in PARSED:
        with pytest.raises(ValueError, match=path.split(".")[0]):
            check_fields(Recipe, recipe)


@pytest.mark.parametrize(("path", "value"), EDITORS_ALONE)
def test_the_schema_also_knows_the_choices_of_the_trainer(path: str, value: str) -> None:
    assert not _validator("train").is_valid(_changed(path, value))


def test_training_arguments_are_those_of_the_trainer() -> None:
    pytest.importorskip("trl", reason="the extra `trl` is not installed")
    recipe = _changed("training.max_length", 512)
    assert not _validator("train").is_valid(recipe)
    _validator("train").validate({**recipe, "trainer": "sft"})
    assert not _validator("train").is_valid({**_changed("training.max_lenght", 512), "trainer": "sft"})


def test_it_has_every_rule_by_name_and_a_text_of_every_field() -> None:
    schema = _validator("train").schema
    for base, rules in (("Policy", policy_classes()), ("Schedule", schedule_classes())):
        assert {f"{base}.{name}" for name in rules} <= schema["$defs"].keys()
    for name in ("Recipe", "StreamRecipe", "DataSource", "ModelRecipe", "MixingConfig", "Policy.PiKE", "Format.Chat"):
        part = schema if name == "Recipe" else schema["$defs"][name]
        part = part["properties"]["init_args"] if "." in name else part
        lacking = [field for field, own in part["properties"].items() if not _is_told(own)]
        assert lacking == []
    split = schema["$defs"]["DataSource"]["properties"]["split"]
    assert (split["default"], split["type"]) == ("train", "string")
    assert schema["$defs"]["DataSource"]["properties"]["separator"]["examples"] == [";"]


def _is_told(field: Mapping[str, Any]) -> bool:
    return bool(field.get("description")) and not field["description"].startswith("See `")


def test_examples_are_valid() -> None:
    schema = _validator("train").schema
    for part in (schema, *schema["$defs"].values()):
        for own in part.get("properties", {}).values():
            for example in own.get("examples", ()):
                Draft202012Validator({**own, "$defs": schema["$defs"]}).validate(example)
