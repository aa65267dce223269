"""OPMix: the mixture that branches of the present model predict to be best."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from mixer.measurements import Branches, BranchStatistics
from mixer.policies.contract import Decision, Mixture, Observation, PolicyWithOptions
from mixer.policies.objective import Objective
from mixer.policies.shared.mixing_law import MixingLaw
from mixer.policies.shared.shares import divided_anew, share_out, shares
from mixer.utils.arrays import BoolArray
from mixer.utils.ranges import check_count, check_range

_HUGE = 1e12  # a branch with such a loss has diverged; its differences are lost in rounding


@dataclass(eq=False, repr=False)
class OPMix(PolicyWithOptions):
    """Takes the mixture that branches of the present model predict to be best for the objective: on-policy mix.

    Hu et al. 2026, "Always Learning, Always Mixing", arXiv:2605.15220. At each stage the model is branched: a copy, or
    a low-rank adapter, is trained for some steps on each stream. A model that was trained on a mixture `w` is simulated
    by the same mixture of the branches' weights. The losses of such models are fitted, for each target j, by

        L_j(w) = c_j + exp(a_j + Σ_k t_jk w_k),

    and the mixture of the next stage minimises their mean by importance `+ λ KL(w ‖ w⁰)`, with the streams' own weights
    `w⁰`. Published: 20 mixtures, adapters of rank 16, λ = 0.05 and branches of thousands of steps, which need not fit
    into a run: these are a fortieth of its steps. Losses of so short branches differ by less, so they are divided by
    their range (`scale_free`, ours).

    Branches need the memory of a copy of what they train, for each stream, and of the optimizer's state.

    Args:
        stages: Shares of the run after which the mixture is decided.
        branch_steps: Optimizer steps of a branch; 0 takes a fortieth of the run's, 4 at least.
        num_mixtures: Mixtures of the branches that are evaluated, besides the branches themselves.
        strength: `λ`.
        scale_free: Whether to divide losses by their range over the mixtures.
        adapter_rank: Rank of low-rank adapters in all linear layers, which a branch trains in place of the weights; 0
            trains the weights.
        tau: `τ` of the smooth maximum for the worst of several targets, per unit of loss.
        unit: Whether the weights are shares of samples or of tokens.

    Raises:
        ValueError: If a value is outside its range.
    """

    _remembered = ("_weights",)

    needs = (Branches(),)
    own_cost = "a branch of a fortieth of the run for each stream, at each of two stages"

    stages: Sequence[float] = (0.05, 0.3)
    branch_steps: Annotated[int, check_count, 0, "0 takes a fortieth of the run's steps"] = 0
    num_mixtures: Annotated[int, check_count, 1, "20 are as published"] = 20
    strength: Annotated[float, check_range, 1e-6, math.inf, "0.05 is as published"] = 0.05
    scale_free: bool = True
    adapter_rank: Annotated[int, check_count, 0, "0 branches the weights themselves"] = 0
    tau: Annotated[float, check_range, 1e-9, 1e9, "a large one is the maximum, a small one the average"] = 3.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.needs = (Branches(tuple(self.stages), self.branch_steps, self.num_mixtures, self.adapter_rank),)

    def start(self, mixture: Mixture) -> Decision:
        """Starts from the streams' own weights; see `Policy.start`."""
        self._objective = mixture.objective or Objective(list(mixture.names))
        self._own = self._weights = mixture.weights
        return Decision(self._own)

    def update(self, observation: Observation) -> Decision:
        """Takes the best mixture of the branches, if there are any; see `Policy.update`."""
        active = observation.is_active & (self._own > 0.0)
        if (branches := observation[Branches]) is not None:
            self._decide(branches, active)
        return Decision(share_out(self._weights, self._own, active, 0.0, observation.tokens_per_sample))

    def _decide(self, branches: BranchStatistics, active: BoolArray) -> None:
        among = active & branches.have_branch
        is_known = (np.abs(branches.losses) < _HUGE).all(axis=1)
        if among.sum() < 2 or is_known.sum() <= among.sum():
            return
        losses = branches.losses[is_known]
        importance = self._objective.weights(losses.mean(axis=0), self.tau)
        unit = float(np.ptp(losses @ importance)) if self.scale_free else 1.0
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            losses = losses / unit
        if (np.abs(losses) < _HUGE).all():
            law = MixingLaw.fit(branches.mixtures[is_known][:, among], losses)
            best = law.best(importance, shares(self._own[among]), self.strength)
            self._weights = divided_anew(self._weights, among, best)
