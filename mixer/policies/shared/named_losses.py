"""Losses by the names of the streams."""

import math
from collections.abc import Mapping
from numbers import Real

from mixer.utils.errors import wrong_value


def check_losses(where: str, losses: object) -> None:
    """Refuses losses that are not finite numbers, before the streams are known.

    Args:
        where: Name of the losses in an error.
        losses: Loss by the name of the stream.

    Raises:
        ValueError: If they are no mapping, or a loss is no finite number.
    """
    if not isinstance(losses, Mapping):
        raise wrong_value(where, f"must map the names of streams to losses, got {type(losses).__name__}.")
    for name, loss in losses.items():
        if not isinstance(loss, Real) or not math.isfinite(loss):
            raise wrong_value(where, f"must be finite numbers, but {name!r} has {loss!r}.", stream=name, found=loss)
