"""Checks of what a mixing trainer is given beside the training arguments, at construction."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from transformers import Trainer, TrainingArguments
from transformers.utils import logging

from mixer.mixture.clock import Budget
from mixer.mixture.learning_rate import check_scheduler
from mixer.mixture.stream import Stream, is_dataset
from mixer.policies.contract import Mixture, Policy
from mixer.schedules import Schedule

logger = logging.get_logger(__name__)

# With micro-batches of their own, more streams than this are worth a word about what it costs.
_MANY_STREAMS = 16

OBSERVABLE = frozenset(
    {"loss", "evaluation_loss", "excess_loss", "loss_after", "gradient", "gradient_variance", "update_norm"}
)
OBSERVABLE_BY_SCHEDULE = frozenset({"loss", "gradient_norm", "learning_rate", "tokens", "gradient_noise"})


def check_max_tokens(max_tokens: int | None) -> None:
    """Refuses a token budget that is none.

    Args:
        max_tokens: Most tokens of a micro-batch, or `None`.

    Raises:
        ValueError: If it is below 1.
        TypeError: If it is no whole number.
    """
    if max_tokens is None:
        return
    if isinstance(max_tokens, bool) or not isinstance(max_tokens, int):
        raise TypeError(f"max_tokens_per_micro_batch must be a whole number of tokens, got {max_tokens!r}.")
    if max_tokens < 1:
        raise ValueError(f"max_tokens_per_micro_batch must be at least 1 token, got {max_tokens}.")


def resolve_batch_size(args: TrainingArguments, batch_size: int | None) -> tuple[int, int]:
    """Gives the total batch size to begin with, and the unit in which the rest of an epoch is dropped.

    Args:
        args: The training arguments.
        batch_size: Samples of a step over all ranks; `None` takes per-device size × accumulation steps × ranks.

    Returns:
        The batch size, and the batch over all ranks that one accumulation step would have.

    Raises:
        ValueError: If it is given beside accumulation steps.
    """
    steps = args.gradient_accumulation_steps
    if batch_size is None:
        one_pass = args.train_batch_size * args.world_size
        return one_pass * steps, one_pass
    if steps > 1:
        raise ValueError(
            f"batch_size={batch_size} is the total of a step, so gradient_accumulation_steps={steps} has nothing to "
            "multiply: micro-batches are made by themselves, of per_device_train_batch_size samples at most. Give one "
            "of the two."
        )
    return batch_size, batch_size


def resolve_epoch_size(budget: Budget, streams: Sequence[Stream], batch_size: int, epoch_size: int | None) -> int:
    """Gives the samples of an epoch of the mixture.

    Args:
        budget: How much is trained.
        streams: The streams.
        batch_size: Samples of the first step, over all ranks.
        epoch_size: What the user says, or `None`.

    Returns:
        That, or the samples of all streams that can be counted, or the whole run where none can.

    Raises:
        ValueError: If nothing says how long an epoch is.
        TypeError: If what the user says is no whole number.
    """
    if epoch_size is not None:
        if isinstance(epoch_size, bool) or not isinstance(epoch_size, int):
            raise TypeError(f"epoch_size must be a whole number of samples, got {epoch_size!r}.")
        return epoch_size
    known = sum(stream.num_samples for stream in streams)
    if known:
        return known
    limits = [] if budget.samples is None else [budget.samples]
    if budget.steps is not None:
        limits.append(budget.steps * batch_size)
    if not limits:
        raise ValueError(
            "All streams are iterable, so nobody knows how long an epoch is: set max_steps in the training arguments, "
            "a budget in samples, or epoch_size, in samples."
        )
    return min(limits)


def check_needs(policy: Policy, streams: Sequence[Stream], args: TrainingArguments, eval_dataset: Any) -> None:
    """Refuses a policy that needs what this run does not observe.

    Args:
        policy: The policy.
        streams: The streams.
        args: The training arguments.
        eval_dataset: The trainer's evaluation data.

    Raises:
        ValueError: If the policy needs something unknown, or evaluation losses that will not come.
    """
    name = type(policy).__name__
    unknown = sorted(policy.needs - OBSERVABLE)
    if unknown:
        raise ValueError(f"Policy {name} needs {unknown}, but what can be observed is {sorted(OBSERVABLE)}.")
    if "evaluation_loss" not in policy.needs:
        return
    missing = [s.name for s in streams if not isinstance(eval_dataset, dict) or s.name not in eval_dataset]
    if missing:
        raise ValueError(
            f"Policy {name} needs evaluation losses of every stream: give eval_dataset as a dict with the streams' "
            f"names; missing: {missing}."
        )
    if args.eval_strategy == "no":
        raise ValueError(f"Policy {name} needs evaluation losses: set eval_strategy to 'steps' or 'epoch'.")


def check_samples(policy: Policy, num_streams: int, batch_size: int) -> None:
    """Warns of a batch that is too small for all streams, or for a policy to have something to decide.

    Args:
        policy: The policy.
        num_streams: Number of streams.
        batch_size: Samples of the first step, over all ranks.
    """
    if num_streams > max(batch_size, 1) and policy.min_samples == 0:
        logger.warning(
            "batch_size=%d is smaller than the number of streams, %d: no step has all of them. Each comes in "
            "some steps, and over many of them has its share; a policy sees its loss only then. For all of them in "
            "every step take a batch_size of %d or more.",
            *(batch_size, num_streams, num_streams),
        )
    if num_streams > 1 and policy.min_samples > 0 and num_streams * policy.min_samples >= batch_size:
        logger.warning(
            "mixing=%s gives each of %d streams at least %d samples of a batch (min_samples), which leaves nothing of "
            "batch_size=%d to decide on: all get equal shares. Take a larger batch, or a smaller min_samples.",
            *(policy.name, num_streams, policy.min_samples, batch_size),
        )


def check_own_weights(policy: Policy, mixture: Mixture, weights: Mapping[str, float]) -> None:
    """Warns of streams' weights that a fixed mixture leaves out of account.

    Args:
        policy: The policy, started.
        mixture: The streams.
        weights: What it begins with, by name.
    """
    given = np.array(list(weights.values()))
    if policy.is_static and mixture.has_weights and not np.allclose(given, mixture.weights):
        own, taken = (
            dict(zip(mixture.names, each.round(3).tolist(), strict=True)) for each in (mixture.weights, given)
        )
        logger.warning(
            "The streams' weights %s are not used by mixing=%s, which mixes by %s. Leave one of the two out.",
            *(own, policy.name, taken),
        )


def check_schedule(schedule: Schedule, scheduler: Any) -> None:
    """Refuses a batch-size schedule that needs what a run does not observe.

    Args:
        schedule: The batch-size schedule.
        scheduler: The user's own learning-rate schedule, or `None` for one that the Trainer makes.

    Raises:
        ValueError: If it needs something unknown, or the learning rate cannot follow the batch size.
    """
    unknown = sorted(schedule.needs - OBSERVABLE_BY_SCHEDULE)
    if unknown:
        raise ValueError(
            f"batch_size={schedule.name} needs {unknown}, which a run does not measure; what it does is "
            f"{sorted(OBSERVABLE_BY_SCHEDULE)}."
        )
    if not schedule.is_constant:
        check_scheduler(scheduler)


def check_gradient_noise(trainer: Trainer, schedule: Schedule) -> None:
    """Refuses a batch-size schedule by the gradient's noise where that cannot be measured.

    Args:
        trainer: The trainer, after its own construction.
        schedule: The batch-size schedule.

    Raises:
        ValueError: With the reason and the way out.
    """
    if "gradient_noise" not in schedule.needs:
        return
    if trainer.args.world_size > 1 and trainer.accelerator.gradient_state.plugin_kwargs.get("sync_each_batch", False):
        raise ValueError(
            f"batch_size={schedule.name} compares the ranks' gradients of a whole step, which sync_each_batch=True "
            "averages after each micro-batch. Leave it out of accelerator_config's gradient_accumulation_kwargs."
        )
    if trainer.args.world_size > 1 and trainer.args.train_sampling_strategy == "group_by_length":
        logger.warning(
            "batch_size=%s takes what the ranks' gradients differ by for noise. With "
            "train_sampling_strategy='group_by_length', and a column of lengths in the data, some ranks get longer "
            "samples than others: what these differ by counts too and makes batches too large.",
            schedule.name,
        )


def check_metrics(metrics: Mapping[str, Any], eval_dataset: Any) -> None:
    """Refuses metrics by evaluation set where there is no such set.

    Args:
        metrics: Functions by the name of the set.
        eval_dataset: The trainer's evaluation data.

    Raises:
        ValueError: If the evaluation data are no dict, or have no set of a name.
        TypeError: If one is no function.
    """
    sets = list(eval_dataset) if isinstance(eval_dataset, Mapping) else None
    unknown = [name for name in metrics if sets is None or name not in sets]
    if unknown:
        state = "is no dict" if sets is None else f"has the sets {sets}"
        raise ValueError(f"compute_metrics names the evaluation sets {unknown}, but eval_dataset {state}.")
    for name, function in metrics.items():
        if not callable(function):
            raise TypeError(f"compute_metrics[{name!r}] must be a function, got {function!r}.")


def check_evaluation_names(eval_dataset: Any) -> None:
    """Refuses evaluation sets without names, and names whose keys are those of the summary.

    Args:
        eval_dataset: The trainer's evaluation data.

    Raises:
        ValueError: If a set is called `"worst"`.
        TypeError: If they are a list of data sets or of streams.
    """
    if isinstance(eval_dataset, (list, tuple)) and eval_dataset and is_dataset(eval_dataset[0]):
        raise TypeError(
            f"eval_dataset is a list of {len(eval_dataset)} data sets: give a dict of them by name, such as "
            '{"math": math_dev, "code": code_dev}.'
        )
    if isinstance(eval_dataset, dict) and "worst" in eval_dataset:
        raise ValueError("eval_dataset: the name 'worst' is taken by eval_worst_loss; give the set another name.")


def warn_of_forwards(num_streams: int, batch_size: int, args: TrainingArguments) -> None:
    """Says what it costs that streams cannot share micro-batches, where they are many.

    Args:
        num_streams: Number of streams.
        batch_size: Samples of the first step, over all ranks.
        args: The training arguments.
    """
    together = -(-batch_size // (args.train_batch_size * args.world_size))
    alone = min(num_streams, batch_size)
    if alone > max(_MANY_STREAMS, together) and args.process_index == 0:
        logger.warning(
            "Streams differ in columns, collator, labels, loss or head, or their losses are weighed, or a method or "
            "probe asks for it, so each of the %d streams has micro-batches of its own: a step of %d samples takes "
            "%d forwards or more in place of %d. Bring streams to one form, or make fewer of them.",
            *(num_streams, batch_size, alone, together),
        )
