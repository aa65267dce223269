"""Replay policies: how much to replay, with another policy for the remaining streams."""

from replay.policies.base import Past, Replay, ReplayPolicy
from replay.policies.ratios import Constant, OfSeen, OverProgress, Ratio, as_ratio
from replay.policies.replay_bound import ReplayBound
from replay.policies.replay_ratio import ReplayRatio

__all__ = [
    "Constant",
    "OfSeen",
    "OverProgress",
    "Past",
    "Ratio",
    "Replay",
    "ReplayBound",
    "ReplayPolicy",
    "ReplayRatio",
    "as_ratio",
]
