"""Retrievals by name."""

import copy

from mixer.utils.registry import as_rule
from replay.retrieval.base import Retrieval
from replay.retrieval.least_recent import LeastRecent
from replay.retrieval.mir import MIR
from replay.retrieval.uniform import Uniform

_RETRIEVALS: tuple[type[Retrieval], ...] = (Uniform, LeastRecent, MIR)


def retrieval_classes() -> dict[str, type[Retrieval]]:
    """Returns the retrieval classes by name."""
    return {retrieval.__name__: retrieval for retrieval in _RETRIEVALS}


def as_retrieval(retrieval: object) -> Retrieval:
    """Converts a user's `retrieval`.

    Args:
        retrieval: A retrieval or the name of one.

    Returns:
        The retrieval; a copy of an instance, so that buffers never share state.

    Raises:
        ValueError: If there is no retrieval of that name.
        TypeError: If it is neither.
    """
    return copy.deepcopy(as_rule(retrieval, Retrieval, retrieval_classes(), "retrieval"))
