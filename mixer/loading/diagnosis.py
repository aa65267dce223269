"""Explains model failures by the micro-batch's rows: too long, or with token ids outside the vocabulary."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mixer.loading.errors import name_rows
from mixer.loading.step import MicroBatch
from mixer.mixture.stream import Stream
from mixer.models.row_losses import tokens_per_row


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
        which = _named(streams, micro, lengths > most)
        reasons.append(f"Longer than the model's {most} positions: {which}.")
    num_known = _number(config, "vocab_size")
    are_unknown = torch.zeros_like(ids, dtype=torch.bool) if num_known is None else (ids >= num_known) | (ids < 0)
    if bool(are_unknown.any()):
        which, token = _named(streams, micro, are_unknown.any(dim=1).cpu()), int(ids[are_unknown][0])
        reasons.append(f"With token ids, such as {token}, outside the model's vocab_size {num_known}: {which}.")
    return reasons


def alone(error: Exception, micro: MicroBatch) -> list[str]:
    """Explains a batch-normalisation failure on a micro-batch with a single row; empty for other errors."""
    if len(micro.stream_ids) != 1 or "more than 1 value per channel" not in str(error):
        return []
    return [
        "Batch normalisation cannot train on a single row, and this micro-batch has only one. Choose a batch_size that "
        "leaves no rank with a micro-batch of one row (given per_device_train_batch_size); set "
        "dataloader_drop_last=True if it is the last batch of an epoch; or use a normalisation that is independent of "
        "other rows (GroupNorm, LayerNorm)."
    ]


def _named(streams: Sequence[Stream], micro: MicroBatch, are_meant: Tensor) -> str:
    picked = np.flatnonzero(are_meant.numpy())
    assert micro.indices is not None, "the caller has looked"  # noqa: S101
    return name_rows(streams, micro.stream_ids[picked], micro.indices[picked])


def _number(config: Any, name: str) -> int | None:
    value = getattr(config, name, None)
    return value if isinstance(value, int) else None
