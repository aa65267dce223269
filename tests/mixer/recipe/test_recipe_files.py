"""Recipes as files: compared with defaults filled in, and read without importing packages."""

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from mixer.recipe.files import differences, filled_in, mixing_of, read_recipe

RECIPE: dict[str, Any] = {
    "model": {"config": {"model_type": "llama"}},
    "streams": {"math": {"factory": "somewhere.math"}},
    "training": {"output_dir": "runs/one", "max_steps": 4},
}


def written(mixing: Any = None, model: dict[str, Any] | None = None, **training: Any) -> str:
    own = {**RECIPE, "model": model or RECIPE["model"], "training": {**RECIPE["training"], **training}}
    return yaml.safe_dump({**own, **({} if mixing is None else {"mixing": mixing})})


def test_a_recipe_trains_the_same_as_itself() -> None:
    assert differences(written(), written()) == []


@pytest.mark.parametrize(
    "training",
    [
        {"output_dir": "/somewhere/runs/one"},
        {"logging_steps": 1, "logging_first_step": True, "log_level": "error", "disable_tqdm": True},
        {"report_to": "none", "run_name": "one", "project": "mine"},
        {"save_strategy": "steps", "save_steps": 2, "save_total_limit": 1},
        {"seed": 42, "weight_decay": 0.0},  # the defaults
        {"dataloader_num_workers": 2, "dataloader_prefetch_factor": 4},
        {"dataloader_pin_memory": False, "dataloader_persistent_workers": True},
    ],
)
def test_where_a_run_stands_what_is_told_of_it_and_how_it_loads_is_no_difference(training: dict[str, Any]) -> None:
    assert differences(written(), written(**training)) == []


def test_a_policy_is_the_same_in_every_form() -> None:
    forms = ("DoReMi", {"class_path": "DoReMi"}, {"class_path": "mixer.DoReMi", "init_args": {"step_size": 1}})
    for form in forms:
        assert differences(written("DoReMi"), written(form)) == []
    other = {"class_path": "DoReMi", "init_args": {"step_size": 2}}
    assert differences(written("DoReMi"), written(other)) == ["mixing.init_args.step_size"]


def test_what_is_trained_otherwise_is_named_in_order() -> None:
    now = written(model={"config": {"model_type": "gpt2"}}, seed=1, eval_strategy="no", max_steps=5)
    assert differences(written(), now) == ["model.config.model_type", "training.max_steps", "training.seed"]


def test_when_a_run_evaluates_is_a_difference_to_policies_that_follow_it() -> None:
    now = written(eval_strategy="steps", eval_steps=2)
    assert differences(written(), now) == ["training.eval_steps", "training.eval_strategy"]


def test_what_is_saved_counts_where_the_model_is_the_best_of_that() -> None:
    best = {"load_best_model_at_end": True, "save_strategy": "steps", "eval_strategy": "steps"}
    assert differences(written(**best, save_steps=1), written(**best, save_steps=2)) == ["training.save_steps"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "it is empty"),
        ("model:\n  config:", "it was cut off"),
        ("model: [\n", "did not find"),
        ("- 1\n", "Unexpected config"),
        ("model: {}\n", "required: streams"),
        (written() + "modell: 1\n", "modell"),
    ],
)
def test_what_is_no_recipe_is_refused(text: str, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=problem):
        read_recipe(path)


def test_a_recipe_is_read_as_it_was_written(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(written())
    assert read_recipe(tmp_path / "recipe.yaml") == written()


_RECIPE = "model: {config: {}}\nstreams: {a: {factory: x.y}}\ntraining: {output_dir: o}\n"


@pytest.mark.parametrize(
    "line",
    [
        "mixing: marks_itself.Policy",
        "mixing: {class_path: marks_itself.Policy}",
        "methods: [{class_path: marks_itself.Method}]",
        "methods: [marks_itself.Method]",
    ],
)
def test_a_class_of_a_package_that_is_not_loaded_is_refused_before_it_is(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "marks_itself.py").write_text(f"open({str(tmp_path / 'mark')!r}, 'w').close()\nclass Policy: ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ValueError, match=r"marks_itself\.\w+ is of a package that is not loaded here"):
        filled_in(_RECIPE + line)
    assert "marks_itself" not in sys.modules
    assert not (tmp_path / "mark").exists()


def test_names_in_fields_of_texts_are_none_of_a_class() -> None:
    assert filled_in(_RECIPE + "mixing: Uniform")["streams", "a", "factory"] == "x.y"


WEIGHTS = {"math": 0.25, "code": 0.75}


def test_shares_of_tokens_are_written_as_such() -> None:
    assert mixing_of(WEIGHTS, "samples") == WEIGHTS
    assert mixing_of(WEIGHTS, "tokens") == {"class_path": "Fixed", "init_args": {"weights": WEIGHTS, "unit": "tokens"}}
