"""Experience replay: buffers that are streams of a mixture, with selection, storage, retrieval and replay policies."""

from replay.buffer import ReplayBuffer
from replay.feeding.features import extract_features
from replay.methods import AGEM, DER, DERPlusPlus
from replay.policies import ForgettingAware, ReplayBound, ReplayRatio, Spaced
from replay.retrieval import MIR
from replay.storage import InMemory, OnDisk, References

__all__ = [
    "AGEM",
    "DER",
    "MIR",
    "DERPlusPlus",
    "ForgettingAware",
    "InMemory",
    "OnDisk",
    "References",
    "ReplayBound",
    "ReplayBuffer",
    "ReplayRatio",
    "Spaced",
    "extract_features",
]
