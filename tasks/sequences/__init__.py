"""Builders of sequences of tasks, one file each, and the data sets that they are made of."""

from tasks.sequences.blurry import blurry
from tasks.sequences.by_class import by_class
from tasks.sequences.by_column import by_column, by_domain
from tasks.sequences.by_time import by_time
from tasks.sequences.from_data_sets import from_data_sets
from tasks.sequences.joined import Joined, joined
from tasks.sequences.number_apart import number_apart
from tasks.sequences.permutation import Permutation
from tasks.sequences.permuted import permuted
from tasks.sequences.picked import Picked, pick
from tasks.sequences.relabelled import Relabelled, relabel
from tasks.sequences.rotated import rotated
from tasks.sequences.rotation import Rotation
from tasks.sequences.text_domains import text_domains
from tasks.sequences.transformed import Transform, Transformed

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
