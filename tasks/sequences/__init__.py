"""Builders of task sequences, and the views of data sets that they use."""

from tasks.sequences.blurry import blurry as blurry
from tasks.sequences.by_class import by_class as by_class
from tasks.sequences.by_column import by_column as by_column, by_time as by_time
from tasks.sequences.data_sets import (
    Picked as Picked,
    Relabelled as Relabelled,
    Transform as Transform,
    Transformed as Transformed,
    pick as pick,
    relabel as relabel,
)
from tasks.sequences.derived import (
    Joined as Joined,
    from_data_sets as from_data_sets,
    held_out_of_training as held_out_of_training,
    joined as joined,
    number_apart as number_apart,
)
from tasks.sequences.gradual import gradual as gradual, gradual_by_class as gradual_by_class
from tasks.sequences.instructions import ORDERS as ORDERS, TRACE_SCORES as TRACE_SCORES, instructions as instructions
from tasks.sequences.pictures import standard as standard
from tasks.sequences.repetition import repeated as repeated, repeated_at_random as repeated_at_random
from tasks.sequences.text_domains import text_domains as text_domains
from tasks.sequences.transforms import (
    Permutation as Permutation,
    Rotation as Rotation,
    permuted as permuted,
    rotated as rotated,
)
