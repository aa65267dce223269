"""`mixer value RUN --at STEP`: what each source was worth, by short forks that leave one out."""

from functools import partial
from pathlib import Path

from jsonargparse import ArgumentParser, Namespace

from mixer.policies import Fixed
from mixer.tools.analysis.value import source_values
from mixer.tools.cli.command import Command, build_recipe, recipe_command
from mixer.tools.cli.fork import recorded_run
from mixer.tools.console import only_json, show, table_of
from mixer.tools.recipe.recipe import Recipe
from mixer.tools.report.values import shown_values
from mixer.trainer.trainer import MixingTrainer


def value() -> Command:
    """Measure what each source is worth."""
    return recipe_command(
        Recipe,
        _value,
        description="Continues from a checkpoint of a run for some steps: with its mixture, then without each source "
        "in turn, on other rows in each repeat. Shows for each source and evaluation set how much the source lowered "
        "the loss compared with the others in its place, with a 95 % interval.",
        usage="--at N [--steps N] [--repeats N] [--json]",
        example="mixer value runs/demo/uniform --at 96 --steps 16",
        options={
            "--at": {"type": int, "metavar": "N", "help": "A step of the run that has a checkpoint."},
            "--steps": {"type": int, "metavar": "N", "help": "Steps of each fork. Default: a tenth of the run."},
            "--repeats": {"type": int, "default": 3, "metavar": "N", "help": "Repeats on other rows, 2 or more."},
        },
    )


def _value(parser: ArgumentParser, config: Namespace, own: Namespace) -> None:
    run = recorded_run(config, own.at)
    with only_json(own.json):
        values = source_values(partial(_built, parser, config), run, own.at, own.steps, own.repeats)
    title = f"Change of the loss from step {own.at} by each source, in the place of the others (95 %)"
    show(lambda: {"run": run, "at": own.at, "values": values}, lambda: table_of(title, shown_values(values)), own.json)


def _built(parser: ArgumentParser, config: Namespace, policy: Fixed, folder: Path) -> MixingTrainer:
    own = config.clone()
    training = own.training
    training.output_dir, training.resume_from_checkpoint = str(folder), None
    training.save_strategy = training.eval_strategy = "no"
    training.load_best_model_at_end = training.eval_on_start = training.push_to_hub = False
    training.save_best_of_each = False
    recipe = build_recipe(Recipe, parser, own)
    recipe.mixing = policy
    return recipe.build()
