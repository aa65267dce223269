"""Branches: copies of the model that are trained a little further on one stream each, and mixed."""

from dataclasses import dataclass

from mixer.policies.shared.ranges import check_count, check_range
from mixer.utils.arrays import BoolArray, FloatArray


@dataclass(frozen=True)
class BranchPlan:
    """When and how the model is branched, for a policy that needs `"branches"`.

    Args:
        stages: Shares of the run after which it is branched, each in (0, 1).
        num_steps: Optimizer steps of each branch; 0 takes a fortieth of the run's, 4 at least.
        num_mixtures: Mixtures of the branches that are evaluated, besides the branches themselves.
        adapter_rank: Rank of the low-rank adapters that a branch trains; 0 trains copies of the weights.

    Raises:
        ValueError: If a value is outside its range.
    """

    stages: tuple[float, ...] = (0.05, 0.3)
    num_steps: int = 0
    num_mixtures: int = 20
    adapter_rank: int = 0

    def __post_init__(self) -> None:
        if not self.stages:
            raise ValueError("stages must have a share of the run after which it is branched, got none.")
        for stage in self.stages:
            check_range("stages", stage, 1e-6, 0.999, "each is a share of the run after which it is branched")
        check_count("branch_steps", self.num_steps, 0, "0 takes a fortieth of the run's steps")
        check_count("num_mixtures", self.num_mixtures, 1, "20 are as published")
        check_count("adapter_rank", self.adapter_rank, 0, "0 branches the weights themselves")


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
