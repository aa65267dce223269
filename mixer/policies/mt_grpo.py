"""Multi-task GRPO: more prompts of the tasks with low rewards that do not improve."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from mixer.measurements import Rewards
from mixer.policies.contract import Decision, Mixture, Observation, PolicyWithOptions, Terms
from mixer.policies.shared.exponentiated import ExponentiatedWeights
from mixer.policies.shared.stream_average import StreamAverage
from mixer.utils.arrays import FloatArray
from mixer.utils.ranges import check_range


@dataclass(eq=False, repr=False)
class MTGRPO(PolicyWithOptions):
    """Weights tasks for the worst of them by reward and improvement, and keeps these shares among groups with signal.

    Ramesh et al. 2026, "Multi-Task GRPO: Reliable LLM Reasoning Across Tasks", arXiv:2602.05547: task weights `z` on
    the simplex, of logits `ξ`, take gradient steps on `Σ_k z_k (I_k + λ J_k)` with the mean reward `J_k` and its
    improvement `I_k` since the last round. So a task gains weight if its reward is low, and if it rises by less than
    that of others; `λ` leads from equal progress to the worst task alone. Prompts are drawn by `q_k ∝ z_k / (1 − f_k)`
    with the share `f_k` of groups without a signal, so that the groups that do have one keep the ratio `z`.

    From the authors' code: `I_k` is cut to [−0.1, 0.1], `λ` is 0.2 in a main experiment, and the inflation at most 5.
    There `ξ` moves by Adam at a rate of 0.025, `I_k` is the change of the surrogate objective on the same completions,
    and a round generates until each task has its number of groups with signal. Ours: `z_k ← z_k exp(−η (I_k + λ J_k))`,
    the exponentiated form of the same step, which needs no state of an optimizer; `I_k` is a difference of average
    rewards; and each round generates once, so that the ratio holds in the mean. A task without a prompt in a round
    counts with its last reward. Rewards are compared as they are: they need a common scale, as [0, 1].

    Args:
        step_size: `η`, per unit of reward.
        worst_weight: `λ`: 0 evens out improvements alone.
        smoothing: `c` in [0, 1]: `z ← (1 − c) z + c/K` after each step; 0 in the paper.
        decay: Share of the old average of rewards and of silent groups that stays at each round, in [0, 1).
        most_inflation: Largest factor for groups without signal; 1 draws by `z` itself.
        unit: Whether the weights are shares of samples or of tokens; prompts are samples.

    Raises:
        ValueError: If a value is outside its range.
    """

    remembered = ("_z", "_rewards", "_silent")

    needs = (Rewards(),)

    step_size: Annotated[float, check_range, 0, np.inf, "0 keeps the weights"] = 2.0
    worst_weight: Annotated[float, check_range, 0, np.inf, "0 evens out improvements alone"] = 0.2
    smoothing: Annotated[float, check_range, 0, 1, "0 is no smoothing, 1 is uniform"] = 0.02
    decay: float = 0.7
    most_inflation: Annotated[float, check_range, 1, np.inf, "1 draws by the task weights"] = 5.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._z = ExponentiatedWeights()
        self._rewards, self._silent = StreamAverage(self.decay), StreamAverage(self.decay)

    def start(self, mixture: Mixture) -> Decision:
        """Discards all rewards and starts with your weights; see `Policy.start`."""
        self._z.start(mixture.weights)
        self._rewards.start(len(mixture.names))
        self._silent.start(len(mixture.names))
        return Decision(mixture.weights)

    def update(self, observation: Observation) -> Decision:
        """Takes a step by the rewards of the last round; see `Policy.update`."""
        active, found = observation.is_active, observation[Rewards]
        if found is not None:
            before = self._rewards.values
            self._rewards.take(found.reward)
            self._silent.take(found.silent)
            after = self._rewards.values
            improvement = np.clip(np.nan_to_num(after - before), -0.1, 0.1)
            values = np.where(active, -(improvement + self.worst_weight * after), np.nan)
            self._z.step(values, self.step_size, self.smoothing)
        return Decision(self._inflated(self._z.mixture(active)))

    def _inflated(self, weights: FloatArray) -> FloatArray:
        """`[num_streams]`: the shares of prompts that give groups with signal the ratio of the weights."""
        heard = 1.0 - np.nan_to_num(self._silent.values)
        inflated = weights / np.maximum(heard, 1.0 / self.most_inflation)
        shares: FloatArray = inflated / inflated.sum()
        return shares

    def explain(self) -> Terms:
        """Returns `z`, and the averages of rewards and of groups without signal; see `Policy.explain`."""
        return {"z": self._z.weights, "reward": self._rewards.values, "silent": self._silent.values}
