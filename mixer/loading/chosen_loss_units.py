"""Finds the units in which a policy compares the streams' losses."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers.utils import logging

from mixer.loading.preprocessing import preprocessed
from mixer.mixture.loss_units import LossUnits, check_loss_units
from mixer.mixture.stream import Stream
from mixer.models.labels import LABEL_COLUMNS
from mixer.policies.contract import Policy, in_order
from mixer.utils.errors import wrong_value
from mixer.utils.random_state import drawn_places, seeded

logger = logging.get_logger(__name__)
_MOST_READ = 512  # samples of a stream


class Labels(NamedTuple):
    """What the labels of a stream are like.

    Attributes:
        num_classes: Number of classes.
        entropy: Entropy of their frequencies: the loss of a model that knows nothing else.
    """

    num_classes: int
    entropy: float


def new_loss_units(
    given: str | Mapping[str, float] | None, policy: Policy, streams: Sequence[Stream], has_heads: bool
) -> LossUnits | None:
    """Returns the units in which a policy compares losses.

    Args:
        given: The option `loss_units`; `None` uses units where streams have heads or numbers of classes that differ:
            the entropy of the labels, or first losses if one has no classes.
        policy: The policy.
        streams: The streams.
        has_heads: Whether they have heads that differ.

    Returns:
        The units; `None` if losses are compared as they are, or not at all.

    Raises:
        ValueError: If the option is wrong, or a stream has no class labels and is to be measured by their entropy.
    """
    names = [stream.name for stream in streams]
    check_loss_units(given, names)
    if not policy.compares_losses or given == "none" or len(streams) == 1:
        return None
    if given == "initial":
        return LossUnits(len(streams))
    if isinstance(given, Mapping):
        return LossUnits(len(streams), np.array(in_order(given, names, "loss_units"), dtype=np.float64))
    labels = {stream.name: labels_of(stream) for stream in streams}
    known = [own for own in labels.values() if own is not None and own.entropy > 0.0]
    if len(known) == len(streams):
        is_wanted = given == "entropy" or has_heads or len({own.num_classes for own in known}) > 1
        return LossUnits(len(streams), np.array([own.entropy for own in known])) if is_wanted else None
    if given == "entropy":
        lacking = [name for name, own in labels.items() if own is None or not own.entropy > 0.0]
        raise wrong_value(
            "loss_units", f"='entropy' needs classes as labels, and {lacking} have none: use 'initial', or give losses."
        )
    return LossUnits(len(streams)) if has_heads else None


def labels_of(stream: Stream) -> Labels | None:
    """Counts the classes of a stream in some of its samples, always the same.

    Args:
        stream: The stream.

    Returns:
        What its labels are like; `None` if they are no classes, or the stream cannot be indexed.
    """
    if stream.is_iterable or stream.is_memory:
        return None
    rows, found = preprocessed(stream.dataset, stream.preprocess), []
    places = drawn_places(stream.num_samples, _MOST_READ, 0)
    with seeded(0):  # random numbers drawn here must not affect the run
        for place in places.tolist():
            label = _label_of(rows[place], stream.label_names or LABEL_COLUMNS)
            if label is None:
                return None
            found.append(label)
    shares = np.unique(found, return_counts=True)[1] / len(found)
    return Labels(len(shares), float(-(shares * np.log(shares)).sum()))


def _label_of(sample: Any, columns: Sequence[str]) -> int | None:
    values = [sample[column] for column in columns if column in sample] if isinstance(sample, Mapping) else []
    value = values[0] if values else None
    if isinstance(value, torch.Tensor | np.ndarray) and value.ndim == 0:
        value = value.item()
    is_class = isinstance(value, int | np.integer) and not isinstance(value, bool)
    return int(value) if is_class else None  # type: ignore[arg-type]
