"""`mixer train RECIPE.yaml`: trains by a recipe, or previews its data."""

import contextlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser, Namespace
from transformers import EarlyStoppingCallback

from mixer.checkpoint.checkpoint_files import is_inside, lasting
from mixer.checkpoint.choosing import as_request, replaceable
from mixer.distributed.launch import build_together
from mixer.ledger.folder import read_note
from mixer.tools.analysis.inspect.examples import Decoder
from mixer.tools.analysis.inspect.inspect_view import preview
from mixer.tools.cli.command import Command, build_recipe, recipe_command
from mixer.tools.console import console, only_json, show
from mixer.tools.recipe.recipe import Recipe
from mixer.tools.records.comparison import comparison
from mixer.tools.records.run import Run
from mixer.trainer.trainer import MixingTrainer
from mixer.utils.errors import InvalidValueError
from mixer.utils.files import write_text
from mixer.utils.resume_hint import resumed_with
from mixer.utils.text import clock_text, print_lines

_RESUME = (
    "Resume from the newest complete checkpoint in training.output_dir; without one, start anew (auto) or stop with an "
    "error (must). Always start anew (never, or --overwrite). Or resume from the folder of a checkpoint (PATH). "
    "Default: training.resume_from_checkpoint, else start anew, and stop with an error if there is a run already."
)
TINY = "Train a miniature of the recipe: the file of the same name in the folder `tiny` beside it overrides fields."
_OVERWRITE = "Replace the run in training.output_dir by a new one."
OVERWRITE = {"action": "store_true", "help": _OVERWRITE}
_DRY_RUN = "Build everything and show the streams with a sample of each; do not train."


def train() -> Command:
    """Train from a recipe."""
    return recipe_command(
        Recipe,
        _run,
        description="Trains from a recipe. Override any field by an option: --training.learning_rate 1e-3.",
        usage="[--dry_run] [--tiny] [--resume auto|must|never|PATH] [--overwrite]",
        example="mixer train recipes/demo.yaml --mixing Uniform --training.output_dir runs/uniform",
        options={
            "--resume": {"type": str, "metavar": "auto|must|never|PATH", "help": _RESUME},
            "--overwrite": OVERWRITE,
            "--tiny": {"action": "store_true", "help": TINY},
            "--dry_run": {"action": "store_true", "help": _DRY_RUN},
        },
    )


def _run(parser: ArgumentParser, config: Namespace, own: Namespace) -> None:
    if own.json and own.dry_run:
        raise ValueError("--dry_run has no JSON output: use mixer inspect RECIPE.yaml --json in scripts.")
    folder, resume = Path(config.training.output_dir), resume_of(own)

    def build() -> MixingTrainer:
        if not own.dry_run:
            check_free(folder, as_request(config.training.resume_from_checkpoint) or resume, "--resume auto")
        return build_recipe(Recipe, parser, config).build()

    with only_json(own.json):
        trainer = build_together(parser, config, resume, build)
        if own.dry_run:
            _show(trainer, config.model.task)
            return
        recipe = parser.dump(config, skip_validation=True)
        with resumed_with("--resume auto"):
            run_recipe(trainer, recipe, lambda: trainer.train(resume_from_checkpoint=_checkpoint(trainer, resume)))
    show_result(trainer, own.json)


def resume_of(own: Namespace) -> str | None:
    """Returns what `--resume` says, or `--overwrite` in its place.

    Raises:
        ValueError: If both are given and do not mean the same.
    """
    resume: str | None = own.resume
    if own.overwrite and resume not in (None, "never"):
        raise ValueError(f"--overwrite begins a new run and --resume {resume} continues one: give one of the two.")
    return "never" if own.overwrite else resume


