"""Builders of task sequences, one file each, and the views of data sets that they use."""

from tasks.sequences.blurry import blurry
from tasks.sequences.by_class import by_class
from tasks.sequences.by_column import by_column, by_domain
from tasks.sequences.by_time import by_time
from tasks.sequences.data_sets import Picked, Relabelled, Transform, Transformed, pick, relabel
from tasks.sequences.from_data_sets import from_data_sets
from tasks.sequences.joined import Joined, joined
from tasks.sequences.number_apart import number_apart
from tasks.sequences.permuted import Permutation, permuted
from tasks.sequences.rotated import Rotation, rotated
from tasks.sequences.text_domains import text_domains

__all__ = [
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
    "by_domain",
    "by_time",
    "from_data_sets",
    "joined",
    "number_apart",
    "permuted",
    "pick",
    "relabel",
    "rotated",
    "text_domains",
]
