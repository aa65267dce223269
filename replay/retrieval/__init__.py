"""Retrievals: rules for which entries of a buffer to replay next, one file each."""

import copy

from mixer.utils.registry import as_rule
from replay.retrieval.base import Retrieval
from replay.retrieval.least_recent import LeastRecent
from replay.retrieval.mir import MIR
from replay.retrieval.uniform import Uniform

__all__ = ["MIR", "LeastRecent", "Retrieval", "Uniform", "as_retrieval", "retrieval_classes"]


def retrieval_classes() -> dict[str, type[Retrieval]]:
    """Returns the retrieval classes by name."""
    return {retrieval.__name__: retrieval for retrieval in (Uniform, LeastRecent, MIR)}


def as_retrieval(retrieval: object) -> Retrieval:
    """Converts a user's `retrieval`, an instance or a name; instances are copied, so that buffers share no state.

    Raises:
        ValueError: If there is no retrieval of that name.
        TypeError: If it is neither.
    """
    return copy.deepcopy(as_rule(retrieval, Retrieval, retrieval_classes(), "retrieval"))
