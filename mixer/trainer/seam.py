"""The seam with transformers: what this package overrides or uses of the Trainer beyond its documented interface."""

import inspect
import re

from transformers import Trainer
from transformers import trainer as trainer_module

# The lowest and the highest version that the names below were compared with.
CHECKED_WITH = ("5.19.0", "5.23.0")

OVERRIDDEN = {
    "_finalize_training": "the whole run is summed up, its part before a checkpoint too; a signal keeps checkpoints",
    "_get_collator_with_removed_columns": "a drop-in trainer gives the user's collator all columns",
    "_get_grad_norm": "policies and ledger need the norm, which no callback gets",
    "_init_training_state": "a resumed run begins in the epoch of its data clock",
    "_maybe_log_save_evaluate": "ranks agree on what callbacks ask for before any of them acts",
    "_prepare_input": "a whole step that was not passed on is refused with the reason",
    "_remove_unused_columns": "a drop-in trainer gives the user's collator all columns",
    "_report_to_hp_search": "a trial is pruned on all ranks",
    "_run_epoch": "the data clock ends an epoch, not a number of steps",
    "_save_checkpoint": "a checkpoint is marked once all ranks have written it",
    "_save_optimizer_and_scheduler": "an error of one rank waits until all ranks can raise it",
    "_save_rng_state": "the state of the mixture is part of what a checkpoint keeps",
}
USED = {
    "_get_output_dir": "a trial has a folder of its own",
    "_globalstep_last_logged": "saved and restored, so that a resumed run logs the same",
    "_initial_global_step": "a resumed run counts from its very start",
    "_initial_num_input_tokens_seen": "a resumed run counts from its very start",
    "_load_rng_state": "for the end of an epoch that a checkpoint has cut off",
    "_loss_shifts_labels": "whether the first label of a row is no loss term",
    "_prepare_inputs": "trial forwards see what a training step sees",
    "_push_from_checkpoint": "a checkpoint is pushed once it is complete",
    "_set_signature_columns_if_needed": "streams may have label columns of their own",
    "_signature_columns": "the columns that the model takes",
    "_total_loss_scalar": "saved and restored, so that a resumed run logs the same",
    "_tr_loss": "saved and restored, so that a resumed run logs the same",
    "_train_batch_size": "the most samples of a micro-batch",
    "_trial": "the trial of a search, whose folder it names",
    "current_flos": "reset, as the saved state has them",
    "current_gradient_accumulation_steps": "the Trainer's divisor of a loss",
    "is_in_train": "whether a loader or a step is of the run",
    "loss_is_scaled_for_ga": "set by the Trainer's step where it has divided a loss",
}


def missing_names(trainer: type = Trainer) -> dict[str, str]:
    """Finds what the installed Trainer lacks of the names above.

    Args:
        trainer: The Trainer.

    Returns:
        The reason why each missing name is needed.
    """
    assigned = set(re.findall(r"self\.(\w+)", inspect.getsource(trainer_module)))
    relied_on = OVERRIDDEN | USED
    return {name: why for name, why in relied_on.items() if not hasattr(trainer, name) and name not in assigned}
