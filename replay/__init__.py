"""Replay buffers that are streams of a mixture: what to remember, where to keep it, how much of it to replay."""

from replay.buffer import ReplayBuffer
from replay.policies import ForgettingAware, ReplayRatio, Spaced
from replay.storage import InMemory, OnDisk, References

__all__ = [
    "ForgettingAware",
    "InMemory",
    "OnDisk",
    "References",
    "ReplayBuffer",
    "ReplayRatio",
    "Spaced",
]
