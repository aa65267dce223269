"""What this package overrides or uses of the Trainer beyond its documented interface."""

from pathlib import Path
from typing import Any

import transformers
from packaging.version import Version
from torch import Tensor
from transformers import Trainer

# The lowest and the highest version that the names below were compared with.
CHECKED_WITH = ("5.19.0", "5.23.0")

OVERRIDDEN = {
    "_determine_best_metric": "a metric that is not finite chooses no model",
    "_finalize_training": "the whole run is summed up, its part before a checkpoint too; a signal keeps checkpoints",
    "_get_collator_with_removed_columns": "a drop-in class may keep all columns, wherever rows are collated",
    "_get_grad_norm": "policies and ledger need the norm, which no callback gets",
    "_get_num_items_in_batch": "an evaluation counts the loss terms that a batch has",
    "_init_training_state": "a resumed run begins in the epoch of its data clock",
    "_issue_warnings_after_load": "weights that loading by name has left out are converted, or refused",
    "_load_optimizer_and_scheduler": "another optimizer than that of the checkpoint is refused by name",
    "_maybe_log_save_evaluate": "ranks agree on what callbacks ask for before any of them acts",
    "_report_to_hp_search": "a trial is pruned on all ranks",
    "_run_epoch": "the data clock ends an epoch, not a number of steps",
    "_save_checkpoint": "the mixture is part of a checkpoint, which is marked once all ranks have written it",
}
USED = {
    "_get_output_dir": "a trial has a folder of its own",
    "_globalstep_last_logged": "saved and restored, so that a resumed run logs the same",
    "_initial_global_step": "a resumed run counts from its very start",
    "_initial_num_input_tokens_seen": "a resumed run counts from its very start",
    "_load_rng_state": "for the end of an epoch that a checkpoint has cut off",
    "_loss_shifts_labels": "whether the first label of a row is no loss term",
    "_prepare_inputs": "forwards beside the training see what a training step sees",
    "_push_from_checkpoint": "a checkpoint is pushed once it is complete",
    "_remove_unused_columns": "streams are loaded without columns that the model does not take",
    "_set_signature_columns_if_needed": "streams may have label columns of their own",
    "_signature_columns": "the columns that the model takes",
    "_total_loss_scalar": "saved and restored, so that a resumed run logs the same",
    "_tr_loss": "saved and restored, so that a resumed run logs the same",
    "_train_batch_size": "the most samples of a micro-batch",
    "_trial": "the trial of a search, whose folder it names",
    "current_flos": "reset, as the saved state has them",
    "current_gradient_accumulation_steps": "TRL's divisor of an auxiliary loss",
    "is_in_train": "whether a loader is that of the run, and an evaluation in it",
}


def is_newer() -> bool:
    """Whether the installed transformers is newer than what was compared, so that its training step may do more."""
    return bool(Version(transformers.__version__) > Version(CHECKED_WITH[1]))


# ---- The only places that read or write private attributes of the Trainer ----
# ruff: noqa: SLF001


