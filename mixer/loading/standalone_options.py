"""Checks and defaults of the options that the batch sampler and the data loader share."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch

from mixer.loading.learning_rate import check_schedule
from mixer.mixture.batch_size import BatchSize
from mixer.mixture.stream import Stream
from mixer.mixture.streams import as_streams
from mixer.policies.contract import Policy
from mixer.policies.function import WeightFunction
from mixer.policies.scheduled import Scheduled
from mixer.policies.shared.wrapper import Wrapper
from mixer.schedules.ada_batch import AdaBatch
from mixer.schedules.base import Schedule
from mixer.schedules.critical_batch_warmup import CriticalBatchWarmup
from mixer.schedules.function import Function
from mixer.schedules.limits import check_whole
from mixer.schedules.ramp import Ramp
from mixer.schedules.registry import as_schedule
from mixer.utils.errors import InvalidTypeError, InvalidValueError, wrong_type, wrong_value

BatchSizeLike = Schedule | str | int | Callable[[int, int], int]
MixingLike = Policy | str | Mapping[str, float] | Sequence[float] | WeightFunction
_TRAINED_BY = ("preprocess", "data_collator", "label_names", "compute_loss_func", "head", "distinct_by", "batches")


def resolve_ranks(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Returns rank and number of ranks; `None` uses `torch.distributed` if initialised, else 0 and 1.

    Raises:
        ValueError: If there is no such rank.
        TypeError: If either is not an integer.
    """
    has_ranks = torch.distributed.is_available() and torch.distributed.is_initialized()
    if world_size is None:
        world_size = torch.distributed.get_world_size() if has_ranks else 1
    if rank is None:
        rank = torch.distributed.get_rank() if has_ranks else 0
    for name, value in (("rank", rank), ("world_size", world_size)):
        if isinstance(value, bool) or not isinstance(value, int):
            raise wrong_type(name, f"must be a whole number, got {value!r}.")
    if not 0 <= rank < world_size:
        raise wrong_value(
            "rank", f"must be 0 or more and below world_size={world_size}, got {rank}. Set both, or neither."
        )
    return rank, world_size


def resolve_streams(data: Any, supported: Collection[str] = ()) -> list[Stream]:
    """Returns the streams of the `data` argument.

    Args:
        data: Number of samples, or any input of `as_streams`.
        supported: Stream fields on training (collator, head, ...) that the caller supports; others are refused.

    Returns:
        Streams; for a number, one stream of indices.

    Raises:
        ValueError: If the number is below 1, a dataset is empty, or a field is not supported.
        TypeError: If a dataset cannot be indexed.
    """
    if isinstance(data, int):
        check_whole("data", data)
        data = range(data)
    streams = as_streams(data, "data")
    for stream in streams:
        if stream.is_iterable:
            raise InvalidTypeError(
                f"Stream {stream.name!r}: an iterable dataset cannot be indexed, and to share out its rows ranks "
                "communicate at every step, as in MixingTrainer. Use that, or a dataset with __len__ and __getitem__.",
                option="dataset",
                stream=stream.name,
            )
        unsupported = [name for name in _TRAINED_BY if name not in supported and getattr(stream, name) is not None]
        if unsupported:
            text = f"Stream {stream.name!r}: {unsupported} are for a trainer. Remove them; stream_ids holds streams."
            raise InvalidValueError(text, option="stream", stream=stream.name)
    return streams


def resolve_size(batch_size: BatchSizeLike, world_size: int) -> BatchSize:
    """Returns the batch-size control; a function starts from one sample per rank.

    Raises:
        ValueError: If there are fewer samples than ranks, or no initial size.
        TypeError: If `batch_size` has the wrong type.
    """
    schedule = as_schedule(batch_size)
    check_schedule(schedule, None)
    if schedule.initial is None and not isinstance(schedule, Function):
        raise wrong_value(
            "batch_size", f"={schedule.name} has no initial size: set a number, or the schedule's initial=."
        )
    return BatchSize(schedule, world_size, world_size)


def check_needs(policy: Policy) -> None:
    """Refuses a policy that needs gradients of an objective's targets, for which the trainer has passes of its own."""
    kinds = sorted(type(need).__name__ for need in policy.needs if "objective" in need.requirements())
    if kinds:
        text = (
            f"={policy.name} needs {kinds}, which only MixingTrainer measures, with its objective=. In a loop of your "
        )
        raise wrong_value("mixing", text + "own, use weights or a policy whose losses or gradients you can report.")


def check_no_progress(streams: Sequence[Stream], schedule: Schedule, policy: Policy) -> None:
    """Refuses what depends on the progress of a run without end."""
    for stream in streams:
        if (stream.enters_at, stream.leaves_at) != (0.0, 1.0):
            text = f"Stream {stream.name!r} enters or leaves at a share of the run: set budget, as Budget(epochs=3)."
            raise InvalidValueError(text, option="budget", stream=stream.name)
    while isinstance(policy, Wrapper):
        policy = policy.policy
    uses_progress = isinstance(schedule, AdaBatch | Ramp | CriticalBatchWarmup) and schedule.unit == "progress"
    if uses_progress or isinstance(policy, Scheduled):
        name = (schedule if uses_progress else policy).name
        raise wrong_value(
            "budget", f"must be set, as budget=Budget(epochs=3): {name} depends on the progress of the run."
        )
