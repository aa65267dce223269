"""Runs whose recipes say that they differ in more than their mixture."""

import functools
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from mixer.tools.analysis.fit.recipes import check_recipes
from tests.refusals import refused

RECIPE: dict[str, Any] = {
    "model": {"config": {"hidden_size": 32}},
    "streams": {"a.b": {"factory": "tasks.a", "arguments": {"seed": 1}, "seed": None}, "c": {"factory": "tasks.c"}},
    "training": {"output_dir": "runs/1", "learning_rate": 0.01, "seed": 42},
    "mixing": "Uniform",
    "batch_size": 10,
}


def written(folder: Path, *changes: dict[str, Any] | None) -> dict[str, Path]:
    """Writes a recipe each into folders, with some fields changed; none for `None`."""
    folders = {f"run-{number}": folder / f"run-{number}" for number in range(len(changes))}
    for path, fields in zip(folders.values(), changes, strict=True):
        path.mkdir(parents=True)
        recipe = deepcopy(RECIPE)
        for field, value in (fields or {}).items():
            *parents, last = field.split("/")
            functools.reduce(lambda place, parent: place.setdefault(parent, {}), parents, recipe)[last] = value
        if fields is not None:
            (path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    return folders


def test_what_runs_may_differ_in(tmp_path: Path) -> None:
    of_the_mixture = {"mixing": {"a.b": 1, "c": 2}, "streams/c/weight": 2.0, "streams/c/seed": 7}
    of_the_mixture |= {"groupings": [{"name": "language"}]}
    of_the_mixture |= {"probe": {"interval_steps": 3}, "budget": {"samples": 600}}  # ledgers say what budgets were
    training = {"output_dir": "runs/2", "seed": 1, "data_seed": 2, "max_steps": 60, "optim_args": None}
    training |= {"logging_steps": 5, "report_to": "wandb", "run_name": "x", "save_steps": 3}
    training |= {"eval_strategy": "steps", "eval_steps": 3, "eval_on_start": True, "dataloader_num_workers": 2}
    training |= {"dataloader_prefetch_factor": 4, "dataloader_pin_memory": False, "dataloader_persistent_workers": True}
    # The defaults, which older versions did not know and write.
    defaults = {"training/nonfinite": "warn", "training/torch_compile": False, "streams/c/groups": {}}
    changes = {**of_the_mixture, **{f"training/{name}": value for name, value in training.items()}}
    assert check_recipes(written(tmp_path, {}, changes, {"mixing": "GroupDRO"}, defaults), allow_different=False) == []


def test_what_they_may_not_differ_in_unless_it_is_allowed(tmp_path: Path) -> None:
    changes = {"batch_size": 20, "conflict": "pcgrad", "model/config/hidden_size": 64, "model/name_or_path": "x" * 99}
    changes |= {"streams/a.b/arguments/seed": 2, "training/learning_rate": 0.02}
    folders = written(tmp_path, {}, changes, {}, None)
    with refused("runs") as error:
        check_recipes(folders, allow_different=False)
    fields = [text.split(" (")[0] for text in error.value.found]
    assert fields == [name if name[0] != "s" else "streams.a.b.arguments.seed" for name in map(dotted, changes)]
    assert error.value.found[0] == "batch_size (10 in run-0, 20 in run-1)"
    notes = check_recipes(folders, allow_different=True)
    assert notes[0].startswith("The recipe of run-3 was not compared")
    assert notes[1].startswith("Recipes differ in more than the mixture, which may change losses: ")
    (note,) = check_recipes(written(tmp_path / "none", None, None), allow_different=False)
    assert "The recipe of any run was not compared" in note


def dotted(field: str) -> str:
    return field.replace("/", ".")


def test_a_recipe_with_what_cannot_be_had_here_is_compared_as_it_is_written(tmp_path: Path) -> None:
    other = {"mixing": {"class_path": "somewhere.Else"}}
    assert check_recipes(written(tmp_path, {}, other), allow_different=False) == []
    with refused("runs", found=["batch_size (10 in run-0, 20 in run-1)"]):
        check_recipes(written(tmp_path / "more", other, {"batch_size": 20}, {}), allow_different=False)


@pytest.mark.parametrize("text", ["a: [1", "\x00"])
def test_a_recipe_that_cannot_be_read_is_named(text: str, tmp_path: Path) -> None:
    folders = written(tmp_path, {}, {})
    (folders["run-1"] / "recipe.yaml").write_text(text)
    with refused(str(folders["run-1"] / "recipe.yaml")):
        check_recipes(folders, allow_different=False)
