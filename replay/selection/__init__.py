"""Selections: rules for which samples a buffer keeps, one file each."""

import copy

from mixer.utils.registry import as_rule
from replay.selection.base import Offers, Selection
from replay.selection.class_balanced import ClassBalanced
from replay.selection.herding import Herding
from replay.selection.k_center import KCenter
from replay.selection.loss_aware import LossAware
from replay.selection.reservoir import Reservoir
from replay.selection.ring import Ring
from replay.selection.shared.exemplars import Exemplars

_SELECTIONS = (Reservoir, Ring, ClassBalanced, LossAware, Herding, KCenter)

__all__ = [
    "ClassBalanced",
    "Exemplars",
    "Herding",
    "KCenter",
    "LossAware",
    "Offers",
    "Reservoir",
    "Ring",
    "Selection",
    "as_selection",
    "selection_classes",
]


def selection_classes() -> dict[str, type[Selection]]:
    """Returns the selection classes by name."""
    return {selection.__name__: selection for selection in _SELECTIONS}


def as_selection(selection: object) -> Selection:
    """Converts a user's `selection`, an instance or a name; instances are copied, so that buffers share no state.

    Raises:
        ValueError: If there is no selection of that name.
        TypeError: If it is neither.
    """
    return copy.deepcopy(as_rule(selection, Selection, selection_classes(), "selection"))
