"""The methods and functions that are replaced for a while on a trainer, its accelerator, its callbacks or its model.

`REPLACED` lists all of them: on which object, for how long, and why no override or hook does it. They are replaced by
`replaced` alone. What listens to a model's forward or its loss, or stands in for them, is no method of the Trainer, and
is in `models/` and `gradients/probe/`.
"""

import contextlib

from mixer.utils.attributes import attributes_held

REPLACED = {
    "_get_collator_with_removed_columns": "the trainer's, while the loader of its class is read: whether it calls it",
    "_remove_unused_columns": "the trainer's, likewise",
    "backward": "the accelerator's, while a training step of the user's runs: it passes its loss on only there, where "
    "that is weighted by the micro-batch's share of the step",
    "compute_loss": "the trainer's, meanwhile: the step may leave out the number of items, which a loss that counts "
    "items needs",
    "compute_loss_func": "the trainer's, for a forward of a stream that has its own; and to note its arguments, in the "
    "first forwards, which show what it is divided by",
    "compute_metrics": "the trainer's, while a set is evaluated that has its own",
    "data_collator": "the trainer's, while a set is evaluated like a stream that has its own",
    "gather": "the accelerator's, in forwards of TRL's trainers: each gathers metrics, of unequal numbers of rows, and "
    "in passes beside the training not on all ranks",
    "gather_for_metrics": "the accelerator's, likewise",
    "load_adapter": "PEFT's, in a run: the Trainer ignores what it returns of weights that a checkpoint lacks",
    "log": "the trainer's, for the loop's own entry: a user's override is called before the mixin's, and is to see the "
    "streams",
    "on_evaluate": "early stopping's, while one of several sets is evaluated: it would warn of each without its metric",
    "prepare": "the accelerator's, while the loader of the trainer's class is read: it would keep it",
    "should_save_on_this_rank": "the model's, while it is saved with save_on_each_node: transformers 5.23 writes it on "
    "rank 0 alone",
    "training_step": "the trainer's, in a run, where the user has overridden it: the loop calls it with all "
    "micro-batches of a step, and the override expects one",
}


def replaced(owner: object, **functions: object) -> contextlib.AbstractContextManager[None]:
    """Replaces methods of one object temporarily; its class keeps its own.

    Args:
        owner: The trainer, its accelerator, one of its callbacks, or its model.
        **functions: By names of `REPLACED`.
    """
    assert functions.keys() <= REPLACED.keys(), "REPLACED says why a method is replaced"  # noqa: S101
    return attributes_held(owner, **functions)
