"""From a trainer's arguments to the parts of its mixture."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from transformers import TrainingArguments

from mixer.loading.preprocessing import preprocessed
from mixer.mixture.batch_size import BatchSize
from mixer.mixture.clock import Budget, Clock
from mixer.mixture.groups import Grouping
from mixer.mixture.planner import Drawing, Planner
from mixer.mixture.resolve import check_needs, check_schedule, resolve_batch_size, resolve_epoch_size
from mixer.mixture.stream import Stream, total_max_samples
from mixer.policies import Fixed, Policy, Proportional, as_policy
from mixer.schedules import Schedule
from mixer.utils.random_state import seeded


@dataclass(frozen=True)
class MixtureOptions:
    """What a user says of a mixture beside its streams and its policy; see `MixingMixin`.

    Args:
        schedule: The batch-size schedule.
        budget: How much to train, or `None` for the training arguments' own.
        epoch_size: Samples of an epoch, or `None`.
        groupings: Groups of streams.
        drawing: How counts come of weights.
        seed: The seed of the data.
        eval_weights: Weights of the evaluation sets in `eval_loss`, or `None` for the plain mean.
    """

    schedule: Schedule
    budget: Budget | None
    epoch_size: int | None
    groupings: tuple[Grouping, ...]
    drawing: Drawing
    seed: int
    eval_weights: Mapping[str, float] | None = None


def assemble(
    args: TrainingArguments, streams: Sequence[Stream], options: MixtureOptions, saved_batch_size: int | None = None
) -> tuple[Planner, Clock, BatchSize]:
    """Makes the parts of a mixture that begin anew with every run.

    Args:
        args: The training arguments.
        streams: The streams.
        options: What else the user says.
        saved_batch_size: What the run that is taken up again began with; it rules, however many ranks there are now,
            unless the user names another.

    Returns:
        The planner, the clock, and what decides the batch size.

    Raises:
        ValueError: If sizes, budget and streams do not fit together.
    """
    default, pass_size = resolve_batch_size(args, options.schedule.initial)
    if saved_batch_size is not None:
        default = saved_batch_size
    size = BatchSize(options.schedule, default, args.world_size)
    if args.train_sampling_strategy == "sequential":
        streams = [replace(stream, shuffle=False) for stream in streams]
    budget = resolve_budget(args, options.budget)
    can_drop = not any(stream.is_iterable for stream in streams)
    clock = Clock(
        batch_size=size.initial,
        epoch_size=resolve_epoch_size(budget, streams, size.initial, options.epoch_size),
        budget=budget,
        drop_unit=pass_size if args.dataloader_drop_last and can_drop else 0,
        max_samples=total_max_samples(streams),
        pass_size=pass_size,
        num_warmup_steps=int(args.warmup_steps) if args.warmup_steps >= 1 else 0,
        tokens_per_sample=1.0 if budget.tokens is None else guess_tokens(streams),
        is_constant=size.is_constant,
    )
    return Planner(streams, options.seed, options.groupings, options.drawing), clock, size


def check_mixture(
    policy: Policy,
    streams: Sequence[Stream],
    args: TrainingArguments,
    options: MixtureOptions,
    eval_dataset: Any,
    scheduler: Any = None,
) -> None:
    """Refuses a mixture that cannot be planned, or whose rules go by what the run will not observe.

    Args:
        policy: The policy.
        streams: The streams.
        args: The training arguments.
        options: What else the user says.
        eval_dataset: The evaluation data.
        scheduler: The user's own learning-rate schedule, or `None` for one that the Trainer makes.

    Raises:
        ValueError: With the reason.
    """
    check_needs(policy, streams, args, eval_dataset)
    check_schedule(options.schedule, scheduler)


def resolve_policy(mixing: Any, streams: Sequence[Stream]) -> Policy:
    """Gives the policy of a mixture.

    Args:
        mixing: What the user gives as one, see `as_policy`, or `None`.
        streams: The streams.

    Returns:
        That; or the streams' own weights, and where they have none shares by size.

    Raises:
        ValueError: If there is no policy of that name, or it needs arguments.
        TypeError: If it is none.
    """
    if mixing is not None:
        return as_policy(mixing)
    has_weights = bool(streams) and streams[0].weight is not None
    return Fixed() if has_weights else Proportional()


def resolve_budget(args: TrainingArguments, budget: Budget | None) -> Budget:
    """Gives the budget of a run.

    Args:
        args: The training arguments.
        budget: What the user says, or `None`.

    Returns:
        That, with the arguments' `max_steps`; or that and `num_train_epochs` as the Trainer takes them.

    Raises:
        ValueError: If there is no budget at all.
        TypeError: If it is something else than a `Budget`.
    """
    steps = args.max_steps if args.max_steps > 0 else None
    if budget is None:
        if steps is None and not args.num_train_epochs > 0:
            raise ValueError(
                f"num_train_epochs must be above 0 where max_steps is not given, got {args.num_train_epochs}."
            )
        return Budget(epochs=args.num_train_epochs) if steps is None else Budget(steps=steps)
    if not isinstance(budget, Budget):
        raise TypeError(f"budget must be a Budget, such as Budget(tokens=2_000_000_000), got {budget!r}.")
    limits = [limit for limit in (budget.steps, steps) if limit is not None]
    return replace(budget, steps=min(limits, default=None))


def guess_tokens(streams: Sequence[Stream]) -> float:
    """Guesses how many tokens a sample has, for how many steps a budget in tokens may hold before any was counted.

    Args:
        streams: The streams.

    Returns:
        The mean over the first samples of those streams that can be looked into; 1 if none shows tokens.
    """
    lengths = []
    for stream in streams:
        if stream.is_iterable or stream.is_memory:
            continue
        with seeded(0):  # what a data set draws at random here must not show in the run
            sample: Any = preprocessed(stream.dataset, stream.preprocess)[0]
        tokens = sample.get("input_ids") if isinstance(sample, Mapping) else None
        if tokens is not None:
            lengths.append(len(tokens))
    return sum(lengths) / len(lengths) if lengths else 1.0
