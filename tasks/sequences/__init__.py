"""Builders of task sequences, and the views of data sets that they use."""

from tasks.sequences.blurry import blurry
from tasks.sequences.by_class import by_class
from tasks.sequences.by_column import by_column, by_time
from tasks.sequences.data_sets import Picked, Relabelled, Transform, Transformed, pick, relabel
from tasks.sequences.derived import Joined, from_data_sets, joined, number_apart
from tasks.sequences.gradual import gradual, gradual_by_class
from tasks.sequences.instructions import ORDERS, TRACE_SCORES, instructions
from tasks.sequences.repetition import repeated, repeated_at_random
from tasks.sequences.text_domains import text_domains
from tasks.sequences.transforms import Permutation, Rotation, permuted, rotated

__all__ = [
    "ORDERS",
    "TRACE_SCORES",
    "Joined",
    "Permutation",
    "Picked",
    "Relabelled",
    "Rotation",
    "Transform",
    "Transformed",
    "blurry",
    "by_class",
    "by_column",
    "by_time",
    "from_data_sets",
    "gradual",
    "gradual_by_class",
    "instructions",
    "joined",
    "number_apart",
    "permuted",
    "pick",
    "relabel",
    "repeated",
    "repeated_at_random",
    "rotated",
    "text_domains",
]
