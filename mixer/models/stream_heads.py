"""By which of a model's heads the samples of each stream go."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from mixer.mixture.stream import Stream
from mixer.models.inputs import heads_of, inner_model, takes_task


def tasks_of(model: nn.Module, streams: list[Stream]) -> tuple[str | None, ...]:
    """Says what a model is told as `task` for the samples of each stream.

    Args:
        model: The model.
        streams: The streams.

    Returns:
        `[num_streams]`: the stream's head, or its name; `None` where the model takes no task.

    Raises:
        ValueError: If a head is named that the model does not have, or a memory's is not named.
    """
    named = [stream.name for stream in streams if stream.head is not None]
    if not takes_task(model):
        if named:
            raise ValueError(
                f"The streams {named} name a head, but {type(inner_model(model)).__name__}.forward has no parameter "
                "'task' to be told of it. Leave head out, or train a MultiTaskModel or another model that takes a task."
            )
        return (None,) * len(streams)
    for stream in streams:
        if stream.is_memory and stream.head is None:
            raise ValueError(
                f"Stream {stream.name!r}: say by which head its samples go: Stream({stream.name!r}, buffer, head=...), "
                "one buffer a head."
            )
    tasks = tuple(stream.head or stream.name for stream in streams)
    _check_heads(heads_of(model), streams, tasks)
    return tasks


def _check_heads(heads: Mapping[str, Any] | None, streams: list[Stream], tasks: tuple[str, ...]) -> None:
    """Refuses streams whose head the model does not have, where it is known which it has."""
    if heads is None:
        return
    without = {stream.name: task for stream, task in zip(streams, tasks, strict=True) if task not in heads}
    if without:
        raise ValueError(
            f"The model has the heads {list(heads)}, but none for {list(dict.fromkeys(without.values()))} of the "
            f"streams {list(without)}. Add them, or name the head of such a stream: "
            f"Stream({next(iter(without))!r}, data_set, head={next(iter(heads), None)!r})."
        )
