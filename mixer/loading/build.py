"""Builds the parts of a mixture from the training arguments."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import numpy as np
from transformers import TrainingArguments

from mixer.loading.chosen_loss_units import new_loss_units
from mixer.loading.distinct import DistinctBatches
from mixer.loading.learning_rate import decay_step
from mixer.loading.lengths import Lengths
from mixer.loading.preprocessing import preprocessed
from mixer.mixture.batch_size import BatchSize
from mixer.mixture.clock import Budget, Clock
from mixer.mixture.controller import Mixing
from mixer.mixture.groups import Grouping
from mixer.mixture.length_order import NO_GROUPS, LengthGroups
from mixer.mixture.planner import Drawing, OneStreamPer, Planner
from mixer.mixture.resolve import (
    Amounts,
    amounts_of,
    check_amounts,
    check_epochs,
    check_own_weights,
    check_samples,
    resolve_epoch_size,
)
from mixer.mixture.stream import Stream
from mixer.mixture.streams import describe, total_samples
from mixer.models.labels import IGNORED
from mixer.models.row_losses import generates
from mixer.policies.contract import Policy
from mixer.policies.fixed import Fixed
from mixer.policies.objective import Objective
from mixer.policies.proportional import Proportional
from mixer.policies.registry import as_policy
from mixer.schedules.base import Schedule
from mixer.utils.errors import InvalidValueError, require, wrong_type, wrong_value
from mixer.utils.random_state import drawn_places, seeded

_MOST_READ = 16  # samples of a stream


@dataclass(frozen=True)
class MixtureOptions:
    """Mixture settings beyond streams and policy; see `MixingMixin`.

    Args:
        schedule: Batch-size schedule.
        budget: Length of the run, or `None` for the training arguments' own.
        epoch_size: Samples per epoch, or `None`.
        groupings: Groups of streams.
        drawing: How weights become sample counts.
        seed: Data seed.
        eval_weights: Weights of the evaluation sets in `eval_loss`, or `None` for the plain mean.
        objective: What the run is to lower, with its targets by name, or `None`.
        one_stream_per: Whether each step, or each micro-batch, is one stream's, or `None`.
    """

    schedule: Schedule
    budget: Budget | None
    epoch_size: int | None
    groupings: tuple[Grouping, ...]
    drawing: Drawing
    seed: int
    eval_weights: Mapping[str, float] | None = None
    objective: Objective | None = None
    one_stream_per: OneStreamPer | None = None


def has_whole_steps(streams: Sequence[Stream], one_stream_per: OneStreamPer | None) -> bool:
    """Whether each step is one stream's, so that its size varies; a single stream's steps end with its passes anyhow.

    Args:
        streams: Streams.
        one_stream_per: The option of that name.

    Raises:
        ValueError: If a stream needs such steps, and the option is another.
    """
    whole = [stream for stream in streams if stream.batches is not None or stream.distinct_by is not None]
    if whole and one_stream_per != "step":
        names = [stream.name for stream in whole]
        hint = f"The streams {names} have batches or distinct_by, which count within steps of one stream."
        raise InvalidValueError(option="one_stream_per", expected="'step'", found=one_stream_per, hint=hint)
    return bool(whole) or (one_stream_per == "step" and len(streams) > 1)


def assemble(
    args: TrainingArguments,
    streams: Sequence[Stream],
    options: MixtureOptions,
    saved_batch_size: int | None = None,
    scheduler: Any = None,
    lengths: Lengths | None = None,
) -> tuple[Planner, Clock, BatchSize]:
    """Builds the parts of a mixture that start anew in every run.

    Args:
        args: Training arguments.
        streams: Streams.
        options: Mixture settings.
        saved_batch_size: Initial batch size of the run to resume. It holds for any number of ranks unless the user sets
            another.
        scheduler: The user's own learning-rate schedule, or `None` for that of the arguments.
        lengths: Lengths of samples, by which streams are grouped if the arguments say so.

    Returns:
        Planner, clock and batch size.

    Raises:
        ValueError: If sizes, budget and streams are inconsistent.
    """
    default, pass_size = resolve_batch_size(args, options.schedule.initial)
    if saved_batch_size is not None:
        default = saved_batch_size
    size = BatchSize(options.schedule, default, args.world_size)
    if args.train_sampling_strategy == "sequential":
        streams = [replace(stream, shuffle=False) for stream in streams]
    budget = resolve_budget(args, options.budget, streams)
    has_whole = has_whole_steps(streams, options.one_stream_per)
    is_constant = size.is_constant and not has_whole
    check_amounts(streams, budget, size.initial if is_constant else None)
    epoch_size = resolve_epoch_size(budget, streams, options.epoch_size)
    has_passes = epoch_size is None and len(streams) == 1
    check_epochs(options.schedule, has_epochs=epoch_size is not None or has_passes)
    can_drop = not any(stream.is_iterable for stream in streams)
    clock = Clock(
        batch_size=size.initial,
        epoch_size=epoch_size,
        budget=budget,
        drop_unit=pass_size if args.dataloader_drop_last and can_drop else 0,
        max_samples=total_samples(streams),
        pass_size=pass_size,
        num_warmup_steps=int(args.warmup_steps) if args.warmup_steps >= 1 else 0,
        tokens_per_sample=guess_tokens(streams, budget),
        is_constant=is_constant,
        decay_step=partial(decay_step, args, scheduler),
        has_passes=has_passes,
    )
    groups_by_length = args.train_sampling_strategy == "group_by_length"
    groups = length_groups(streams, size.initial, lengths if groups_by_length else None)
    own = options.seed, options.groupings, options.drawing, clock.decay_begins, groups
    whole = size.initial * has_whole, args.dataloader_drop_last
    return Planner(_with_batches(streams, size), *own, *whole), clock, size


def _with_batches(streams: Sequence[Stream], size: BatchSize) -> list[Stream]:
    """Gives the streams whose steps may not have duplicates batches without them.

    Raises:
        ValueError: If the batch size varies.
    """
    if not size.is_constant and (whole := [s.name for s in streams if s.batches or s.distinct_by]):
        hint = "Their batches are made a pass ahead."
        expected = f"a constant with distinct_by or batches (streams {whole})"
        raise InvalidValueError(option="batch_size", expected=expected, found=size.schedule.name, hint=hint)
    made = {k: DistinctBatches(s) for k, s in enumerate(streams) if s.distinct_by is not None}
    return [replace(s, batches=made[k], distinct_by=None) if k in made else s for k, s in enumerate(streams)]


def new_mixing(
    args: TrainingArguments,
    streams: Sequence[Stream],
    policy: Policy,
    options: MixtureOptions,
    loss_units: str | Mapping[str, float] | None,
    has_heads: bool,
    scheduler: Any = None,
    lengths: Lengths | None = None,
) -> Mixing:
    """Builds the controller of a new run.

    Args:
        args: Training arguments.
        streams: Streams.
        policy: The policy.
        options: Mixture settings.
        loss_units: The option of that name; see `new_loss_units`.
        has_heads: Whether the streams have heads that differ.
        scheduler: See `assemble`.
        lengths: See `assemble`.

    Raises:
        ValueError: If sizes, budget, policy and streams are inconsistent.
    """
    planner, clock, size = assemble(args, streams, options, scheduler=scheduler, lengths=lengths)
    check_samples(policy, len(streams), size.value)
    units = new_loss_units(loss_units, policy, streams, has_heads)
    mixing = Mixing(planner, policy, clock, size, options.objective, units)
    check_own_weights(policy, describe(streams), mixing.weights)
    return mixing


def length_groups(streams: Sequence[Stream], batch_size: int, lengths: Lengths | None) -> LengthGroups:
    """Groups the samples of each stream that can be indexed.

    Args:
        streams: Streams.
        batch_size: Samples of a step.
        lengths: Their lengths; `None` for no groups.
    """
    if lengths is None:
        return NO_GROUPS
    ordered = [number for number, stream in enumerate(streams) if not (stream.is_iterable or stream.is_memory)]
    return LengthGroups(batch_size, {number: partial(lengths.of_rows, number) for number in ordered})


def resolve_policy(mixing: Any, streams: Sequence[Stream]) -> Policy:
    """Returns `mixing` as a policy (see `as_policy`).

    Without it, your weights count, else their amounts if all have one, else their sizes.

    Raises:
        ValueError: If no policy has this name, or it requires arguments.
        TypeError: If `mixing` is not a policy.
    """
    if mixing is not None:
        return as_policy(mixing)
    if streams and streams[0].weight is not None:
        return Fixed()
    amounts = None if any(stream.is_memory for stream in streams) else amounts_of(streams)
    return Proportional() if amounts is None else Fixed(amounts.by_stream, unit=amounts.unit)


def resolve_budget(args: TrainingArguments, budget: Budget | None, streams: Sequence[Stream] = ()) -> Budget:
    """Returns the budget of a run.

    Args:
        args: Training arguments.
        budget: The user's budget, or `None`.
        streams: Streams.

    Returns:
        The budget limited by `max_steps`, or `max_steps`, all amounts of the streams together, or `num_train_epochs` as
        the Trainer interprets it.

    Raises:
        ValueError: If nothing limits the run, or both amounts of all streams and a number of epochs.
        TypeError: If `budget` is not a `Budget`.
    """
    steps = args.max_steps if args.max_steps > 0 else None
    if budget is None:
        has_end = steps is not None or args.num_train_epochs > 0
        require(has_end, "num_train_epochs", "above 0 if max_steps is not set", args.num_train_epochs)
        amounts = amounts_of(streams)
        if steps is None and amounts is not None:
            _check_epochs(args, amounts)
            return amounts.budget
        return Budget(epochs=args.num_train_epochs) if steps is None else Budget(steps=steps)
    if not isinstance(budget, Budget):
        raise wrong_type("budget", f"must be a Budget, such as Budget(tokens=2_000_000_000), got {budget!r}.")
    limits = [limit for limit in (budget.steps, steps) if limit is not None]
    return replace(budget, steps=min(limits, default=None))


def _check_epochs(args: TrainingArguments, amounts: Amounts) -> None:
    default = next(option.default for option in fields(args) if option.name == "num_train_epochs")
    if args.num_train_epochs != default:
        raise wrong_value(
            "num_train_epochs",
            f"={args.num_train_epochs:g} and the streams' {amounts.total:,} {amounts.unit} exclude each other.",
        )


def guess_tokens(streams: Sequence[Stream], budget: Budget) -> float:
    """Estimates the tokens, or labels, per sample from some of the streams' samples, to plan the steps of a budget.

    Returns:
        Mean over the streams that can be indexed; 1 if none has `input_ids`, or the budget is in neither.
    """
    lengths = []
    for stream in streams if budget.tokens is not None or budget.labels is not None else ():
        if stream.is_iterable or stream.is_memory:
            continue
        rows: Any = preprocessed(stream.dataset, stream.preprocess)
        known = []
        with seeded(0):  # random numbers drawn here must not affect the run
            for place in drawn_places(stream.num_samples, _MOST_READ, 0).tolist():
                with contextlib.suppress(Exception):  # whether one ends the run is said where it is trained on
                    known += _amount_in(rows[place], budget)
        lengths += [sum(known) / len(known)] if known else []
    return sum(lengths) / len(lengths) if lengths else 1.0


def _amount_in(sample: Any, budget: Budget) -> list[int]:
    """Counts the tokens, or labels, of a sample; empty if it has none."""
    tokens = sample.get("input_ids") if isinstance(sample, Mapping) else None
    if tokens is None or budget.tokens is not None:
        return [] if tokens is None else [len(tokens)]
    return [max(int((np.asarray(sample.get("labels", tokens)) != IGNORED).sum()), 1)]


def resolve_batch_size(args: TrainingArguments, batch_size: int | None) -> tuple[int, int]:
    """Returns the initial total batch size, and the unit in which the rest of an epoch is dropped.

    Args:
        args: Training arguments.
        batch_size: Samples of a step over all ranks; `None` uses per-device size × accumulation steps × ranks, or the
            prompts of a round where completions are generated.

    Returns:
        Batch size, and samples of one accumulation step over all ranks.

    Raises:
        ValueError: If both batch size and accumulation steps are set.
    """
    steps = args.gradient_accumulation_steps
    if generates(args):
        own: Any = args
        num_prompts = own.generation_batch_size // own.num_generations
        return num_prompts if batch_size is None else batch_size, num_prompts
    if batch_size is None:
        one_pass = args.train_batch_size * args.world_size
        return one_pass * steps, one_pass
    if steps > 1:
        raise wrong_value(
            "batch_size", f"={batch_size} is the total of a step: leave out gradient_accumulation_steps={steps}."
        )
    return batch_size, batch_size
