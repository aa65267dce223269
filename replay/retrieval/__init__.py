"""Retrievals: rules for which entries of a buffer to replay next, one file each."""

from replay.retrieval.base import Retrieval
from replay.retrieval.least_recent import LeastRecent
from replay.retrieval.mir import MIR
from replay.retrieval.registry import as_retrieval, retrieval_classes
from replay.retrieval.uniform import Uniform

__all__ = ["MIR", "LeastRecent", "Retrieval", "Uniform", "as_retrieval", "retrieval_classes"]
