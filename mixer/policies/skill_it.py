"""Skill-It: more of the streams that help streams with a high loss."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from mixer.measurements import EvaluationLoss
from mixer.policies.contract import Decision, Mixture, Observation, PolicyWithOptions
from mixer.policies.shared.decisions import decide
from mixer.policies.shared.shares import softmax
from mixer.policies.shared.skill_graph import SkillGraph, graph_array
from mixer.policies.shared.slopes import bounded
from mixer.utils.arrays import BoolArray, FloatArray
from mixer.utils.ranges import check_count, check_range


@dataclass(eq=False, repr=False)
class SkillIt(PolicyWithOptions):
    """Increases the weight of a stream by the losses of the streams that it helps: `w_i ∝ exp(η Σ_j A_ij Σ_τ L_j(τ))`.

    Skill-It of Chen et al. 2023, arXiv:2307.14430, algorithm 1: `A_ij` is the help of training on stream i for stream
    j, `L_j(τ)` are the losses of the last `window` evaluations. The weights start from the streams' own each time, not
    from the last ones. Before the first evaluation `L = 1`, as in the paper, that is `w_i ∝ exp(η Σ_j A_ij)`. The paper
    starts from even weights, which are the default of the streams' own.

    The paper learns A beforehand, from short runs on one stream or two. Here it is an argument; by default a stream
    only helps itself, and the policy is multiplicative weights on the evaluation losses.

    A stream without a loss counts as the mean of the others; an absent one still counts as a stream that others help,
    as long as it is evaluated (ours). η depends on the unit of the losses. Shares become tiny if η times a difference
    of losses is large: wrap the policy in `Floor` against that.

    Args:
        graph: A: by name `{helper: {helped: strength}}` with a default of 0 (1 from a stream to itself), or
            `[num_streams, num_streams]` with a row for each helper; `None` is the identity.
        learning_rate: η; 0.1 to 0.8 in the authors' scripts.
        window: Number of evaluations; 3 in the authors' scripts.
        unit: Whether the weights are shares of samples or of tokens.

    Raises:
        ValueError: If a value is outside its range; at the start of the run if the graph does not fit the streams.
    """

    _remembered = ("_history",)

    needs = (EvaluationLoss(),)
    compares_losses = True

    graph: SkillGraph | None = None
    learning_rate: Annotated[float, check_range, 0, 1e6, "the public scripts try 0.1 to 0.8, 0 keeps the weights"] = 0.2
    window: Annotated[int, check_count, 1, "the public scripts use 3, 1 uses only the last evaluation"] = 3

    def start(self, mixture: Mixture) -> Decision:
        """Reads the graph for these streams and discards all losses; see `Policy.start`."""
        self._own = mixture.weights
        self._graph = graph_array(self.graph, mixture.names)
        self._history = np.zeros((0, len(mixture.names)))
        return self._weigh(mixture.is_active)

    def update(self, observation: Observation) -> Decision:
        """Adds an evaluation to the window, and computes new weights; see `Policy.update`."""
        if (losses := observation[EvaluationLoss]) is not None:
            self._history = np.vstack([self._history, bounded(losses)])[-self.window :]
        return self._weigh(observation.is_active)

    def _weigh(self, active: BoolArray) -> Decision:
        exponents = self.learning_rate * (self._graph @ self._sums())
        return decide(softmax(exponents, active & (self._own > 0)), self._own, active, "sampling")

    def _sums(self) -> FloatArray:
        """`[num_streams]`: sums of the losses in the window; 1 without losses."""
        counts = np.isfinite(self._history).sum(axis=0)
        known = counts > 0
        if not known.any():
            return np.ones(len(self._own))
        means = np.nansum(self._history, axis=0) / np.maximum(counts, 1)
        means[~known] = means[known].mean()
        sums: FloatArray = len(self._history) * means
        return sums
