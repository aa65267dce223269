"""Checks and defaults of a mixing trainer's options, at construction."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from transformers import Trainer, TrainingArguments
from transformers.utils import logging

from mixer.measurements import Branches, EvaluationLoss, GradientNoise, asked, check_requests, required
from mixer.mixture.clock import Budget
from mixer.mixture.learning_rate import check_scheduler
from mixer.mixture.stream import Stream, is_dataset
from mixer.policies.contract import Mixture, Policy
from mixer.policies.objective import Objective
from mixer.schedules.base import Schedule

logger = logging.get_logger(__name__)

_MANY_STREAMS = 16  # above, separate micro-batches per stream are costly enough for a warning


def check_micro_batch(max_samples: int | None, max_tokens: int | None) -> None:
    """Raises a `ValueError` or `TypeError` unless one limit of a micro-batch is a positive integer, or none is set."""
    for unit, limit in (("sample", max_samples), ("token", max_tokens)):
        name = f"max_{unit}s_per_micro_batch"
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int)):
            raise TypeError(f"{name} must be a whole number of {unit}s, got {limit!r}.")
        if limit is not None and limit < 1:
            raise ValueError(f"{name} must be at least 1 {unit}, got {limit}.")
    if max_samples is not None and max_tokens is not None:
        raise ValueError(
            f"max_samples_per_micro_batch={max_samples} and max_tokens_per_micro_batch={max_tokens} both limit "
            "micro-batches: set one of them."
        )


def resolve_batch_size(args: TrainingArguments, batch_size: int | None) -> tuple[int, int]:
    """Returns the initial total batch size, and the unit in which the rest of an epoch is dropped.

    Args:
        args: Training arguments.
        batch_size: Samples of a step over all ranks; `None` uses per-device size × accumulation steps × ranks.

    Returns:
        Batch size, and samples of one accumulation step over all ranks.

    Raises:
        ValueError: If both batch size and accumulation steps are set.
    """
    steps = args.gradient_accumulation_steps
    if batch_size is None:
        one_pass = args.train_batch_size * args.world_size
        return one_pass * steps, one_pass
    if steps > 1:
        raise ValueError(
            f"batch_size={batch_size} is the total of a step and conflicts with gradient_accumulation_steps={steps}: "
            "micro-batches of at most per_device_train_batch_size samples are formed automatically. Set only one of "
            "the two."
        )
    return batch_size, batch_size


def resolve_epoch_size(budget: Budget, streams: Sequence[Stream], epoch_size: int | None) -> int | None:
    """Returns the samples of an epoch of the mixture.

    Args:
        budget: Length of the run.
        streams: Streams.
        epoch_size: The user's setting, or `None`.

    Returns:
        The user's setting, else the samples of all streams. If the length of one is unknown, the run is the epoch
        (`None`); a run in epochs then counts an iterable stream by its `max_samples`.

    Raises:
        ValueError: If nothing determines the length of an epoch.
        TypeError: If the user's setting is not an integer.
    """
    if epoch_size is not None:
        if isinstance(epoch_size, bool) or not isinstance(epoch_size, int):
            raise TypeError(f"epoch_size must be a whole number of samples, got {epoch_size!r}.")
        return epoch_size
    known = sum(stream.num_samples for stream in streams)
    iterable = [stream for stream in streams if stream.is_iterable]
    if not iterable:
        return known
    if budget.epochs is None:
        return None
    if unknown := [stream.name for stream in iterable if stream.max_samples is None]:
        raise ValueError(
            f"The length of an epoch is unknown, because the streams {unknown} are iterable, and so is that of "
            f"{budget.epochs:g} epochs (num_train_epochs or budget): set max_steps in the training arguments, a budget "
            "in samples, tokens or steps, epoch_size, or max_samples of these streams."
        )
    return known + sum(stream.max_samples or 0 for stream in iterable)


def check_epochs(schedule: Schedule, epoch_size: int | None) -> None:
    """Refuses a batch-size schedule that counts epochs if the run is one.

    Raises:
        ValueError: With the alternatives.
    """
    if schedule.unit == "epochs" and epoch_size is None:
        raise ValueError(
            f"batch_size={schedule.name} counts epochs, but the length of an iterable stream is unknown, so the whole "
            "run is one epoch: set epoch_size, or give the schedule another unit."
        )


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
        raise ValueError(
            f"Policy {name} needs an objective: set objective to the names of the evaluation sets that the run is for, "
            f"'average' or 'worst' (of all sets), or an Objective. (mixing='auto' is Safeguard(MarginalValue()).)"
        )
    _check_measured(policy, streams, args)
    if objective is not None and objective.bounds and not (policy.is_static or policy.holds_bounds):
        logger.warning(
            "mixing=%s does not act on the bounds of the objective, %s: they are only reported. mixing='auto' and "
            "MarginalValue act on them.",
            *(policy.name, dict(objective.bounds)),
        )
    if "evaluations" in required(policy.needs):
        _check_evaluated(policy, streams, args, eval_dataset)


def _check_evaluated(policy: Policy, streams: Sequence[Stream], args: TrainingArguments, eval_dataset: Any) -> None:
    """Refuses a policy that goes by evaluations which do not take place."""
    name = type(policy).__name__
    missing = [s.name for s in streams if not isinstance(eval_dataset, dict) or s.name not in eval_dataset]
    if missing:
        raise ValueError(
            f"Policy {name} needs evaluation losses of every stream: set eval_dataset to a dict with the streams' "
            f"names; missing: {missing}."
        )
    if args.eval_strategy == "no":
        raise ValueError(f"Policy {name} needs evaluation losses: set eval_strategy to 'steps' or 'epoch'.")
    if not args.eval_on_start and any(need.before_first_step for need in asked(policy.needs, EvaluationLoss)):
        raise ValueError(
            f"Policy {name} compares losses with those before the first step: set eval_on_start=True in the training "
            f"arguments."
        )


def _check_measured(policy: Policy, streams: Sequence[Stream], args: TrainingArguments) -> None:
    """Refuses branches that cannot be trained."""
    branches = asked(policy.needs, Branches)
    if not branches:
        return
    num_measured = sum(not (stream.is_iterable or stream.is_memory) for stream in streams)
    if num_measured < 2:
        raise ValueError(
            f"Policy {policy.name} compares trainings on single streams, and needs two or more that are neither "
            f"iterable nor a memory; there {'is' if num_measured == 1 else 'are'} {num_measured}."
        )
    if branches[0].adapter_rank and args.torch_compile:
        raise ValueError(
            f"Policy {policy.name}: adapter_rank={branches[0].adapter_rank} adds adapters by hooks, which a "
            "compiled model does not call. Use adapter_rank=0, or torch_compile=False."
        )


def check_samples(policy: Policy, num_streams: int, batch_size: int) -> None:
    """Warns of a batch that is too small for all streams, or leaves the policy no choice.

    Args:
        policy: Policy.
        num_streams: Number of streams.
        batch_size: Samples of the first step, over all ranks.
    """
    if num_streams > max(batch_size, 1) and policy.min_samples == 0:
        logger.warning(
            "batch_size=%d is smaller than the number of streams, %d: no step has all of them. Each stream gets its "
            "share over many steps, and a policy sees its loss only in steps that contain it. To have all streams in "
            "every step, use a batch_size of %d or more.",
            *(batch_size, num_streams, num_streams),
        )
    if num_streams > 1 and policy.min_samples > 0 and num_streams * policy.min_samples >= batch_size:
        logger.warning(
            "mixing=%s gives each of %d streams at least %d samples per batch (min_samples), which leaves no samples "
            "of batch_size=%d to decide on: all get equal shares. Use a larger batch, or a smaller min_samples.",
            *(policy.name, num_streams, policy.min_samples, batch_size),
        )


def check_own_weights(policy: Policy, mixture: Mixture, weights: Mapping[str, float]) -> None:
    """Warns if a fixed mixture ignores the streams' own weights.

    Args:
        policy: Policy, started.
        mixture: Description of the streams.
        weights: Initial weights, by name.
    """
    initial = np.array(list(weights.values()))
    if policy.is_static and mixture.has_weights and not np.allclose(initial, mixture.weights):
        ignored, used = (
            dict(zip(mixture.names, each.round(3).tolist(), strict=True)) for each in (mixture.weights, initial)
        )
        logger.warning(
            "The streams' weights %s are ignored by mixing=%s, which uses %s. Remove one of the two.",
            *(ignored, policy.name, used),
        )


def check_schedule(schedule: Schedule, scheduler: Any) -> None:
    """Refuses a batch-size schedule that the learning rate cannot follow, or whose needs are no measurements.

    Args:
        schedule: Batch-size schedule.
        scheduler: The user's own learning-rate schedule, or `None` for one created by the Trainer.

    Raises:
        ValueError: If the learning rate cannot follow the batch size.
        TypeError: If its needs are no measurements.
    """
    check_requests(f"batch_size={schedule.name}", schedule.needs)
    if not schedule.is_constant:
        check_scheduler(scheduler)


def check_gradient_noise(trainer: Trainer, schedule: Schedule) -> None:
    """Refuses a schedule by gradient noise if the noise cannot be measured.

    Args:
        trainer: Trainer, after its own construction.
        schedule: Batch-size schedule.

    Raises:
        ValueError: If ranks average gradients at each micro-batch.
    """
    if not asked(schedule.needs, GradientNoise):
        return
    if trainer.args.world_size > 1 and trainer.accelerator.gradient_state.plugin_kwargs.get("sync_each_batch", False):
        raise ValueError(
            f"batch_size={schedule.name} compares the ranks' gradients of a whole step, but sync_each_batch=True "
            "averages them after each micro-batch. Remove it from accelerator_config's gradient_accumulation_kwargs."
        )
    if trainer.args.world_size > 1 and trainer.args.train_sampling_strategy == "group_by_length":
        logger.warning(
            "batch_size=%s measures noise by the differences between the ranks' gradients. With "
            "train_sampling_strategy='group_by_length', and a length column in the data, some ranks get longer "
            "samples than others: this difference counts as noise and makes batches too large.",
            schedule.name,
        )


def check_metrics(metrics: Mapping[str, Any], eval_dataset: Any) -> None:
    """Refuses metrics for evaluation sets that do not exist.

    Args:
        metrics: Functions by evaluation set.
        eval_dataset: Evaluation data of the trainer.

    Raises:
        ValueError: If the evaluation data are not a dict, or lack a named set.
        TypeError: If a metric is not a function.
    """
    sets = list(eval_dataset) if isinstance(eval_dataset, Mapping) else None
    unknown = [name for name in metrics if sets is None or name not in sets]
    if unknown:
        state = "is not a dict" if sets is None else f"has the sets {sets}"
        raise ValueError(f"compute_metrics names the evaluation sets {unknown}, but eval_dataset {state}.")
    for name, function in metrics.items():
        if not callable(function):
            raise TypeError(f"compute_metrics[{name!r}] must be a function, got {function!r}.")


def check_evaluation_names(eval_dataset: Any) -> None:
    """Refuses unnamed evaluation sets, and reserved names.

    Args:
        eval_dataset: Evaluation data of the trainer.

    Raises:
        ValueError: If a set is called `"worst"` or `"mean"`.
        TypeError: If they are a list of datasets or streams.
    """
    if isinstance(eval_dataset, (list, tuple)) and eval_dataset and is_dataset(eval_dataset[0]):
        raise TypeError(
            f"eval_dataset is a list of {len(eval_dataset)} datasets: use a dict of them by name, such as "
            '{"math": math_dev, "code": code_dev}.'
        )
    for name, entry in {"worst": "eval_worst_loss", "mean": "eval_mean_METRIC, means over the sets"}.items():
        if isinstance(eval_dataset, dict) and name in eval_dataset:
            raise ValueError(f"eval_dataset: the name {name!r} is reserved for {entry}; rename the set.")


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
