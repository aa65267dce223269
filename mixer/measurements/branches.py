"""Branches: copies of the model that are trained a little further on one stream each, and mixed."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from mixer.measurements.measurement import Measurement
from mixer.utils.arrays import BoolArray, FloatArray


@dataclass(frozen=True)
class BranchStatistics:
    """Losses of mixtures of branches, in place of models that were trained on mixtures of the streams.

    Args:
        mixtures: `[num_mixtures, num_streams]`: on the simplex of the streams that have a branch, 0 for others.
        losses: `[num_mixtures, num_targets]`: mean losses per item on rows that steer, in the order of
            `Objective.names`.
        have_branch: bool `[num_streams]`.
    """

    mixtures: FloatArray
    losses: FloatArray
    have_branch: BoolArray


@dataclass(frozen=True)
class Branches(Measurement[BranchStatistics]):
    """Short trainings of branches of the model on each stream, and the targets' losses under mixtures of them.

    Args:
        stages: Shares of the run after which it is branched, each in (0, 1).
        num_steps: Optimizer steps of each branch; 0 takes a fortieth of the run's, 4 at least.
        num_mixtures: Mixtures of the branches that are evaluated, besides the branches themselves.
        adapter_rank: Rank of the low-rank adapters that a branch trains; 0 trains copies of the weights.

    Raises:
        ValueError: If there is no stage, or one is outside the run.
    """

    requires = frozenset({"objective", "whole gradients"})
    costs = "short trainings on each stream, and losses of their mixtures"

    stages: tuple[float, ...] = (0.05, 0.3)
    num_steps: int = 0
    num_mixtures: int = 20
    adapter_rank: int = 0

    def __post_init__(self) -> None:
        if not self.stages or not all(0.0 < stage < 1.0 for stage in self.stages):
            raise ValueError(
                f"stages must be shares of the run after which it is branched, each in (0, 1), got {self.stages}."
            )

    @staticmethod
    def part(result: BranchStatistics, streams: Sequence[int]) -> BranchStatistics:
        """Returns the mixtures of some of the streams; see `Measurement.part`."""
        index = np.asarray(streams, dtype=np.int64)
        return replace(result, mixtures=result.mixtures[:, index], have_branch=result.have_branch[index])
