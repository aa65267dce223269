"""Selections: rules for which samples a buffer keeps, one file each."""

import copy

from mixer.utils.registry import as_rule, known_rules
from replay.selection.base import Offers as Offers, Selection as Selection
from replay.selection.class_balanced import ClassBalanced as ClassBalanced
from replay.selection.herding import Herding as Herding
from replay.selection.learnable import Learnable as Learnable
from replay.selection.loss_aware import LossAware as LossAware
from replay.selection.reservoir import Reservoir as Reservoir
from replay.selection.ring import Ring as Ring


def selection_classes() -> dict[str, type[Selection]]:
    """Returns all selections by name, including those of other packages; see `known_rules`."""
    return known_rules(__name__, Selection, "selections")


def as_selection(selection: object) -> Selection:
    """Converts a user's `selection`, an instance or a name; instances are copied, so that buffers share no state.

    Raises:
        ValueError: If there is no selection of that name.
        TypeError: If it is neither.
    """
    return copy.deepcopy(as_rule(selection, Selection, selection_classes(), "selection"))
