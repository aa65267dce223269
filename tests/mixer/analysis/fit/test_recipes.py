"""Runs whose recipes say that they differ in more than their mixture."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from mixer.analysis.fit.recipes import check_recipes

RECIPE: dict[str, Any] = {
    "model": {"config": {"hidden_size": 32}},
    "streams": {"a.b": {"factory": "tasks.a", "arguments": {"seed": 1}, "seed": None}, "c": {"factory": "tasks.c"}},
    "training": {"output_dir": "runs/1", "learning_rate": 0.01, "seed": 42},
    "mixing": "Uniform",
    "batch_size": 10,
}


def written(folder: Path, *changes: dict[str, Any] | None) -> dict[str, Path]:
    """Writes a recipe each into folders, with some fields changed; none for `None`."""
    folders = {}
    for number, fields in enumerate(changes):
        path = folders[f"run-{number}"] = folder / f"run-{number}"
        path.mkdir(parents=True)
        recipe = deepcopy(RECIPE)
        for field, value in (fields or {}).items():
            *parents, last = field.split("/")
            place = recipe
            for parent in parents:
                place = place.setdefault(parent, {})
            place[last] = value
        if fields is not None:
            (path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    return folders


def test_what_runs_may_differ_in(tmp_path: Path) -> None:
    of_the_mixture = {
        "mixing": {"a.b": 1, "c": 2},
        "streams/c/weight": 2.0,
        "streams/c/seed": 7,
        "groupings": [{"name": "language"}],
        "reference_model": "runs/reference",
        "probe": {"interval_steps": 3},
        "budget": {"samples": 600},  # compared by what ledgers say, as steps are
    }
    training = {"output_dir": "runs/2", "seed": 1, "data_seed": 2, "max_steps": 60, "optim_args": None}
    training |= {"logging_steps": 5, "report_to": "wandb", "run_name": "x", "save_steps": 3}
    training |= {"eval_strategy": "steps", "eval_steps": 3, "eval_on_start": True, "dataloader_num_workers": 2}
    training |= {"dataloader_prefetch_factor": 4, "dataloader_pin_memory": False}
    training |= {"dataloader_persistent_workers": True}
    # The defaults, which older versions did not know and write.
    defaults = {"nonfinite": "warn", "drawing": "exact", "training/torch_compile": False, "streams/c/groups": {}}
    changes = {**of_the_mixture, **{f"training/{name}": value for name, value in training.items()}}
    assert check_recipes(written(tmp_path, {}, changes, {"mixing": "DoReMi"}, defaults), allow_different=False) == []


def test_what_they_may_not_differ_in_unless_it_is_allowed(tmp_path: Path) -> None:
    changes = {
        "batch_size": 20,
        "conflict": "pcgrad",
        "model/config/hidden_size": 64,
        "model/name_or_path": "x" * 99,
        "streams/a.b/arguments/seed": 2,  # other data
        "training/learning_rate": 0.02,
    }
    named = (
        r"batch_size \(10, but 20 in run-1\); conflict \(nothing, but 'pcgrad' in run-1\); model.config.hidden_size "
        r"\(32, but 64 in run-1\); .* but 'x{59}… in run-1\); streams.a.b.arguments.seed \(1, but 2 in run-1\); "
        r"training.learning_rate \(0.01, but 0.02 in run-1\)\."
    )
    folders = written(tmp_path, {}, changes, {}, None)
    with pytest.raises(ValueError, match=rf"differ in: {named} Leave .* with --allow-different-recipes\.$"):
        check_recipes(folders, allow_different=False)
    notes = check_recipes(folders, allow_different=True)
    assert notes[0].startswith("The recipe of run-3 was not compared")
    assert notes[1].startswith("Recipes differ in more than the mixture, which may change losses: ")


def test_today_s_form_of_a_recipe_is_no_difference_to_that_of_an_older_version(tmp_path: Path) -> None:
    from jsonargparse import ArgumentParser

    from mixer.recipe.recipe import Recipe

    text = (Path(__file__).parents[4] / "recipes" / "demo.yaml").read_text()
    parser = ArgumentParser()
    parser.add_class_arguments(Recipe)
    now = yaml.safe_load(parser.dump(parser.parse_string(text), skip_validation=True))
    older = deepcopy(now)
    del older["nonfinite"], older["drawing"], older["training"]["torch_compile"]
    folders = written(tmp_path, {}, {}, {})
    for folder, written_as in zip(folders.values(), (yaml.safe_dump(now), yaml.safe_dump(older), text), strict=True):
        (folder / "recipe.yaml").write_text(written_as)
    assert check_recipes(folders, allow_different=False) == []


def test_a_recipe_with_what_cannot_be_had_here_is_compared_as_it_is_written(tmp_path: Path) -> None:
    other = {"mixing": {"class_path": "somewhere.Else"}}
    assert check_recipes(written(tmp_path, {}, other), allow_different=False) == []
    with pytest.raises(ValueError, match=r"batch_size \(10, but 20 in run-1\)"):
        check_recipes(written(tmp_path / "more", other, {"batch_size": 20}, {}), allow_different=False)


def test_without_recipes_it_is_said_that_nothing_was_checked(tmp_path: Path) -> None:
    (note,) = check_recipes(written(tmp_path, None, None), allow_different=False)
    assert "The recipe of any run was not compared" in note


@pytest.mark.parametrize("text", ["a: [1", "\x00"])
def test_a_recipe_that_cannot_be_read_is_named(text: str, tmp_path: Path) -> None:
    folders = written(tmp_path, {}, {})
    (folders["run-1"] / "recipe.yaml").write_text(text)
    with pytest.raises(ValueError, match=r"run-1/recipe.yaml cannot be read .*mend it, or remove it"):
        check_recipes(folders, allow_different=False)
