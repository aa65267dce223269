"""From the arguments of a batch sampler or data loader to the parts of its mixture."""

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch

from mixer.mixture.batch_size import BatchSize
from mixer.mixture.budget import Budget
from mixer.mixture.clock import Clock
from mixer.mixture.resolve import check_schedule, resolve_epoch_size
from mixer.mixture.stream import Stream
from mixer.mixture.streams import as_streams, total_max_samples
from mixer.policies import Policy, Scheduled, Wrapper
from mixer.schedules import AdaBatch, CriticalBatchWarmup, Function, Ramp, Schedule, as_schedule
from mixer.schedules.limits import check_whole

BatchSizeLike = Schedule | str | int | Callable[[int, int], int]

_ENDLESS = Budget(epochs=1e12)
_TRAINED_BY = ("preprocess", "data_collator", "label_names", "compute_loss_func", "head")


def resolve_ranks(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Gives this rank and the number of ranks.

    Args:
        rank: What the user says, or `None`.
        world_size: Likewise.

    Returns:
        That, or what `torch.distributed` says if it is initialised, else 0 and 1.

    Raises:
        ValueError: If there is no such rank.
        TypeError: If either is no whole number.
    """
    has_ranks = torch.distributed.is_available() and torch.distributed.is_initialized()
    if world_size is None:
        world_size = torch.distributed.get_world_size() if has_ranks else 1
    if rank is None:
        rank = torch.distributed.get_rank() if has_ranks else 0
    for name, value in (("rank", rank), ("world_size", world_size)):
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name} must be a whole number, got {value!r}.")
    if not 0 <= rank < world_size:
        raise ValueError(
            f"rank must be 0 or more and below world_size={world_size}, got {rank}; give both, or neither after "
            "torch.distributed was initialised."
        )
    return rank, world_size


def resolve_streams(data: Any, honoured: Collection[str] = ()) -> list[Stream]:
    """Gives the streams of what a user gives as data.

    Args:
        data: A number of samples, or what `as_streams` takes.
        honoured: What of the fields that say how a stream's samples are trained is done; the others are refused.

    Returns:
        The streams; for a number one of the indices themselves.

    Raises:
        ValueError: If the number is below 1, or a data set is empty.
        TypeError: If a data set cannot be indexed.
    """
    if isinstance(data, int):
        check_whole("data", data)
        data = range(data)
    streams = as_streams(data, "data")
    for stream in streams:
        if stream.is_iterable:
            raise TypeError(
                f"Stream {stream.name!r}: the rows of an iterable data set cannot be picked by index, and to share "
                "them out the ranks have to talk to each other at every step, which MixingTrainer does. Use it, or "
                "give a data set with __len__ and __getitem__."
            )
        left = [name for name in _TRAINED_BY if name not in honoured and getattr(stream, name) is not None]
        if left:
            raise ValueError(
                f"Stream {stream.name!r}: {left} say how a trainer treats its samples, which is the loop's own affair "
                "here. Leave them out; which stream a sample is of, stream_ids says."
            )
    return streams


def resolve_size(batch_size: BatchSizeLike, world_size: int) -> BatchSize:
    """Gives what decides the batch size.

    Args:
        batch_size: What `as_schedule` takes.
        world_size: Number of ranks.

    Returns:
        It; a function is given one sample a rank to begin with.

    Raises:
        ValueError: If there are fewer samples than ranks, or nothing says with how many to begin.
        TypeError: If it is of the wrong kind.
    """
    schedule = as_schedule(batch_size)
    check_schedule(schedule, None)
    if schedule.initial is None and not isinstance(schedule, Function):
        raise ValueError(
            f"batch_size={schedule.name} says no size to begin with, and there are no training arguments to take it "
            "from: give a number, or initial= to the schedule."
        )
    return BatchSize(schedule, world_size, world_size)


def check_progress(schedule: Schedule, policy: Policy) -> None:
    """Refuses what goes by the progress of a run that has no end.

    Args:
        schedule: The batch-size schedule.
        policy: The mixing policy.

    Raises:
        ValueError: If either does.
    """
    while isinstance(policy, Wrapper):
        policy = policy.policy
    goes_by_progress = isinstance(schedule, AdaBatch | Ramp | CriticalBatchWarmup) and schedule.unit == "progress"
    rule = schedule.name if goes_by_progress else policy.name if isinstance(policy, Scheduled) else None
    if rule is not None:
        raise ValueError(
            f"{rule} goes by the progress of the run, and without a budget there is none: give budget=Budget(epochs=3) "
            "or a schedule in another unit."
        )


def resolve_clock(
    batch_size: int,
    streams: Sequence[Stream],
    budget: Budget | None,
    epoch_size: int | None,
    drop_last: bool,
    world_size: int,
) -> Clock:
    """Gives the clock.

    Args:
        batch_size: Samples of the first batch over all ranks.
        streams: The streams.
        budget: How much is trained, or `None` for no end.
        epoch_size: Samples of an epoch, or `None` for those of all streams.
        drop_last: Whether the rest of an epoch is dropped.
        world_size: Number of ranks.

    Returns:
        A clock that counts data from the start: a size that is constant now may be set by hand at any time.

    Raises:
        ValueError: If an epoch has too few samples, or a stream is there for a share of a run that has no end.
        TypeError: If the budget is none, or the epoch no whole number.
    """
    if budget is not None and not isinstance(budget, Budget):
        raise TypeError(f"budget must be a Budget, such as Budget(epochs=3), got {budget!r}.")
    max_samples = total_max_samples(streams)
    if budget is None and max_samples is None:
        _check_always_there(streams)
    budget = _ENDLESS if budget is None else budget
    size = resolve_epoch_size(budget, streams, batch_size, epoch_size)
    if drop_last and size < batch_size:
        raise ValueError(
            f"drop_last=True leaves nothing of an epoch of {size} samples: batch_size is {batch_size}. Lower it, or "
            "keep the last batch."
        )
    if size < world_size:
        raise ValueError(
            f"data: an epoch of {size} samples is fewer than the world_size={world_size} ranks. Start fewer ranks, or "
            "set epoch_size."
        )
    return Clock(batch_size, size, budget, int(drop_last), max_samples, is_constant=False)


def _check_always_there(streams: Sequence[Stream]) -> None:
    for stream in streams:
        if (stream.enters_at, stream.leaves_at) != (0.0, 1.0):
            raise ValueError(
                f"Stream {stream.name!r} enters or leaves at a share of the run, which has no end: give budget, such "
                "as Budget(epochs=3)."
            )
