"""`mixer fork RUN --at STEP`: what if the mixture had been another one from a step on?"""

from pathlib import Path

from jsonargparse import ArgumentParser, Namespace

from mixer.checkpoint.choosing import checkpoint_at
from mixer.distributed.launch import build_together
from mixer.tools.cli.command import Command, build_recipe, recipe_command
from mixer.tools.cli.train import OVERWRITE, check_free, run_recipe, show_result
from mixer.tools.console import only_json
from mixer.tools.recipe.recipe import Recipe
from mixer.trainer.trainer import MixingTrainer
from mixer.utils.resume_hint import resumed_with


def fork() -> Command:
    """Continue from a checkpoint of a run with another mixture."""
    return recipe_command(
        Recipe,
        _fork,
        description="Continues from a checkpoint of a run, in a folder of its own, with the same order in every stream "
        "and the same random numbers: only what an option changes differs, such as --mixing.",
        usage="--at N [--overwrite]",
        example="mixer fork runs/demo/uniform --at 120 --mixing Proportional --training.output_dir runs/demo/forked",
        options={
            "--at": {"type": int, "metavar": "N", "help": "A step of the run that has a checkpoint."},
            "--overwrite": OVERWRITE,
        },
    )


def _fork(parser: ArgumentParser, config: Namespace, own: Namespace) -> None:
    run = recorded_run(config, own.at)
    if Path(config.training.output_dir).resolve() == run.resolve():
        config.training.output_dir = f"{run}-fork-{own.at}"
    config.training.resume_from_checkpoint = None
    folder = Path(config.training.output_dir)
    goes_on = f"mixer train {folder} --resume auto"

    def build() -> MixingTrainer:
        check_free(folder, "never" if own.overwrite else None, goes_on)
        return build_recipe(Recipe, parser, config).build()

    with only_json(own.json):
        trainer = build_together(parser, config, None, build)
        recipe = parser.dump(config, skip_validation=True)
        with resumed_with(goes_on):
            run_recipe(trainer, recipe, lambda: trainer.fork(run, own.at))
    show_result(trainer, own.json)


def recorded_run(config: Namespace, at: int | None) -> Path:
    """Finds the run whose recipe a command was given, before the model is built.

    Args:
        config: The recipe's fields, and `recipe`.
        at: A step of the run.

    Raises:
        ValueError: If there is no run beside the recipe, or no checkpoint of that step.
    """
    run = Path(str(config.recipe[0])).parent if config.recipe else Path()
    if not (run / "ledger").is_dir():
        raise ValueError(f"{run} is not the folder of a run with a recipe.yaml. In Python, there is trainer.fork.")
    if at is None:
        raise ValueError("give --at N, a step of the run that has a checkpoint.")
    checkpoint_at(run, at)
    return run
