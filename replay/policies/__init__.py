"""Replay policies: how much to replay, with another policy for the remaining streams."""

from replay.policies.base import Past, Replay, ReplayPolicy
from replay.policies.forgetting_aware import ForgettingAware
from replay.policies.ratios import Constant, OfSeen, OverProgress, Ratio, as_ratio
from replay.policies.replay_bound import ReplayBound
from replay.policies.replay_ratio import ReplayRatio
from replay.policies.spaced import Spaced

__all__ = [
    "Constant",
    "ForgettingAware",
    "OfSeen",
    "OverProgress",
    "Past",
    "Ratio",
    "Replay",
    "ReplayBound",
    "ReplayPolicy",
    "ReplayRatio",
    "Spaced",
    "as_ratio",
]
