"""Whether samples of different streams can be put into one micro-batch."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from mixer.loading.collation import Collator


def can_share_batch(collator: Collator, samples: Sequence[Any], alone: Sequence[Mapping[str, Any]]) -> bool:
    """Tries whether a collator makes of several streams' samples what it makes of each stream's.

    A collator that pads does so; one that stacks cannot, if shapes differ; and one that goes by the first sample's
    columns, or by its shape or its labels' type, would silently lose or turn the others'.

    Args:
        collator: The collator.
        samples: One sample of each stream.
        alone: What the collator makes of each alone.

    Returns:
        Whether the streams have the same columns of the same kinds, alone and together.
    """
    kinds = [_kinds(inputs) for inputs in alone]
    if any(kind != kinds[0] for kind in kinds):
        return False
    try:
        together = collator([copy.copy(sample) for sample in samples])
    except Exception:  # whatever it is that it cannot put together
        return False
    if not isinstance(together, Mapping) or _kinds(together) != kinds[0]:
        return False
    return all(_has_room(value, [inputs[name] for inputs in alone]) for name, value in together.items())


def _has_room(together: Any, alone: Sequence[Any]) -> bool:
    """Whether nothing of a column was cut off: no dimension is smaller than that of one of the streams."""
    if not isinstance(together, Tensor):
        return True
    return all(size >= own for one in alone for size, own in zip(together.shape[1:], one.shape[1:], strict=True))


def _kinds(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Says what each column is: of a tensor, its type and number of dimensions."""
    return {
        name: (value.dtype, value.dim()) if isinstance(value, Tensor) else type(value) for name, value in inputs.items()
    }
