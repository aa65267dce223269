"""What is given anew on the command line, or in a second recipe, starts from its defaults."""

import functools
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonargparse import ArgumentParser

from mixer.tools.cli.entry import _parsed
from mixer.tools.recipe.given import given_in
from mixer.tools.recipe.recipe import Recipe
from mixer.tools.recipe.recipe_files import differences, filled_in, read_recipe
from tests.refusals import refused

RECIPE: dict[str, Any] = {
    "model": {"config": {"model_type": "llama"}},
    "streams": {"math": {"factory": "somewhere.math"}},
    "training": {"output_dir": "runs/one", "max_steps": 4},
}


BEST = {"load_best_model_at_end": True, "save_strategy": "steps", "eval_strategy": "steps"}
OTHERWISE = ["model.config.model_type", "training.max_steps", "training.seed"]


def written(mixing: Any = None, model: dict[str, Any] | None = None, **training: Any) -> str:
    own = {**RECIPE, "model": model or RECIPE["model"], "training": {**RECIPE["training"], **training}}
    return yaml.safe_dump({**own, **({} if mixing is None else {"mixing": mixing})})


@pytest.mark.parametrize(
    ("saved", "now", "expected"),
    [
        ({}, {}, []),
        ({}, {"output_dir": "/somewhere/runs/one"}, []),
        ({}, {"logging_steps": 1, "log_level": "error", "logging_style": "dict", "ledger_interval_steps": 3}, []),
        ({}, {"report_to": "none", "run_name": "one", "project": "mine"}, []),
        ({}, {"save_strategy": "steps", "save_steps": 2, "save_total_limit": 1}, []),
        ({}, {"seed": 42, "weight_decay": 0.0}, []),  # the defaults
        ({}, {"dataloader_num_workers": 2, "dataloader_prefetch_factor": 4, "dataloader_pin_memory": False}, []),
        # Policies may follow evaluations; where the model is the best of what is saved, that counts.
        ({}, {"eval_strategy": "steps", "eval_steps": 2}, ["training.eval_steps", "training.eval_strategy"]),
        ({**BEST, "save_steps": 1}, {**BEST, "save_steps": 2}, ["training.save_steps"]),
        ({}, {"model": {"config": {"model_type": "gpt2"}}, "seed": 1, "max_steps": 5}, OTHERWISE),
    ],
)
def test_what_is_trained_otherwise_is_named_in_order(saved, now, expected) -> None:
    assert differences(written(**saved), written(**now)) == expected


def test_a_policy_is_the_same_in_every_form() -> None:
    forms = ("GroupDRO", {"class_path": "GroupDRO"}, {"class_path": "mixer.GroupDRO", "init_args": {"step_size": 0.01}})
    for form in forms:
        assert differences(written("GroupDRO"), written(form)) == []
    other = {"class_path": "GroupDRO", "init_args": {"step_size": 2}}
    assert differences(written("GroupDRO"), written(other)) == ["mixing.init_args.step_size"]


@pytest.mark.parametrize("text", ["", "model:\n  config:", "model: [\n", "model: {}\n", written() + "modell: 1\n"])
def test_what_is_no_recipe_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    with pytest.raises(ValueError):  # noqa: PT011 of the parser too
        read_recipe(path)


_RECIPE = "model: {config: {}}\nstreams: {a: {factory: x.y}}\ntraining: {output_dir: o}\n"


@pytest.mark.parametrize("line", ["mixing: {class_path: marks_itself.Policy}", "methods: [marks_itself.Method]"])
def test_a_class_of_a_package_that_is_not_loaded_is_refused_before_it_is(line, tmp_path, monkeypatch) -> None:
    (tmp_path / "marks_itself.py").write_text(f"open({str(tmp_path / 'mark')!r}, 'w').close()\nclass Policy: ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with refused("mixing.class_path" if "mixing" in line else "methods"):
        filled_in(_RECIPE + line)
    assert "marks_itself" not in sys.modules
    assert not (tmp_path / "mark").exists()


BASE = {
    "model": {"task": "causal-lm", "config": {"model_type": "llama"}},
    "streams": {
        name: {"data": {"path": f"{name}.jsonl"}, "format": {"class_path": "Text", "init_args": {"max_length": 77}}}
        for name in "ab"
    },
    "training": {"output_dir": "run", "use_cpu": True, "learning_rate": 0.25},
    "mixing": {"class_path": "Fixed", "init_args": {"weights": {"a": 1, "b": 2}, "unit": "tokens"}},
    "batch_size": {"class_path": "Ramp", "init_args": {"initial": 16, "final": 128, "over": 40, "unit": "samples"}},
    "objective": {"targets": ["a"], "bounds": {"b": 1.05}, "kind": "worst"},
    "probe": {"interval_steps": 7, "mode": "exact"},
    "budget": {"epochs": 3},
}


@pytest.fixture(scope="module")
def parser() -> ArgumentParser:
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--recipe", action="config")
    parser.add_class_arguments(Recipe)
    return parser


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"mixing": "Uniform"}, {"mixing.init_args.unit": "samples"}),
        ({"mixing.class_path": "Uniform"}, {"mixing.init_args.unit": "samples"}),
        ({"mixing": "Fixed"}, {"mixing.init_args.unit": "samples", "mixing.init_args.weights": None}),
        ({"mixing": "Uniform", "mixing.unit": "tokens"}, {"mixing.init_args.unit": "tokens"}),
        # One argument: all else stays.
        ({"mixing.unit": "samples"}, {"mixing.init_args.weights": {"a": 1.0, "b": 2.0}}),
        (
            {"batch_size": '{"class_path": "AdaBatch", "init_args": {"every": 5}}'},
            {"batch_size.init_args.unit": "epochs", "batch_size.init_args.initial": None},
        ),
        ({"objective": '{"targets": ["b"]}'}, {"objective.kind": "average", "objective.bounds": {}}),
        ({"objective": "b"}, {"objective": "b"}),
        ({"probe": '{"variance": true}'}, {"probe.interval_steps": None, "probe.mode": "auto"}),
        ({"budget": '{"samples": 30}'}, {"budget.epochs": None, "budget.samples": 30}),
        ({"streams.a.format": "Chat"}, {"streams.a.format.init_args.max_length": None}),
        ({"streams": '{"a": {"format": "Text"}}'}, {"streams.a.format.init_args.max_length": None}),
        ({"training.seed": "3"}, {"training.learning_rate": 0.25}),
        ({"training": "{seed: 3}"}, {"training.learning_rate": 0.25, "training.seed": 3}),
        ({"streams.a.data.exclude+": "x"}, {"streams.a.data.exclude": ["x"]}),
    ],
)
def test_nothing_of_a_former_value_is_kept(options, expected, parser, tmp_path) -> None:
    first, second = tmp_path / "first.yaml", tmp_path / "second.yaml"
    first.write_text(yaml.safe_dump(BASE))
    words = [word for option, value in options.items() for word in (f"--{option}", value)]
    given = given_in(Recipe, ["--recipe", str(first), *words], parser._option_string_actions)
    if not any("." in option for option in options):  # a second file has them too
        second.write_text(yaml.safe_dump({option: yaml.safe_load(value) for option, value in options.items()}))
        words = ["--recipe", str(first), "--recipe", str(second)]
        assert given_in(Recipe, words, parser._option_string_actions).fields == given.fields
    config = _parsed(parser, Recipe, given)
    for field, value in expected.items():
        assert functools.reduce(lambda part, name: part[name], field.split("."), config) == value, field
