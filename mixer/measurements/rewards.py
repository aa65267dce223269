"""Rewards of generated completions, by stream of their prompts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np

from mixer.measurements.measurement import Measurement, Requirement
from mixer.utils.arrays import BoolArray, FloatArray, Int64Array
from mixer.utils.errors import wrong_type
from mixer.utils.text import safe_names

_EQUAL = 1e-8  # rewards of a group that differ by no more give no advantage
NUM_SUMS = 8  # columns of `sums_of_groups`


@dataclass(frozen=True)
class RewardStatistics:
    """Rewards of a round of generation; a group holds the completions of one prompt.

    Args:
        groups: int64 `[num_streams]`: groups of each stream.
        reward: `[num_streams]`: mean over groups of the mean reward; NaN for a stream without a reward, as all below.
        spread: `[num_streams]`: mean over groups of the standard deviation of the rewards within.
        silent: `[num_streams]`: share of groups without a signal, whose rewards are all equal.
        mean_length: `[num_streams]`: mean tokens of a completion.
        kl: `[num_streams]`: mean divergence from the reference model per token, as the loss estimates it; NaN without.
    """

    groups: Int64Array
    reward: FloatArray
    spread: FloatArray
    silent: FloatArray
    mean_length: FloatArray
    kl: FloatArray

    @classmethod
    def of(cls, sums: FloatArray) -> "RewardStatistics":
        """Divides sums over groups: those of `sums_of_groups`, of any number of ranks and rounds."""
        groups, scored, reward, spread, silent, tokens, kl, kl_tokens = sums.T
        completions = sums[:, 0]  # lengths are summed up as means of a group
        parts = (reward, scored), (spread, scored), (silent, scored), (tokens, completions), (kl, kl_tokens)
        return cls(groups.astype(np.int64), *(_ratio(total, count) for total, count in parts))


def _ratio(total: FloatArray, count: FloatArray) -> FloatArray:
    ratio: FloatArray = np.divide(total, count, out=np.full(len(total), np.nan), where=count > 0)
    return ratio


class Rewards(Measurement[RewardStatistics]):
    """Rewards of the last round of generation, by stream of the prompts."""

    requires: ClassVar[frozenset[Requirement]] = frozenset({"generated completions"})

    @staticmethod
    def part(result: RewardStatistics, streams: Sequence[int]) -> RewardStatistics:
        """Returns the rewards of some of the streams; see `Measurement.part`."""
        chosen = np.asarray(streams, dtype=np.int64)
        return RewardStatistics(*(getattr(result, field.name)[chosen] for field in fields(result)))

    @staticmethod
    def reported(result: Any, streams: Sequence[str]) -> RewardStatistics:
        """Returns statistics, or those of rewards by stream, each of a list of groups; see `Measurement.reported`."""
        if isinstance(result, RewardStatistics):
            return result
        if not isinstance(result, Mapping):
            hint = 'Report {"math": [[1, 0, 1, 1], [0, 0, 0, 0]], ...}: a list of rewards for each prompt.'
            raise wrong_type("rewards", f"must be lists of groups by stream, got {type(result).__name__}. {hint}")
        groups = safe_names(result, "rewards")
        if unknown := sorted(groups.keys() - set(streams)):
            raise wrong_type("rewards", f"names {unknown}, but the streams are {list(streams)}.")
        sums = np.zeros((len(streams), NUM_SUMS))
        for number, name in enumerate(streams):
            for group in groups.get(name, ()):
                sums += sums_of_groups(np.array([number]), np.asarray(group, dtype=np.float64)[None], len(streams))
        return RewardStatistics.of(sums)


def sums_of_groups(
    stream_ids: Int64Array, rewards: FloatArray, num_streams: int, lengths: FloatArray | None = None
) -> FloatArray:
    """Adds up the groups of a round by stream.

    Args:
        stream_ids: int64 `[num_groups]`: the stream of each group's prompt.
        rewards: `[num_groups, num_generations]`; NaN for a completion without one.
        num_streams: Number of streams.
        lengths: `[num_groups]`: mean tokens of its completions; `None` if unknown.

    Returns:
        `[num_streams, NUM_SUMS]`: groups, those with a reward, and the sums of `RewardStatistics` in the order of its
        fields, with the tokens that the last one counts.
    """
    scored, means, spreads, silent = figures_of(rewards)
    own = np.zeros(len(rewards)) if lengths is None else lengths
    columns = np.stack([np.ones(len(rewards)), scored, means, spreads, silent, own], axis=1)
    sums = np.zeros((num_streams, NUM_SUMS))
    np.add.at(sums[:, : columns.shape[1]], stream_ids, columns)
    return sums


def figures_of(rewards: FloatArray) -> tuple[BoolArray, FloatArray, FloatArray, BoolArray]:
    """Returns of each group whether it has a reward, their mean and standard deviation, and whether all are equal.

    Args:
        rewards: `[num_groups, num_generations]`; NaN for a completion without one. A group without any has zeros.

    Returns:
        `[num_groups]` each.
    """
    scored: BoolArray = np.asarray(np.isfinite(rewards).any(axis=1))
    known = np.where(scored[:, None], rewards, 0.0)
    silent: BoolArray = np.nanmax(known, axis=1) - np.nanmin(known, axis=1) <= _EQUAL
    return scored, np.nanmean(known, axis=1), np.where(silent, 0.0, np.nanstd(known, axis=1)), silent & scored
