"""Selections: rules for which samples a buffer keeps, one file each."""

from replay.selection.base import Offers, Selection
from replay.selection.class_balanced import ClassBalanced
from replay.selection.gradient_diversity import GradientDiversity
from replay.selection.herding import Herding
from replay.selection.k_center import KCenter
from replay.selection.keyed_reservoir import KeyedReservoir, merge_keyed
from replay.selection.loss_aware import LossAware
from replay.selection.registry import as_selection, selection_classes
from replay.selection.reservoir import Reservoir
from replay.selection.ring import Ring
from replay.selection.shared.exemplars import Exemplars
from replay.selection.surprise import Surprise

__all__ = [
    "ClassBalanced",
    "Exemplars",
    "GradientDiversity",
    "Herding",
    "KCenter",
    "KeyedReservoir",
    "LossAware",
    "Offers",
    "Reservoir",
    "Ring",
    "Selection",
    "Surprise",
    "as_selection",
    "merge_keyed",
    "selection_classes",
]
