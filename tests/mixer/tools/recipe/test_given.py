"""What is given anew on the command line, or in a second recipe, starts from its defaults."""

import functools

import pytest
import yaml
from jsonargparse import ArgumentParser

from mixer.tools.cli.entry import _parsed
from mixer.tools.recipe.given import given_in
from mixer.tools.recipe.recipe import Recipe

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
