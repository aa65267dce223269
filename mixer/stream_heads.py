"""By which of a model's heads the samples of each stream go."""

from collections.abc import Mapping

from torch import nn

from mixer.model_inputs import heads_of, inner_model, takes_task
from mixer.stream import Stream


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
    _check_memories(dict(zip((stream.name for stream in streams), tasks, strict=True)), streams)
    heads = heads_of(model)
    lacking = {stream.name: task for stream, task in zip(streams, tasks, strict=True) if task not in (heads or {})}
    if heads is not None and lacking:
        raise ValueError(
            f"The model has the heads {list(heads)}, but none for {list(lacking.values())} of the streams "
            f"{list(lacking)}. Add them, or name the head of such a stream: Stream({next(iter(lacking))!r}, data_set, "
            f"head={next(iter(heads), None)!r})."
        )
    return tasks


def _check_memories(tasks: Mapping[str, str], streams: list[Stream]) -> None:
    """Refuses a memory that gathers samples of other heads than its own."""
    lasting = [stream.name for stream in streams if not stream.is_memory]
    for stream in streams:
        if not (stream.is_memory and getattr(stream.dataset, "is_online", False)):
            continue
        names = getattr(stream.dataset, "stream_names", None) or lasting
        others = [name for name in names if tasks.get(name, stream.head) != stream.head]
        if others:
            raise ValueError(
                f"Stream {stream.name!r}: it remembers samples of the streams {others}, which go by other heads than "
                f"{stream.head!r}. Have it remember those of its head alone: ReplayBuffer(..., streams=[...])."
            )
