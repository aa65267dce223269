"""Selections by name."""

import copy

from mixer.utils.registry import as_rule
from replay.selection.base import Selection
from replay.selection.class_balanced import ClassBalanced
from replay.selection.gradient_diversity import GradientDiversity
from replay.selection.herding import Herding
from replay.selection.k_center import KCenter
from replay.selection.keyed_reservoir import KeyedReservoir
from replay.selection.loss_aware import LossAware
from replay.selection.reservoir import Reservoir
from replay.selection.ring import Ring
from replay.selection.surprise import Surprise

_SELECTIONS: tuple[type[Selection], ...] = (
    Reservoir,
    KeyedReservoir,
    Ring,
    ClassBalanced,
    Surprise,
    LossAware,
    GradientDiversity,
    Herding,
    KCenter,
)


def selection_classes() -> dict[str, type[Selection]]:
    """Lists the selections that there are.

    Returns:
        Classes by name.
    """
    return {selection.__name__: selection for selection in _SELECTIONS}


def as_selection(selection: object) -> Selection:
    """Makes a selection of what a user gives as `selection`.

    Args:
        selection: A selection, or the name of one.

    Returns:
        The selection: a copy of one that was given, so that buffers never share what it remembers.

    Raises:
        ValueError: If there is none of that name.
        TypeError: If it is neither.
    """
    return copy.deepcopy(as_rule(selection, Selection, selection_classes(), "selection"))
