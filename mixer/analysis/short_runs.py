"""Short runs of recipes that a command trains once."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import torch.distributed as dist
from transformers import TrainingArguments

from mixer.recipe.recipe import Recipe
from mixer.recipe.recipe_files import differences, read_recipe
from mixer.trainer.trainer import MixingTrainer
from mixer.utils.files import read_json, write_json, write_text

FINISHED_FILE = "finished.json"
RECIPE_FILE = "recipe.yaml"
_RESULTS = (FINISHED_FILE, "checkpoint-*")
_MOST_NAMED = 4
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Step:
    """A run of a command. Its model is not kept.

    Args:
        recipe: The recipe; it trains into `training.output_dir`.
        yaml: The recipe as YAML, for `mixer train`.
    """

    recipe: Recipe
    yaml: str

    @property
    def folder(self) -> Path:
        """The run's output folder."""
        return Path(str(self.recipe.training.output_dir))


def finish(step: Step, gather: Callable[[MixingTrainer], dict[str, Any]]) -> dict[str, Any]:
    """Trains a run to its end, from its newest checkpoint if there is one; does nothing if it is finished.

    Args:
        step: The run.
        gather: Returns the results of the trained run as plain data.

    Returns:
        These results; those on disk, if the run had finished before.

    Raises:
        ValueError: If the run was started with another recipe.
    """
    training, file = step.recipe.training, step.folder / FINISHED_FILE
    results = on_main(training, lambda: _begin(step))
    if results is not None:
        return results
    trainer = step.recipe.build()
    trainer.train(resume_from_checkpoint=trainer.newest_checkpoint())
    results = gather(trainer)
    on_main(training, lambda: write_json(file, results, sealed=True))
    trainer.accelerator.free_memory()
    return results


def on_main(training: TrainingArguments, work: Callable[[], _Result]) -> _Result:
    """Runs work on the main process and returns its result on all ranks; all ranks must call it.

    Args:
        training: The training arguments.
        work: Reads or writes files.

    Raises:
        ValueError: On all ranks, if the work failed.
    """
    outcome: list[Any] = [None, None]  # result, error
    if training.process_index == 0:
        try:
            outcome[0] = work()
        except (OSError, ValueError) as error:
            outcome[1] = str(error)
    if training.world_size > 1:
        dist.broadcast_object_list(outcome, src=0, device=training.device)
    result, failure = outcome
    if failure is not None:
        raise ValueError(failure)
    return cast(_Result, result)


def _begin(step: Step) -> dict[str, Any] | None:
    """Returns the results of a finished run; otherwise writes its recipe beside it and returns `None`."""
    recipe, finished = step.folder / RECIPE_FILE, step.folder / FINISHED_FILE
    # A folder without results may be reused with another recipe.
    if recipe.exists() and any(path for results in _RESULTS for path in step.folder.glob(results)):
        _check_same(step, recipe)
    if not finished.exists():
        write_text(recipe, step.yaml)
        return None
    try:
        return read_json(finished)
    except ValueError:
        raise ValueError(
            f"training.output_dir: {finished} cannot be read, so the results of that run are unknown. Delete that file "
            "to resume from its newest checkpoint; without one it starts over."
        ) from None


def _check_same(step: Step, recipe: Path) -> None:
    try:
        different = differences(read_recipe(recipe), step.yaml)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"training.output_dir: {recipe} cannot be read ({error}), so the recipe of {step.folder} is unknown. If it "
            "was the same recipe, delete that file to continue; otherwise set another training.output_dir."
        ) from None
    if different:
        named = ", ".join(different[:_MOST_NAMED]) + (", ..." if len(different) > _MOST_NAMED else "")
        raise ValueError(
            f"training.output_dir: {step.folder} was trained with another recipe, which differs in {named}. Use that "
            "recipe, or set another training.output_dir to start a new run."
        )
