"""Names a micro-batch's samples in errors, and explains model failures by them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mixer.loading.loaded_step import MicroBatch
from mixer.mixture.stream import Stream
from mixer.models.row_losses import tokens_per_row
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


def note_rows(error: Exception, streams: Sequence[Stream], micro: MicroBatch) -> None:
    """Adds notes with the streams and indices of a micro-batch's samples to an error.

    Args:
        error: The error.
        streams: Streams.
        micro: Failed micro-batch.
    """
    error.add_note(f"Its samples: {_named(streams, micro, slice(None))}.")
    if len(np.unique(micro.stream_ids)) > 1:
        error.add_note(_MIXED)


def unfit_rows(model: nn.Module, streams: Sequence[Stream], micro: MicroBatch) -> list[str]:
    """Returns reasons why a model failed on a micro-batch: a sentence each.

    Args:
        model: Model, unwrapped.
        streams: Streams.
        micro: Failed micro-batch.
    """
    inputs = micro.inputs
    ids = inputs.get("input_ids") if isinstance(inputs, Mapping) else None
    if not isinstance(ids, Tensor) or ids.dim() != 2 or len(ids) != len(micro.stream_ids) or micro.indices is None:
        return []
    if not ids.numel():
        return ["They have no tokens."]
    reasons, config = [], getattr(model, "config", None)
    lengths, most = tokens_per_row(inputs).cpu(), _number(config, "max_position_embeddings")
    if most is not None and bool((lengths > most).any()):
        which = _named(streams, micro, (lengths > most).numpy())
        reasons.append(f"Longer than the model's {most} positions: {which}.")
    num_known = _number(config, "vocab_size")
    are_unknown = torch.zeros_like(ids, dtype=torch.bool) if num_known is None else (ids >= num_known) | (ids < 0)
    if bool(are_unknown.any()):
        which, token = _named(streams, micro, are_unknown.any(dim=1).cpu().numpy()), int(ids[are_unknown][0])
        reasons.append(f"With token ids, such as {token}, outside the model's vocab_size {num_known}: {which}.")
    return reasons


def batch_norm_reason(error: Exception, micro: MicroBatch) -> list[str]:
    """Explains a batch-normalisation failure on a micro-batch with a single row; empty for other errors."""
    if len(micro.stream_ids) != 1 or "more than 1 value per channel" not in str(error):
        return []
    return [
        "Batch normalisation cannot train on a single row, all that this micro-batch has. Choose a batch_size that "
        "leaves no rank one row (given per_device_train_batch_size); dataloader_drop_last=True for the last batch of "
        "an epoch; or GroupNorm or LayerNorm."
    ]


def _named(streams: Sequence[Stream], micro: MicroBatch, picked: slice | NDArray[np.bool_]) -> str:
    assert micro.indices is not None, "the caller has looked"  # noqa: S101
    return name_rows(streams, micro.stream_ids[picked], micro.indices[picked])


def _number(config: Any, name: str) -> int | None:
    value = getattr(config, name, None)
    return value if isinstance(value, int) else None
