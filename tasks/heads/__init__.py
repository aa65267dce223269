"""Output layers of a classifier in a continual run, one file per kind."""

from mixer.utils.errors import InvalidValueError
from tasks.heads.growing import Growing as Growing
from tasks.heads.head import Head as Head, HeadKind as HeadKind
from tasks.heads.masked import Masked as Masked
from tasks.heads.output_layer import find_output_layer as find_output_layer
from tasks.task import TaskSequence


def as_head(head: HeadKind | None, sequence: TaskSequence, seed: int) -> Head:
    """Creates the head of a kind.

    Args:
        head: The kind. `None` takes `"masked"` where the model knows which task a sample is of and all tasks have
            classes, else `"whole"`.
        sequence: The tasks.
        seed: Seed of what is drawn for new outputs.

    Returns:
        The head, for one run.

    Raises:
        ValueError: If there is no such kind.
    """
    if head is None:
        has_classes = all(task.classes is not None for task in sequence)
        head = "masked" if sequence.scenario == "task" and has_classes else "whole"
    kinds = {kind.kind: kind for kind in (Head, Growing, Masked)}
    if not isinstance(head, str) or head not in kinds:
        raise InvalidValueError.about("head", f"must be one of {list(kinds)}, or None, got {head!r}.")
    return kinds[head](sequence, seed)