def prepare_inputs(trainer: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    """Moves inputs to the model's device as the Trainer does before a forward."""
    prepared: dict[str, Any] = trainer._prepare_inputs(inputs)
    return prepared


def prepares_inputs_itself(trainer: Trainer) -> bool:
    """Whether the trainer's class overrides how inputs are prepared."""
    return type(trainer)._prepare_inputs != Trainer._prepare_inputs


def count_as_columns(names: list[str], trainer: Any) -> None:
    """Counts columns, such as the label columns of single streams, as columns that the model takes."""
    trainer._set_signature_columns_if_needed()
    known = signature_columns(trainer)
    known += [name for name in names if name not in known]


def signature_columns(trainer: Any) -> list[str]:
    """Returns the columns that the model takes; the list itself."""
    columns: list[str] = trainer._signature_columns or []
    return columns


def collator_removing_columns(trainer: Any, collator: Any, description: str) -> Any:
    """Returns a collator that removes columns which the model does not take, if the arguments say so."""
    return trainer._get_collator_with_removed_columns(collator, description=description)


def without_unused_columns(trainer: Any, dataset: Any, description: str) -> Any:
    """Returns a data set without columns that the model does not take, if the arguments say so."""
    return trainer._remove_unused_columns(dataset, description=description)


def note_removed_columns(trainer: Any, error: KeyError) -> None:
    """Adds a note to an error of the user's code that misses a column, if the Trainer may have removed it."""
    missing = str(error.args[0]) if error.args else ""
    if trainer.args.remove_unused_columns and missing.isidentifier() and missing not in signature_columns(trainer):
        error.add_note(
            f"remove_unused_columns=True removes columns that the model's forward does not accept, such as "
            f"{missing!r}, before a transform of the data set and the data_collator: set it to False if they need one."
        )


def loss_shifts_labels(trainer: Any) -> bool:
    """Whether the Trainer counts labels without the first one of each row."""
    return bool(trainer._loss_shifts_labels)


def train_batch_size(trainer: Any) -> int:
    """Returns the maximum samples of a forward on this process."""
    return int(trainer._train_batch_size)


def present_trial(trainer: Any) -> Any:
    """Returns the trial of a hyperparameter search, or `None`."""
    return trainer._trial if hasattr(trainer, "_trial") else None


def output_folder(trainer: Any, trial: Any = None) -> Path:
    """Returns the folder of a run; a trial has its own."""
    return Path(str(trainer._get_output_dir(trial)))


def without_ignored_weights(model: Any, names: Any) -> None:
    """Removes the names of weights that a model's class says are never saved, or may be missing or superfluous."""
    names.missing_keys -= set(model._keys_to_ignore_on_save or ())
    model._adjust_missing_and_unexpected_keys(names)


def save_checkpoint(trainer: Any, model: Any, trial: Any) -> None:
    """Writes a checkpoint as the loop does."""
    trainer._save_checkpoint(model, trial)


def push_checkpoint(trainer: Any, checkpoint: Path) -> None:
    """Pushes a checkpoint to the Hub."""
    trainer._push_from_checkpoint(str(checkpoint))


def load_random_state(trainer: Any, checkpoint: str) -> None:
    """Restores the random state of a checkpoint."""
    trainer._load_rng_state(checkpoint)


def log_save_evaluate(trainer: Any, norm: Any, options: tuple[Any, ...], learning_rate: float | None) -> None:
    """Logs, saves and evaluates as the loop does after a step."""
    trainer._maybe_log_save_evaluate(trainer._tr_loss, norm, *options, learning_rate=learning_rate)


def loop_losses(trainer: Any) -> tuple[Tensor, float, int]:
    """Returns this rank's loss since the last log entry, the sum over all entries, and the step of the last one."""
    return trainer._tr_loss, trainer._total_loss_scalar, trainer._globalstep_last_logged


def restore_loop(trainer: Any, running_loss: float, logged_loss: float, last_logged_step: int) -> None:
    """Restores the sums of the loop, so that a resumed run logs the same and counts from its very start."""
    trainer._initial_global_step, trainer._initial_num_input_tokens_seen = 0, 0
    trainer._tr_loss.fill_(running_loss)
    trainer._total_loss_scalar, trainer._globalstep_last_logged = logged_loss, last_logged_step
    trainer.current_flos = 0


def begin_round(trainer: Any, num_passes: int) -> None:
    """Has GRPO generate in its next training step, also after a round that has failed.

    Args:
        trainer: The trainer.
        num_passes: Training steps of a round.
    """
    trainer._step += -trainer._step % num_passes


def synchronise_gradients(accelerator: Any, is_on: bool) -> None:
    """Tells accelerate whether a backward ends an update, as the Trainer's loop does."""
    accelerator.gradient_state._set_sync_gradients(is_on)
