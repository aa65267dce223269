"""The last line of a command that trains: what ended the run, its best checkpoint, and what to do next."""

from typing import Any

from transformers import EarlyStoppingCallback

from mixer.trainer.trainer import MixingTrainer
from mixer.utils.text import clock_text


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
