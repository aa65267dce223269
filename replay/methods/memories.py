"""Shared by replay methods: lookup of the memory, and factors of the loss per stream."""

from collections.abc import Mapping

import numpy as np

from mixer.trainer.method import RunContext
from mixer.utils.arrays import FloatArray, Int64Array
from mixer.utils.errors import InvalidValueError
from replay.buffer import ReplayBuffer
from replay.feeding.feeding import BufferFeeding
from replay.second_draw import SecondDraw


def find_memory(run: RunContext, name: str, asked_by: str) -> tuple[int, ReplayBuffer, BufferFeeding]:
    """Finds a replay buffer among the streams.

    Args:
        run: The run.
        name: Name of the stream.
        asked_by: The method that asks, for the error.

    Returns:
        The stream's id, the buffer, and what feeds it.

    Raises:
        ValueError: If there is no such stream, or it is no buffer.
    """
    stream_id = run.stream_id(name, f"{asked_by}(memory={name!r})")
    buffer = run.streams[stream_id].dataset
    if not isinstance(buffer, ReplayBuffer) or buffer.feeding is None:
        memories = [stream.name for stream in run.streams if isinstance(stream.dataset, ReplayBuffer)]
        hint = f"The buffers among the streams are {memories}."
        raise InvalidValueError(option="memory", expected=f"a replay buffer for {asked_by}", found=name, hint=hint)
    return stream_id, buffer, buffer.feeding


def refuse_second_draws(run: RunContext, asked_by: str, hint: str, named: str | None = None) -> None:
    """Refuses second draws of buffers that a method does not know of: it would take their samples for new ones.

    Args:
        run: The run.
        asked_by: The method, for the error.
        hint: What to do about it.
        named: The one that it knows of.

    Raises:
        ValueError: If there are others.
    """
    unknown = [stream.name for stream in run.streams if isinstance(stream.dataset, SecondDraw) and stream.name != named]
    if unknown:
        text = f"{asked_by}: the streams {unknown} are second draws of a buffer, and would count as new samples. {hint}"
        raise InvalidValueError(text, option="second", found=unknown, hint=hint)


def factors_of_means(items: Int64Array, weights: Mapping[int, float]) -> FloatArray:
    """Makes the mean over all items of a step a sum of means: of some streams each by itself, of the rest together.

    The rest are new samples and those of other buffers, which are replayed as samples of the batch.

    Args:
        items: int64 `[num_streams]`: items of the step.
        weights: What the mean of each stream of its own is multiplied by, by id.

    Returns:
        `[num_streams]`: what losses are multiplied by, under a division by all items.
    """
    factors, are_rest = np.ones(len(items)), np.ones(len(items), dtype=bool)
    factors[list(weights)], are_rest[list(weights)] = list(weights.values()), False
    counts = np.where(are_rest, items[are_rest].sum(), items)
    factors *= items.sum()
    return factors / np.maximum(counts, 1)
