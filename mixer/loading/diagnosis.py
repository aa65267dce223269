"""Which rows of a micro-batch hold what a model has no place for: too many tokens, or tokens that it does not know."""

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
    """Looks for what made a model fail; to be asked once it has.

    Args:
        model: The model, not wrapped.
        streams: The streams.
        micro: The micro-batch that it failed on.

    Returns:
        A sentence for each reason that was found.
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
        reasons.append(f"Longer than the {most} tokens that the model has positions for: {which}.")
    num_known = _number(config, "vocab_size")
    are_unknown = torch.zeros_like(ids, dtype=torch.bool) if num_known is None else (ids >= num_known) | (ids < 0)
    if bool(are_unknown.any()):
        which, found = _named(streams, micro, are_unknown.any(dim=1).cpu()), int(ids[are_unknown][0])
        reasons.append(f"With tokens, such as {found}, that a model of vocab_size {num_known} does not know: {which}.")
    return reasons


def alone(error: Exception, micro: MicroBatch) -> list[str]:
    """Says why batch normalisation failed on a micro-batch, where it did as that has one row alone.

    Args:
        error: What the model raised.
        micro: The micro-batch.

    Returns:
        A sentence or none.
    """
    if len(micro.stream_ids) != 1 or "more than 1 value per channel" not in str(error):
        return []
    return [
        "Batch normalisation cannot train on one row alone, which is what was left for this micro-batch. Choose a "
        "batch_size whose share of each rank leaves no micro-batch of one row (by per_device_train_batch_size); set "
        "dataloader_drop_last=True where it is the last batch of an epoch; or take a normalisation that does not look "
        "at other rows (GroupNorm, LayerNorm)."
    ]


def _named(streams: Sequence[Stream], micro: MicroBatch, are_meant: Tensor) -> str:
    picked = np.flatnonzero(are_meant.numpy())
    assert micro.indices is not None, "the caller has looked"  # noqa: S101
    return name_rows(streams, micro.stream_ids[picked], micro.indices[picked])


def _number(config: Any, name: str) -> int | None:
    value = getattr(config, name, None)
    return value if isinstance(value, int) else None
