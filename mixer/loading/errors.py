"""Which samples a micro-batch is made of, in words, for the errors that one of them causes."""

import contextlib
from collections.abc import Iterator, Sequence

import numpy as np

from mixer.mixture.stream import Stream
from mixer.utils.arrays import Int64Array

# More samples of a stream are not listed one by one.
_MOST_LISTED = 16
_MIXED = (
    "Samples of several streams come together in it: bring them to one form, pad them in the data_collator, or give a "
    "Stream a data_collator of its own."
)


def name_rows(streams: Sequence[Stream], stream_ids: Int64Array, indices: Int64Array) -> str:
    """Names samples.

    Args:
        streams: The streams.
        stream_ids: int64 `[num_samples]`: the stream of each sample.
        indices: int64 `[num_samples]`: where it stands in the stream's data set; of rows, the position in the stream.

    Returns:
        Streams and indices.
    """
    parts = []
    for stream_id in np.unique(stream_ids).tolist():
        own = indices[stream_ids == stream_id]
        stream = streams[stream_id]
        if stream.is_memory:  # what stands there is an address, which says nothing to anyone
            parts.append(f"stream {stream.name!r}: {len(own)} replayed samples")
            continue
        listed = ", ".join(map(str, own[:_MOST_LISTED].tolist())) + (", ..." if len(own) > _MOST_LISTED else "")
        parts.append(f"stream {stream.name!r}: {'rows' if stream.is_iterable else 'samples'} {listed}")
    return "; ".join(parts)


@contextlib.contextmanager
def naming_rows(streams: Sequence[Stream], stream_ids: Int64Array, indices: Int64Array) -> Iterator[None]:
    """Says in errors that are raised meanwhile which samples they may be of.

    Args:
        streams: The streams.
        stream_ids: int64 `[num_samples]`: the stream of each sample.
        indices: int64 `[num_samples]`: where it stands in the stream's data set.

    Returns:
        A context.
    """
    try:
        yield
    except Exception as error:
        error.add_note(f"Its samples: {name_rows(streams, stream_ids, indices)}.")
        if len(np.unique(stream_ids)) > 1:
            error.add_note(_MIXED)
        raise
