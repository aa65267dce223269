"""Short runs of recipes that a command trains once."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import torch.distributed as dist
from transformers import TrainingArguments

from mixer.ledger.progress.bar import MixturePrinter
from mixer.recipe.recipe import Recipe
from mixer.recipe.recipe_files import differences, read_recipe
from mixer.utils.files import write_text

FINISHED_FILE = "finished"
RECIPE_FILE = "recipe.yaml"
_MOST_NAMED = 4
_Result = TypeVar("_Result")


@contextmanager
def without_warnings(is_quiet: bool) -> Iterator[None]:
    """Leaves out the warnings of a run whose like has shown them before.

    Args:
        is_quiet: Whether one has.
    """
    level = logging.root.manager.disable
    logging.disable(logging.WARNING if is_quiet else level)
    try:
        yield
    finally:
        logging.disable(level)


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


def finish(step: Step) -> None:
    """Trains a run to its end, without its own log; does nothing if it is finished.

    Args:
        step: The run.

    Raises:
        ValueError: If the run was started with another recipe.
    """
    training = step.recipe.training
    if on_main(training, lambda: _begin(step)):
        return
    trainer = step.recipe.build()
    trainer.remove_callback(MixturePrinter)
    trainer.train()
    on_main(training, lambda: write_text(step.folder / FINISHED_FILE, ""))
    trainer.accelerator.free_memory()


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


def _begin(step: Step) -> bool:
    """Says whether a run is finished; writes the recipe of another one beside it."""
    recipe, is_finished = step.folder / RECIPE_FILE, (step.folder / FINISHED_FILE).exists()
    if recipe.exists() and is_finished:  # the folder of an unfinished run may be reused with another recipe
        _check_same(step, recipe)
    if not is_finished:
        write_text(recipe, step.yaml)
    return is_finished


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
