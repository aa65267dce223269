"""Replay policies: how much to replay, with another policy for the remaining streams."""

from replay.policies.base import Past as Past, Replay as Replay, ReplayPolicy as ReplayPolicy
from replay.policies.ratios import (
    Constant as Constant,
    OfSeen as OfSeen,
    OverProgress as OverProgress,
    Ratio as Ratio,
    as_ratio as as_ratio,
)
from replay.policies.replay_bound import ReplayBound as ReplayBound
from replay.policies.replay_ratio import ReplayRatio as ReplayRatio
