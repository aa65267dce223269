"""What a policy or a schedule requires of a run: an objective, evaluations, streams, and ranks that can measure it."""

from collections.abc import Sequence
from typing import Any

from transformers import Trainer, TrainingArguments
from transformers.utils import logging

from mixer.loading.build import has_whole_steps
from mixer.measurements import check_requests, evaluated_sets, required
from mixer.mixture.stream import Stream
from mixer.policies.contract import Policy
from mixer.policies.objective import Objective
from mixer.run.argument_support import REFUSED
from mixer.run.plan import Options
from mixer.schedules.base import Schedule
from mixer.utils.errors import InvalidValueError, wrong_value
from mixer.utils.text import shortened

logger = logging.get_logger(__name__)

_MANY_STREAMS = 16  # above, separate micro-batches per stream are costly enough for a warning


def check_needs(
    policy: Policy,
    streams: Sequence[Stream],
    args: TrainingArguments,
    eval_dataset: Any,
    objective: Objective | None = None,
) -> None:
    """Refuses a policy that needs what this run lacks.

    Args:
        policy: Policy.
        streams: Streams.
        args: Training arguments.
        eval_dataset: Evaluation data of the trainer.
        objective: What the run is to lower, or `None`.

    Raises:
        ValueError: If the policy needs evaluation losses or an objective that are missing.
        TypeError: If its needs are no measurements.
    """
    name = type(policy).__name__
    check_requests(f"Policy {name}", policy.needs)
    if "objective" in required(policy.needs) and objective is None:
        raise wrong_value(
            "objective",
            f"is missing, which policy {name} needs: set the evaluation sets that it is for, 'average' or 'worst' (of "
            "all), or an Objective. (mixing='auto' is Safeguard(MarginalValue()).)",
        )
    _warn_of_unmeasured(policy, streams, args)
    if objective is not None and objective.bounds and not (policy.is_static or policy.holds_bounds):
        logger.warning(
            "mixing=%s does not act on the bounds of the objective, %s. mixing='auto' does.",
            *(policy.name, dict(objective.bounds)),
        )
    if "evaluations" in required(policy.needs):
        _check_evaluated(policy, streams, args, eval_dataset)


def _check_evaluated(policy: Policy, streams: Sequence[Stream], args: TrainingArguments, eval_dataset: Any) -> None:
    """Refuses a policy that goes by evaluations which do not take place."""
    name = type(policy).__name__
    sets = [*(stream.name for stream in streams), *evaluated_sets(policy.needs)]
    missing = [name for name in sets if not isinstance(eval_dataset, dict) or name not in eval_dataset]
    if missing:
        raise wrong_value("eval_dataset", f"must be a dict by name for policy {name}, but {missing} are missing.")
    if args.eval_strategy == "no":
        raise wrong_value("eval_strategy", f"must be 'steps' or 'epoch': policy {name} needs evaluation losses.")
    if not args.eval_on_start and "an evaluation before the first step" in required(policy.needs):
        raise wrong_value(
            "eval_on_start", f"must be True: policy {name} compares losses with those before the first step."
        )


def _warn_of_unmeasured(policy: Policy, streams: Sequence[Stream], args: TrainingArguments) -> None:
    """Tells of streams that are not measured."""
    unread = [s.name for s in streams if s.is_iterable or s.is_memory]
    if unread and "gradients between steps" in required(policy.needs) and args.process_index == 0:
        logger.warning(
            "mixing=%s does not measure the streams %s, which keep their share: rows of an iterable data set or a "
            "replay buffer cannot be read outside of the steps. Make them map-style to have them measured.",
            *(policy.name, unread),
        )


def check_whole_steps(options: Options, streams: Sequence[Stream]) -> None:
    """Refuses a policy that compares streams within a step, if each step is one stream's.

    Args:
        options: The options of the mixture.
        streams: Streams.

    Raises:
        ValueError: With the option and the alternatives.
    """
    if not has_whole_steps(streams, options.mixture.one_stream_per) or len(streams) == 1:
        return
    if "several streams in a step" in required(options.policy.needs):
        expected = "a policy without gradients by stream, because one_stream_per='step' has one stream per step"
        hint = "Take one that uses losses or evaluations, or 'auto' with an objective."
        raise InvalidValueError(option="mixing", expected=expected, found=options.policy.name, hint=hint)


def check_strategies(args: TrainingArguments, streams: Sequence[Stream], has_length: bool) -> None:
    """Refuses to act at each epoch's end where the run is one epoch: several streams, one of unknown length.

    Args:
        args: Training arguments.
        streams: Streams.
        has_length: Whether an epoch has a length.

    Raises:
        InvalidValueError: With the option and the alternatives.
    """
    if has_length or len(streams) == 1:
        return
    for option in ("eval_strategy", "save_strategy", "logging_strategy"):
        if getattr(args, option) == "epoch":
            raise InvalidValueError(f"{option}={REFUSED[option]}", option=option, found="epoch")


def check_gradient_noise(trainer: Trainer, schedule: Schedule) -> None:
    """Refuses a schedule by gradient noise if the noise cannot be measured.

    Args:
        trainer: Trainer, after its own construction.
        schedule: Batch-size schedule.

    Raises:
        ValueError: If ranks average gradients at each micro-batch.
    """
    if "whole gradients" not in required(schedule.needs):
        return
    if trainer.args.world_size > 1 and trainer.accelerator.gradient_state.plugin_kwargs.get("sync_each_batch", False):
        raise wrong_value(
            "batch_size",
            f"={schedule.name} compares the ranks' gradients of a step, but sync_each_batch=True averages them after "
            "each micro-batch. Remove it from accelerator_config's gradient_accumulation_kwargs.",
        )
    if trainer.args.world_size > 1 and trainer.args.train_sampling_strategy == "group_by_length":
        logger.warning(
            "batch_size=%s measures noise by the ranks' differences. train_sampling_strategy='group_by_length', with a "
            "length column, gives some ranks longer samples: that counts as noise and makes batches too large.",
            schedule.name,
        )


def warn_of_ungrouped(streams: Sequence[Stream], args: TrainingArguments) -> None:
    """Warns of streams whose order cannot go by length.

    Args:
        streams: The streams.
        args: Training arguments.
    """
    ordered = [stream.name for stream in streams if stream.is_iterable or not (stream.is_memory or stream.shuffle)]
    if ordered and args.train_sampling_strategy == "group_by_length" and args.process_index == 0:
        logger.warning(
            "train_sampling_strategy='group_by_length' keeps the order of the streams %s, which are iterable or have "
            "shuffle=False: their samples are grouped by length within a step only, so that steps of one micro-batch "
            "save no padding.",
            shortened(str(ordered)),
        )


def warn_of_forwards(num_streams: int, batch_size: int, args: TrainingArguments) -> None:
    """Warns of the cost if many streams cannot share micro-batches.

    Args:
        num_streams: Number of streams.
        batch_size: Samples of the first step, over all ranks.
        args: Training arguments.
    """
    together = -(-batch_size // (args.train_batch_size * args.world_size))
    alone = min(num_streams, batch_size)
    if alone > max(_MANY_STREAMS, together) and args.process_index == 0:
        logger.warning(
            "Each of the %d streams has separate micro-batches, because streams differ in columns, collator, labels, "
            "loss or head, or their losses are weighted, or a method or probe requires it: a step of %d samples takes "
            "at least %d forward passes instead of %d. Give streams the same format, or use fewer of them.",
            *(num_streams, batch_size, alone, together),
        )