def check_free(folder: Path, resume: str | bool | None, goes_on: str) -> None:
    """Refuses to begin a run in the place of another one.

    Args:
        folder: The output folder.
        resume: A word of `--resume`, or what `train` resumes from.
        goes_on: The option or the command that goes on with the run there.

    Raises:
        ValueError: If there is a run that was finished, or has checkpoints.
    """
    is_own = isinstance(resume, str) and is_inside(Path(resume), folder)
    found = None if is_own or resume in (True, "auto", "must", "never") else _run_in(folder)
    if found is None:
        return
    hint = f"Continue it ({goes_on}), replace it (--overwrite), or set another folder."
    text = f"The folder {folder} already holds a run, {found}. {hint}"
    raise InvalidValueError.about("training.output_dir", text, found=found, hint=hint)


def _run_in(folder: Path) -> str | None:
    if checkpoints := replaceable(folder):
        return f"whose last checkpoint is {lasting(checkpoints[0]).name}"
    with contextlib.suppress(ValueError):  # no run
        return "which has finished" if read_note(folder).get("ended") == "finished" else None
    return None


def show_result(trainer: MixingTrainer, is_json: bool) -> None:
    """Prints a summary of a run that has ended; its last line goes to stderr.

    Args:
        trainer: The trainer.
        is_json: Whether to print JSON.
    """
    if trainer.is_world_process_zero():
        folder = Path(str(trainer.args.output_dir))
        result = Run(folder)
        content = {"output_dir": folder, **result.as_data()}
        show(lambda: content, lambda: comparison([result]), is_json)
        print_lines(f"mixer: The run {ending_of(trainer)}", file=sys.stderr)


def run_recipe(trainer: MixingTrainer, recipe: str, train: Callable[[], Any]) -> None:
    """Trains, and keeps the recipe and the model in the output folder.

    Args:
        trainer: The trainer.
        recipe: The recipe as text.
        train: Trains it.
    """
    with trainer.holding_output():
        if trainer.is_world_process_zero():
            write_text(Path(str(trainer.args.output_dir)) / "recipe.yaml", recipe)
        train()
        if trainer.is_fsdp_enabled:  # checkpoints may be sharded; the final model is saved whole
            trainer.accelerator.state.fsdp_plugin.set_state_dict_type("FULL_STATE_DICT")
        trainer.save_model()


def _show(trainer: MixingTrainer, task: str) -> None:
    if trainer.is_world_process_zero():
        evaluation = trainer.eval_dataset if isinstance(trainer.eval_dataset, Mapping) else {}
        decoder = Decoder(trainer.processing_class, task)
        console().print(preview(trainer.streams, evaluation, trainer.mixing.weights, decoder))


def _checkpoint(trainer: MixingTrainer, resume: str | None) -> str | bool | None:
    configured: str | None = trainer.args.resume_from_checkpoint
    if resume is None:
        return as_request(configured)
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
        print_lines(f"mixer train: {text} (--resume auto, {trainer.args.output_dir}).", file=sys.stderr)
    return checkpoint


def ending_of(trainer: MixingTrainer) -> str:
    """Describes the end of a run.

    Args:
        trainer: The trainer of a run that has ended.
    """
    args, state, clock = trainer.args, trainer.state, trainer.mixing.clock
    done = clock_text(clock.done, clock.budget.limits)
    if clock.progress >= 1.0:
        ended = f"ended with its budget, {done}"
    else:
        ended = f"ended early, at {done}, by {_stopper(trainer)}"
    if state.best_model_checkpoint is not None:
        metric = args.metric_for_best_model or "loss"
        ended += f". Best checkpoint: {state.best_model_checkpoint}, with {metric} {state.best_metric:.4g}"
        ended += ", which is the saved model" if args.load_best_model_at_end else ", while the saved model is the last"
    return f"{ended}. Next: mixer report {args.output_dir}"


def _stopper(trainer: Any) -> str:
    for callback in trainer.callback_handler.callbacks:
        if isinstance(callback, EarlyStoppingCallback):
            patience = callback.early_stopping_patience
            if callback.early_stopping_patience_counter >= patience:
                return f"early stopping, after {patience} evaluations without a better one"
    return "a callback"
