"""More of what helps the targets that improve slowest: GRAPE."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from mixer.policies.contract import Decision, Mixture, Observation, Unit
from mixer.policies.shared.exponentiated import exponentiated_step
from mixer.policies.shared.gradient_policy import GradientPolicy, Gradients
from mixer.policies.shared.ranges import check_range
from mixer.policies.shared.stream_average import StreamAverage
from mixer.policies.shared.targets import Targets, among, check_targets, target_weights
from mixer.utils.arrays import FloatArray


class GRAPE(GradientPolicy):
    """Plays targets that improve slowly against the streams that help them: GRAPE.

    Fan, Glarou and Jaggi 2025, "GRAPE: Optimize Data Mixture for Group Robust Multi-target Adaptive Pretraining",
    arXiv:2505.20380 (NeurIPS 2025), eq. 3 and 4, Algorithm 1. With `z` the weights of the targets, `w` those of the
    streams and `∇log L_n = g_n / L_n`, a target's rate of improvement to first order is `<∇log L_n, Σ_k w_k g_k>`; then

    - `z_n ← z_n exp(−(γ/μ_z) <∇log L_n, Σ_k w_k g_k>)`, normalised: slow targets count more;
    - `w_k ← w_k exp((γ/μ_w) <g_k, Σ_n z_n ∇log L_n>)`, normalised: what helps these is sampled more.

    Both are done at the same decision, `z` first, as the derivation has it (appendix B). The paper draws separate
    batches of targets and streams, and starts `z` and `w` from even weights; here targets are streams, whose own
    training samples stand for them, `w` starts from the streams' own weights, and gradients and losses are smoothed. A
    target's product with itself has its noise taken out. Rates are the paper's `γ/μ` (1.5 and 10, appendix D), where γ
    is the learning rate and decays, which these do not; its exponents have the units of a gradient's square over a
    loss, so that they fit its models and not any other: `scale_free` divides the products `<∇log L_n, g_k>` by the mean
    size of the targets' own, `<∇log L_n, g_n>`, and then rates near 0.1 are in place (ours). Nothing pulls back to the
    start but the targets' own play.

    Losses have to be above 0: a target whose average is not, or that has none yet, is left out of the decision.

    Args:
        targets: Names of streams, or importance by name to start `z` from; `None` is all streams alike.
        interval_steps: Steps from a measurement to the next.
        rate: `γ/μ_w` of the streams' weights.
        task_rate: `γ/μ_z` of the targets' weights; 0 leaves them as they are, which is DoGE towards targets.
        scale_free: Whether the products are divided by their mean size.
        min_samples: Least samples of each stream in a batch.
        decay: Share of the old averages that stays at each measurement or loss, in [0, 1).
        unit: Whether the weights are shares of samples or of tokens.

    Raises:
        ValueError: If a value is outside its range; at the start of the run if a target is no stream.
    """

    needs = frozenset({"gradient_variance", "loss"})

    def __init__(
        self,
        targets: Targets = None,
        interval_steps: int = 100,
        rate: float = 1.5,
        task_rate: float = 10.0,
        scale_free: bool = False,
        min_samples: int = 2,
        decay: float = 0.9,
        *,
        unit: Unit = "samples",
    ):
        super().__init__(interval_steps, min_samples, decay, unit=unit)
        check_range("rate", rate, 0, math.inf, "1.5 is the paper's")
        check_range("task_rate", task_rate, 0, math.inf, "10 is the paper's, 0 keeps the targets' weights")
        self.targets = check_targets(targets)
        self.rate, self.task_rate, self.scale_free = rate, task_rate, scale_free
        self._losses = StreamAverage(decay)

    def start(self, mixture: Mixture) -> Decision:
        """Looks the targets up, and starts as `GradientPolicy`; see `Policy.start`."""
        num_streams = len(mixture.names)
        uniform = np.full(num_streams, 1.0 / num_streams)
        self._tasks = target_weights(self.targets, mixture.names, uniform, "GRAPE")
        self._is_task = self._tasks > 0.0
        self._losses.start(num_streams)
        return super().start(mixture)

    def update(self, observation: Observation) -> Decision:
        """Takes the new losses into their averages, then as `GradientPolicy`; see `Policy.update`."""
        self._losses.take(observation.losses)
        return super().update(observation)

    def _weigh(self, gradients: Gradients) -> FloatArray | None:
        losses = self._losses.values
        with np.errstate(invalid="ignore"):
            playing = gradients.known & self._is_task & (losses > 0.0)
        tasks = among(self._tasks, playing)
        if tasks is None:
            return None
        rows = playing[gradients.known]
        with np.errstate(over="ignore"):
            products = np.clip(gradients.gram[rows] / losses[playing][:, None], -1e150, 1e150)  # [num_targets, known]
        if self.scale_free:
            size = float(np.abs(products[:, rows].diagonal()).mean())
            if not size > 0.0:
                return None
            with np.errstate(over="ignore"):
                products = np.clip(products / size, -1e150, 1e150)
        tasks = self._play(playing, tasks, products @ gradients.weights)
        return exponentiated_step(gradients.weights, tasks @ products, self.rate)

    def _play(self, playing: np.ndarray, tasks: FloatArray, improvements: FloatArray) -> FloatArray:
        """Moves the targets' weights, eq. 3; those that do not play keep theirs."""
        moved = exponentiated_step(tasks, -improvements, self.task_rate)
        weights = self._tasks.copy()
        weights[playing] = weights[playing].sum() * moved
        self._tasks = weights
        return moved

    @property
    def target_weights(self) -> FloatArray:
        """`[num_streams]`: the targets' weights z; 0 for a stream that is no target."""
        return self._tasks.copy()

    def state_dict(self) -> dict[str, Any]:
        """Gives the targets' weights and the losses too; see `Policy.state_dict`."""
        return {**super().state_dict(), "tasks": self._tasks.tolist(), "losses": self._losses.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes up the targets' weights and the losses too; see `Policy.load_state_dict`."""
        super().load_state_dict(state)
        self._tasks = np.array(state["tasks"], dtype=np.float64)
        self._losses.load_state_dict(state["losses"])
