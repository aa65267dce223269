"""Options of a run in its checkpoints: those that differ on resume are refused, or told."""

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from transformers import Trainer

from mixer.distributed.consistency import shared_options, written
from mixer.ledger.description import describe_run
from mixer.mixture.controller import Mixing
from mixer.mixture.stream import Stream
from mixer.run.plan import RunPlan
from mixer.utils.errors import InvalidValueError, wrong_value
from mixer.utils.nested import flat
from mixer.utils.text import shortened

OPTIONS_ENTRY = "options"
# The state of the optimizer, the schedule and the random generators holds these.
_KEPT = frozenset(
    {"learning_rate", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon", "optim", "optim_args", "seed"}
)
# They change no step, or the Trainer itself warns of them, or the batch size is compared instead.
_OF_NO_STEP = (
    *("logging_", "save_", "eval_", "include_", "do_", "load_best_model_at_end", "metric_for_best_model"),
    *("greater_is_better", "prediction_loss_only", "batch_eval_metrics", "per_device_", "dataloader_num_workers"),
    *("gradient_accumulation_steps", "auto_find_batch_size", "restore_callback_states_from_checkpoint", "use_cpu"),
    *("enable_jit_checkpoint", "remove_unused_columns", "label_names", "torch_empty_cache_steps", "accelerator_config"),
)
_OF_MIXTURE = (
    *("mixing", "budget", "drawing", "one_stream_per", "groupings", "eval_weights", "loss_units", "objective"),
)
_OF_STREAM = {field.name: field.default for field in fields(Stream) if field.name != "name"}


def options_of(trainer: Trainer, plan: RunPlan, mixing: Mixing) -> dict[str, Any]:
    """Returns what a checkpoint holds of the options of its run, as plain data.

    Args:
        trainer: The trainer, with the training arguments as the user set them.
        plan: The plan of the run.
        mixing: The controller of the mixture.

    Returns:
        Options by name, the class of the optimizer, and the batch size of a rank, if that sets the one of a step.
    """
    args = trainer.args
    described = describe_run(plan.streams, mixing, plan.mixture, args.world_size)
    streams = {
        row["name"]: {name: value for name, value in row.items() if value not in (_OF_STREAM.get(name, value), {})}
        for row in described["streams"]
    }
    training = shared_options(args.to_dict())  # type: ignore[no-untyped-call]
    of_mixture = plan.config.own_options()  # below, as the trainer has resolved them
    own = {
        **{name: value for name, value in training.items() if not (name in of_mixture or name.startswith(_OF_NO_STEP))},
        **{name: described[name] for name in _OF_MIXTURE},
        "batch_size": None if mixing.size.is_constant else described["batch_size"],  # a constant is compared itself
        "streams": streams,
        "nonfinite": plan.config.nonfinite,
        "on_sample_error": sorted(mixing.names[number] for number in plan.skipping.stream_ids),
        "max_skipped_share": plan.skipping.max_share,
    }
    return {
        "own": json.loads(written(own)),
        "optimizer": optimizer_name(trainer),
        "batch_size_per_rank": None if mixing.schedule.initial is not None else per_rank(trainer),
    }


def per_rank(trainer: Trainer) -> int:
    """Returns the samples of a step on each rank, as the training arguments say."""
    return int(trainer.args.train_batch_size * trainer.args.gradient_accumulation_steps)


def optimizer_name(trainer: Trainer) -> str | None:
    """Returns the class of the optimizer, if there is one."""
    optimizer = getattr(trainer.optimizer, "optimizer", trainer.optimizer)
    return None if optimizer is None else type(optimizer).__name__


def other_options(saved: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Describes the options that are not those of the checkpoint, and which of both go on; empty if there are none.

    Args:
        saved: Result of `options_of` when the checkpoint was written.
        now: The same of the run that resumes.
    """
    before, after = (flat(options["own"]) for options in (saved, now))
    names = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    saved_hold, new_hold = ([name for name in names if (name[0] in _KEPT) is is_kept] for is_kept in (True, False))
    sentences = {
        "These keep their saved values, with the state of the optimizer, schedule and random numbers": saved_hold,
        "These have their new values": new_hold,
    }
    return " ".join(
        f"{text}: {', '.join(_change(name, before.get(name), after.get(name)) for name in own)}."
        for text, own in sentences.items()
        if own
    )


def _change(name: tuple[str, ...], saved: Any, now: Any) -> str:
    return f"{'.'.join(name)} ({shortened(repr(saved))} when it was saved, {shortened(repr(now))} now)"


def batch_size_problem(trainer: Trainer, state: Mapping[str, Any], num_ranks_saved: int) -> tuple[bool, str] | None:
    """Compares the batch size that the training arguments give with the saved one.

    On another number of ranks the saved one holds; with other arguments nobody knows which one is wanted.

    Args:
        trainer: The trainer.
        state: The saved state of the mixture.
        num_ranks_saved: Number of ranks of the run that saved it.

    Returns:
        Whether the arguments are the saved ones, and what differs; `None` if nothing does.
    """
    args, saved, own = trainer.args, int(state["clock"]["initial_batch_size"]), per_rank(trainer)
    if own * args.world_size == saved:
        return None
    of_rank = state[OPTIONS_ENTRY]["batch_size_per_rank"] or saved / num_ranks_saved
    product = (
        f"per_device_train_batch_size={args.per_device_train_batch_size} x gradient_accumulation_steps="
        f"{args.gradient_accumulation_steps} x {args.world_size} ranks is {own * args.world_size} now"
    )
    return own == of_rank, f"batch_size was {saved} when the run was saved, and {product}"


@contextlib.contextmanager
def same_optimizer(trainer: Trainer, checkpoint: str, saved: str | None) -> Iterator[None]:
    """Refuses to load the state of an optimizer into another one.

    Args:
        trainer: The trainer.
        checkpoint: The checkpoint.
        saved: Class of the optimizer when it was written, if known.

    Raises:
        ValueError: With both, and the way out.
    """
    now = optimizer_name(trainer)
    hint = f"Resume with the optimizer of the checkpoint, or start a new run from the weights in {checkpoint}."
    if saved is not None and now != saved:
        raise wrong_value(
            "optim",
            f"Cannot resume: the optimizer was {saved} when {checkpoint} was saved and is {now} now "
            f"(optim={trainer.args.optim}, or your own). {hint}",
        )
    try:
        yield
    except (KeyError, ValueError) as error:
        text = f"Cannot resume: {now} does not take the optimizer of {checkpoint} ({error}). {hint}"
        raise InvalidValueError(text, option="optim") from error
    optimizer: Any = getattr(trainer.optimizer, "optimizer", trainer.optimizer)
    missing = {
        name for group in optimizer.param_groups for name in getattr(optimizer, "defaults", {}) if name not in group
    }
    if missing:
        raise wrong_value(
            "optim", f"Cannot resume: {now} needs {sorted(missing)}, which the optimizer of {checkpoint} lacks. {hint}"
        )
