"""`mixer train RECIPE.yaml`: trains by a recipe, or previews its data."""

import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from jsonargparse import ArgumentParser, Namespace

from mixer.analysis.inspect.examples import Decoder
from mixer.analysis.inspect.view import preview
from mixer.cli.command import Command, build_recipe
from mixer.distributed.launch import build_together
from mixer.ledger.summary import comparison, summarise
from mixer.recipe.recipe import RECIPE_FIELDS, Recipe
from mixer.trainer.trainer import MixingTrainer
from mixer.utils.console import add_json, console, only_json, print_json
from mixer.utils.files import write_text


def train() -> Command:
    """Creates the command `mixer train`."""
    parser = ArgumentParser(
        description="Trains by a recipe. Override any field by an option: --training.learning_rate 1e-3.",
        usage="mixer train RECIPE.yaml [--dry_run] [--resume auto|must|never|PATH] [--FIELD VALUE ...]",
        allow_abbrev=False,
    )
    parser.add_argument("--recipe", action="config", help="Path of the recipe, a YAML file.")
    parser.add_argument(
        "--resume",
        type=str,
        default=None,
        metavar="auto|must|never|PATH",
        help="Resume from the newest complete checkpoint in training.output_dir; without one, start anew (auto) or "
        "stop with an error (must). Always start anew (never). Or resume from the folder of a checkpoint (PATH). "
        "Default: training.resume_from_checkpoint.",
    )
    parser.add_argument(
        "--dry_run",
        action="store_true",
        help="Build everything and show the streams with a sample of each; do not train.",
    )
    add_json(parser)
    parser.add_class_arguments(Recipe)
    example = "mixer train recipes/demo.yaml --mixing Uniform --training.output_dir runs/uniform"
    return Command(parser, partial(_run, parser), "train by a recipe", Recipe, example)


def _run(parser: ArgumentParser, config: Namespace) -> None:
    is_json = config.pop("json")
    if is_json and config.dry_run:
        raise ValueError("--dry_run has no JSON output: use mixer inspect RECIPE.yaml --json in scripts.")
    with only_json(is_json):
        trainer = _train(parser, config)
    if trainer is not None and trainer.is_world_process_zero():
        _show_result(Path(str(trainer.args.output_dir)), is_json)


def _train(parser: ArgumentParser, config: Namespace) -> MixingTrainer | None:
    resume, is_dry = config.pop("resume"), config.pop("dry_run")  # not part of the recipe that is saved

    def build() -> MixingTrainer:
        return build_recipe(Recipe, parser, config, RECIPE_FIELDS, otherwise="training").build()

    trainer = build_together(parser, config, resume, build)
    if is_dry:
        _show(trainer, config.model.task)
        return None
    with trainer.holding_output():
        if trainer.is_world_process_zero():
            trainer.recipe_text = parser.dump(config, skip_validation=True)
            write_text(Path(str(trainer.args.output_dir)) / "recipe.yaml", trainer.recipe_text)
        trainer.train(resume_from_checkpoint=_checkpoint(trainer, resume))
        if trainer.is_fsdp_enabled:  # checkpoints may be sharded; the final model is saved whole
            trainer.accelerator.state.fsdp_plugin.set_state_dict_type("FULL_STATE_DICT")
        trainer.save_model()
    return trainer


def _show_result(folder: Path, is_json: bool) -> None:
    result = summarise(folder)
    if is_json:
        print_json({"output_dir": folder, **result.as_data()})
    else:
        console().print(comparison([result]))


def _show(trainer: MixingTrainer, task: str) -> None:
    if trainer.is_world_process_zero():
        evaluation = trainer.eval_dataset if isinstance(trainer.eval_dataset, Mapping) else {}
        decoder = Decoder(trainer.processing_class, task)
        console().print(preview(trainer.streams, evaluation, trainer.mixing.weights, decoder))


def _checkpoint(trainer: MixingTrainer, resume: str | None) -> str | bool | None:
    configured: str | None = trainer.args.resume_from_checkpoint
    if resume is None:
        return True if configured in ("true", "True") else configured
    if configured is not None:
        raise ValueError(
            f"--resume {resume} and training.resume_from_checkpoint={configured} both choose a checkpoint: give one of "
            "the two."
        )
    if resume in ("must", "never"):
        return resume == "must"
    if resume != "auto":
        return resume
    checkpoint = trainer.newest_checkpoint()
    if trainer.is_world_process_zero():
        text = "No complete checkpoint yet: starts anew" if checkpoint is None else f"Resumes from {checkpoint}"
        print(f"mixer train: {text} (--resume auto, {trainer.args.output_dir}).", file=sys.stderr)  # noqa: T201
    return checkpoint
