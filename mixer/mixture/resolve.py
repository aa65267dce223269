"""Checks and defaults of a mixture's options, and of the amounts of its streams, at construction."""

import logging
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from mixer.mixture.clock import Budget
from mixer.mixture.stream import Stream
from mixer.mixture.streams import total_samples
from mixer.policies.contract import UNITS, Mixture, Policy, Unit
from mixer.policies.shared.wrapper import Wrapper
from mixer.schedules.base import Schedule
from mixer.schedules.limits import check_whole
from mixer.utils.errors import InvalidValueError, wrong_value

logger = logging.getLogger(__name__)

_LONG_WARM_UP = 100  # steps, after which a policy that has changed nothing seems to do nothing


def check_micro_batch(max_samples: int | None, max_tokens: int | None) -> None:
    """Raises a `ValueError` or `TypeError` unless one limit of a micro-batch is a positive integer, or none is set."""
    for unit, limit in (("sample", max_samples), ("token", max_tokens)):
        if limit is not None:
            check_whole(f"max_{unit}s_per_micro_batch", limit, unit)
    if max_samples is not None and max_tokens is not None:
        raise ValueError(
            f"max_samples_per_micro_batch={max_samples} and max_tokens_per_micro_batch={max_tokens}: set one of them."
        )


def resolve_epoch_size(budget: Budget, streams: Sequence[Stream], epoch_size: int | None) -> int | None:
    """Returns the samples of an epoch of the mixture.

    Args:
        budget: Length of the run.
        streams: Streams.
        epoch_size: The user's setting, or `None`.

    Returns:
        The user's setting, else the samples of all streams. If the length of one is unknown, `None`: each pass over a
        single stream is an epoch, or the run of several. A run in epochs counts an iterable stream by its
        `max_samples`.

    Raises:
        ValueError: If nothing determines the length of an epoch.
        TypeError: If the user's setting is not an integer.
    """
    if epoch_size is not None:
        check_whole("epoch_size", epoch_size)
        return int(epoch_size)
    known = sum(stream.num_samples for stream in streams)
    iterable = [stream for stream in streams if stream.is_iterable]
    if not iterable:
        return known
    if budget.epochs is None:
        return None
    if unknown := [stream.name for stream in iterable if stream.max_samples is None]:
        text = f"The length of an epoch, and so of {budget.epochs:g} epochs (num_train_epochs or budget), is unknown: "
        text += (
            f"the streams {unknown} are iterable. Set max_steps in the training arguments, a budget in samples, tokens "
        )
        raise InvalidValueError(f"{text}or steps, epoch_size, or max_samples of these streams.", option="epoch_size")
    return known + sum(stream.max_samples or 0 for stream in iterable)


def check_epochs(schedule: Schedule, has_epochs: bool) -> None:
    """Refuses a batch-size schedule that counts epochs if the run is one.

    Args:
        schedule: The schedule.
        has_epochs: Whether an epoch has a length, or a single stream's passes are epochs.

    Raises:
        ValueError: With the alternatives.
    """
    if schedule.unit == "epochs" and not has_epochs:
        raise wrong_value(
            "batch_size", f"={schedule.name} counts epochs, and an iterable stream has none: set epoch_size."
        )


def check_samples(policy: Policy, num_streams: int, batch_size: int) -> None:
    """Warns of a batch that is too small for all streams, or leaves the policy no choice, and of a long warm-up.

    Args:
        policy: Policy.
        num_streams: Number of streams.
        batch_size: Samples of the first step, over all ranks.
    """
    if num_streams > max(batch_size, 1) and policy.min_samples == 0:
        logger.warning(
            "batch_size=%d is smaller than the number of streams, %d: no step has all of them, and a policy sees a "
            "stream's loss only in steps that contain it. For all streams in every step use %d or more.",
            *(batch_size, num_streams, num_streams),
        )
    if num_streams > 1 and policy.min_samples > 0 and num_streams * policy.min_samples >= batch_size:
        logger.warning(
            "mixing=%s gives each of %d streams at least %d samples per batch (min_samples), which leaves no samples "
            "of batch_size=%d to decide on: all get equal shares. Use a larger batch, or a smaller min_samples.",
            *(policy.name, num_streams, policy.min_samples, batch_size),
        )
    while isinstance(policy, Wrapper):
        policy = policy.policy
    if (warm_up := getattr(policy, "num_warmup_steps", 0)) >= _LONG_WARM_UP:
        text = "mixing=%s keeps your weights for the first %d steps: set num_warmup_steps for a shorter run."
        logger.warning(text, policy.name, warm_up)


def check_own_weights(policy: Policy, mixture: Mixture, weights: Mapping[str, float]) -> None:
    """Warns if a fixed mixture ignores your weights.

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


# ---- Absolute amounts of the streams: what they say of the mixture and of the length of a run ----


class Amounts(NamedTuple):
    """Amounts of all streams of a run.

    Attributes:
        unit: What they count.
        by_stream: Amounts by name.
    """

    unit: Unit
    by_stream: Mapping[str, int]

    @property
    def total(self) -> int:
        """Their sum."""
        return sum(self.by_stream.values())

    @property
    def budget(self) -> Budget:
        """The length of a run that takes all of them."""
        return Budget(**{self.unit: self.total})


def amounts_of(streams: Sequence[Stream]) -> Amounts | None:
    """Returns the amounts of all streams, or `None` unless each stream that is no memory has one of the same unit."""
    lasting = [stream for stream in streams if not stream.is_memory]
    for unit in UNITS:
        found = {stream.name: getattr(stream, f"max_{unit}") for stream in lasting}
        if not found or None in found.values():
            continue
        if not any(set(stream.amounts) - {unit} for stream in lasting):
            return Amounts(unit, found)
    return None


def check_amounts(streams: Sequence[Stream], budget: Budget, batch_size: int | None) -> None:
    """Refuses amounts that do not go with the length of a run.

    Args:
        streams: The streams.
        budget: The length.
        batch_size: Samples of every step; `None` if it varies.

    Raises:
        ValueError: If a stream's amount is more than the budget, or all amounts together are less.
    """
    if not any(stream.amounts for stream in streams):
        return
    by_steps = None if budget.steps is None or batch_size is None else budget.steps * batch_size
    limits = {"samples": [budget.samples, by_steps], "tokens": [budget.tokens], "labels": [budget.labels]}
    amounts = amounts_of(streams)
    totals = {"samples": total_samples([stream for stream in streams if not stream.is_memory])}
    if amounts is not None and amounts.unit != "samples":
        totals[amounts.unit] = amounts.total
    for unit, given in limits.items():
        limit = min((value for value in given if value is not None), default=None)
        if limit is not None:
            _check_against(streams, unit, limit, totals.get(unit))


def _check_against(streams: Sequence[Stream], unit: str, limit: int, total: int | None) -> None:
    for stream in streams:
        amount = getattr(stream, f"max_{unit}")
        if amount is not None and amount > limit:
            text = f"Stream {stream.name!r}: max_{unit}={amount:,} is more than the {limit:,} {unit} of the run."
            raise InvalidValueError(text, option=f"max_{unit}", stream=stream.name)
    if total is not None and total < limit:
        raise wrong_value(
            f"max_{unit}",
            f"The streams give {total:,} {unit} and the run has {limit:,}: change one, or leave a stream unlimited.",
        )
