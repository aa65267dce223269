"""Losses by the names of the streams."""

import math
from collections.abc import Mapping, Sequence
from numbers import Real

import numpy as np

from mixer.utils.arrays import FloatArray


def check_losses(where: str, losses: object) -> None:
    """Refuses losses that are not finite numbers, before the streams are known.

    Args:
        where: Name of the losses in an error.
        losses: Loss by the name of the stream.

    Raises:
        ValueError: If they are no mapping, or a loss is no finite number.
    """
    if not isinstance(losses, Mapping):
        raise ValueError(f"{where} must map the names of streams to losses, got {type(losses).__name__}.")
    for name, loss in losses.items():
        if not isinstance(loss, Real) or not math.isfinite(loss):
            raise ValueError(f"{where} must be finite numbers, but {name!r} has {loss!r}.")


def losses_array(losses: Mapping[str, float], names: Sequence[str], where: str) -> FloatArray:
    """Sorts losses in the order of the streams, `[num_streams]`.

    Args:
        losses: Loss by the name of the stream.
        names: Names of the streams.
        where: Name of the losses in an error.

    Raises:
        ValueError: If a stream has none, or a name is that of no stream.
    """
    missing, unknown = [name for name in names if name not in losses], [name for name in losses if name not in names]
    if missing or unknown:
        raise ValueError(
            f"{where} must name each of the streams {list(names)} once; missing: {missing}, unknown: {unknown}."
        )
    return np.array([losses[name] for name in names], dtype=np.float64)
