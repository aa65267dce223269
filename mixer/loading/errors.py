"""Names a micro-batch's samples in errors."""

import contextlib
from collections.abc import Iterator, Sequence

import numpy as np

from mixer.mixture.stream import Stream
from mixer.utils.arrays import Int64Array

_MOST_LISTED = 16  # samples per stream
_MIXED = (
    "The micro-batch mixes samples of several streams: give them the same columns, pad them in the data_collator, or "
    "set data_collator on a Stream."
)


def name_rows(streams: Sequence[Stream], stream_ids: Int64Array, indices: Int64Array) -> str:
    """Returns the streams and indices of samples as text.

    Args:
        streams: Streams.
        stream_ids: int64 `[num_samples]`: stream of each sample.
        indices: int64 `[num_samples]`: index in the stream's dataset; for iterable streams, the position.
    """
    parts = []
    for stream_id in np.unique(stream_ids).tolist():
        own = indices[stream_ids == stream_id]
        stream = streams[stream_id]
        if stream.is_memory:  # its indices are internal addresses
            parts.append(f"stream {stream.name!r}: {len(own)} replayed samples")
            continue
        listed = ", ".join(map(str, own[:_MOST_LISTED].tolist())) + (", ..." if len(own) > _MOST_LISTED else "")
        parts.append(f"stream {stream.name!r}: {'rows' if stream.is_iterable else 'samples'} {listed}")
    return "; ".join(parts)


@contextlib.contextmanager
def naming_rows(streams: Sequence[Stream], stream_ids: Int64Array, indices: Int64Array) -> Iterator[None]:
    """Adds a note with the samples' streams and indices to errors raised in the context.

    Args:
        streams: Streams.
        stream_ids: int64 `[num_samples]`: stream of each sample.
        indices: int64 `[num_samples]`: index in the stream's dataset.
    """
    try:
        yield
    except Exception as error:
        error.add_note(f"Its samples: {name_rows(streams, stream_ids, indices)}.")
        if len(np.unique(stream_ids)) > 1:
            error.add_note(_MIXED)
        raise
