"""Checks that a buffer trains its samples the same way as their own streams do."""

from collections.abc import Sequence

from mixer.mixture.stream import Stream
from mixer.utils.errors import InvalidValueError


def check_same_form(memory: Stream, offered: Sequence[Stream]) -> None:
    """Refuses a buffer with another collator, loss or head than the streams it samples from.

    Args:
        memory: The buffer's stream.
        offered: The streams that it samples from.

    Raises:
        ValueError: If they differ; the streams and fields are named.
    """
    differing = {stream.name: names for stream in offered if (names := _differing(memory, stream))}
    if not differing:
        return
    fields = ", ".join(sorted({name for names in differing.values() for name in names}))
    text = (
        f"Stream {memory.name!r}: it remembers samples of the streams {list(differing)}, whose {fields} differ from "
        f"its own. Make one for each, ReplayBuffer(..., streams={[next(iter(differing))]}), whose Stream has the same."
    )
    raise InvalidValueError(text, option=fields, stream=memory.name, found=list(differing))


def _differing(memory: Stream, stream: Stream) -> list[str]:
    # A model that takes a task needs the head of a memory; without one the streams' names are no heads.
    head = stream.head if memory.head is None else stream.head or stream.name
    differs = {
        "head": head != memory.head,
        "data_collator": stream.data_collator is not memory.data_collator,
        "compute_loss_func": stream.compute_loss_func != memory.compute_loss_func,
        "label_names": tuple(stream.label_names or ()) != tuple(memory.label_names or ()),
    }
    return [name for name, is_other in differs.items() if is_other]
