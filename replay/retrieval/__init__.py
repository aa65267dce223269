"""Retrievals: rules for which entries of a buffer to replay next, one file each."""

import copy

from mixer.utils.registry import as_rule, known_rules
from replay.retrieval.base import Retrieval as Retrieval
from replay.retrieval.mir import MIR as MIR
from replay.retrieval.uniform import Uniform as Uniform


def retrieval_classes() -> dict[str, type[Retrieval]]:
    """Returns all retrievals by name, including those of other packages; see `known_rules`."""
    return known_rules(__name__, Retrieval, "retrievals")


def as_retrieval(retrieval: object) -> Retrieval:
    """Converts a user's `retrieval`, an instance or a name; instances are copied, so that buffers share no state.

    Raises:
        ValueError: If there is no retrieval of that name.
        TypeError: If it is neither.
    """
    return copy.deepcopy(as_rule(retrieval, Retrieval, retrieval_classes(), "retrieval"))
