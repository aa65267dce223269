"""`mixer train RECIPE.yaml`: a run by a recipe, or a look at its data."""

import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from jsonargparse import ArgumentParser, Namespace
from rich.console import Console

from mixer.commands import Command, build_recipe
from mixer.data.preview import preview
from mixer.recipe import RECIPE_FIELDS, Recipe
from mixer.trainer import MixingTrainer


def train() -> Command:
    """Gives the command that trains by a recipe.

    Returns:
        The command.
    """
    parser = ArgumentParser(
        description="Trains by a recipe. Every field can be overridden: --training.learning_rate 1e-3.",
        usage="mixer train RECIPE.yaml [--dry_run] [--resume auto|must|never|PATH] [--FIELD VALUE ...]",
        allow_abbrev=False,
    )
    parser.add_argument("--recipe", action="config", help="Path of the recipe, a YAML file.")
    parser.add_argument(
        "--resume",
        type=str,
        default=None,
        metavar="auto|must|never|PATH",
        help="Go on from the newest whole checkpoint in training.output_dir and start anew where there is none (auto) "
        "or refuse to (must), start anew in any case (never), or go on from a checkpoint's folder. Default: "
        "training.resume_from_checkpoint.",
    )
    parser.add_argument(
        "--dry_run", action="store_true", help="Build everything, show the streams and a sample of each, train nothing."
    )
    parser.add_class_arguments(Recipe)
    return Command(parser, partial(_train, parser), "train by a recipe", recipe_class=Recipe)


def _train(parser: ArgumentParser, config: Namespace) -> None:
    resume, is_dry = config.pop("resume"), config.pop("dry_run")  # how it was launched is no part of what is trained
    trainer = build_recipe(Recipe, parser, config, RECIPE_FIELDS, otherwise="training").build()
    if is_dry:
        _show(trainer)
        return
    if trainer.is_world_process_zero():
        path = Path(str(trainer.args.output_dir)) / "recipe.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        parser.save(config, str(path), overwrite=True, skip_validation=True)
    trainer.train(resume_from_checkpoint=_checkpoint(trainer, resume))
    trainer.save_model()


def _show(trainer: MixingTrainer) -> None:
    if trainer.is_world_process_zero():
        evaluation = trainer.eval_dataset if isinstance(trainer.eval_dataset, Mapping) else {}
        shown = preview(trainer.streams, evaluation, trainer.mixing.weights, trainer.processing_class)
        Console(width=None if sys.stdout.isatty() else 120).print(shown)


def _checkpoint(trainer: MixingTrainer, resume: str | None) -> str | bool | None:
    configured: str | None = trainer.args.resume_from_checkpoint
    if resume is None:
        return True if configured in ("true", "True") else configured
    if configured is not None:
        raise ValueError(
            f"--resume {resume} and training.resume_from_checkpoint={configured} both say from where to go on: give "
            "one of the two."
        )
    if resume in ("must", "never"):
        return resume == "must"
    if resume != "auto":
        return resume
    checkpoint = trainer.newest_checkpoint()
    if trainer.is_world_process_zero():
        found = "No whole checkpoint yet: starts anew" if checkpoint is None else f"Goes on from {checkpoint}"
        print(f"mixer train: {found} (--resume auto, {trainer.args.output_dir}).", file=sys.stderr)  # noqa: T201
    return checkpoint
