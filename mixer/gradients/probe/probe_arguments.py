"""Validation of the arguments of a probe."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch.distributed as dist
from numpy.typing import ArrayLike
from torch import Tensor, nn

from mixer.utils.arrays import FloatArray, Int64Array
from mixer.utils.errors import InvalidValueError, require, wrong_type, wrong_value


def check_arguments(
    model: nn.Module, num_streams: int, mode: str, layers: Sequence[str] | None, sketch_size: int, world_size: int
) -> None:
    """Refuses arguments of `GradientProbe` outside their range.

    Raises:
        ValueError: If a value is outside its range.
        TypeError: If the model is no module.
    """
    if not isinstance(model, nn.Module):
        raise wrong_type("model", f"must be a torch.nn.Module, got a {type(model).__name__}: {model!r}.")
    for name, value in (("num_streams", num_streams), ("sketch_size", sketch_size), ("world_size", world_size)):
        require(isinstance(value, int | np.integer) and value >= 1, name, "a whole number of at least 1", value)
    require(mode in ("exact", "sketch"), "mode", "'exact' or 'sketch'", mode)
    if isinstance(layers, str):
        raise wrong_value("layers", f"must be a list of patterns, got the text {layers!r}: write [{layers!r}].")


def check_ranks(world_size: int) -> None:
    """Raises a `ValueError` for several ranks without a process group."""
    if world_size > 1 and not is_distributed():
        raise wrong_value(
            "world_size", f"={world_size} ranks need a process group: call torch.distributed.init_process_group first."
        )


def is_distributed() -> bool:
    """Whether torch has a process group."""
    return dist.is_available() and dist.is_initialized()


def exact_refusal(what: str, option: str = "mode") -> InvalidValueError:
    """Returns the error of an exact probe whose gradient would come in parts: their products lack the cross terms.

    Args:
        what: The source of the parts.
        option: Name of the option that asks for an exact probe.
    """
    return wrong_value(
        option,
        f"='exact' needs the gradient of one micro-batch on one rank, but {what}. Use 'sketch', or "
        "exact_accumulate=True, which needs memory for one copy of the parameters per stream.",
    )


def check_rows(
    stream_ids: ArrayLike | Tensor, num_items: ArrayLike | Tensor | None, num_streams: int, is_homogeneous: bool
) -> tuple[Int64Array, Int64Array]:
    """Validates the description of a micro-batch's rows.

    Args:
        stream_ids: `[num_rows]`: the stream of each row.
        num_items: `[num_rows]`: terms of the loss in each row; `None` for one each.
        num_streams: Number of streams.
        is_homogeneous: Whether all rows have to be of one stream.

    Returns:
        Both, `[num_rows]`.

    Raises:
        ValueError: If they are not valid.
    """
    ids = _whole_numbers(stream_ids, "stream_ids")
    items = np.ones_like(ids) if num_items is None else _whole_numbers(num_items, "num_items")
    are_streams = bool(np.isin(ids, np.arange(num_streams)).all()) and len(ids) > 0
    expected = f"from 0 to {num_streams - 1}, one for each row"
    require(are_streams, "stream_ids", expected, np.unique(ids).tolist()[:8])
    are_counts = items.shape == ids.shape and bool(items.min() >= 0)
    require(are_counts, "num_items", f"a number from 0 on for each of the {len(ids)} rows", items.tolist()[:8])
    if is_homogeneous and ids.min() != ids.max():
        raise wrong_value(
            "homogeneous", f"=True needs rows of one stream, got stream_ids of {np.unique(ids).tolist()}."
        )
    return ids, items


def factors_of(loss_scale: float, loss_weights: ArrayLike | None, num_streams: int) -> FloatArray:
    """Returns the factors on the streams' losses, `[num_streams]`.

    Raises:
        ValueError: If an argument is outside its range.
    """
    require(0.0 < loss_scale < float("inf"), "loss_scale", "a number greater than 0", loss_scale)
    weights = np.ones(num_streams) if loss_weights is None else np.asarray(loss_weights, dtype=np.float64)
    if weights.shape != (num_streams,):
        raise wrong_value(
            "loss_weights", f"must be one number for each of {num_streams} streams, got shape {list(weights.shape)}."
        )
    return weights * loss_scale


def _whole_numbers(values: Any, name: str) -> Int64Array:
    array = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
    if array.ndim != 1 or (array.size and not np.issubdtype(array.dtype, np.integer)):
        raise wrong_value(name, f"must be one whole number per row, got shape {list(array.shape)} of {array.dtype}.")
    return array.astype(np.int64)
