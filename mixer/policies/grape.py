"""GRAPE: more of the streams that help the targets with the slowest improvement."""

import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from mixer.measurements import Alignment, Gradients, Loss, Needs
from mixer.policies.contract import Decision, Mixture, Observation
from mixer.policies.shared.exponentiated import exponentiated_step
from mixer.policies.shared.gradient_policy import KnownGradients
from mixer.policies.shared.shares import divided_anew
from mixer.policies.shared.stream_average import StreamAverage
from mixer.policies.shared.targeted import TargetedPolicy, TargetsOrObjective
from mixer.policies.shared.targets import among
from mixer.utils.arrays import BoolArray, FloatArray
from mixer.utils.ranges import IntervalSteps, MinSamples, check_range


@dataclass(eq=False, repr=False)
class GRAPE(TargetedPolicy):
    """Increases the weight of targets that improve slowly, and of the streams that help them: GRAPE.

    Fan, Glarou and Jaggi 2025, "GRAPE: Optimize Data Mixture for Group Robust Multi-target Adaptive Pretraining",
    arXiv:2505.20380 (NeurIPS 2025), eq. 3 and 4, Algorithm 1. With `z` the weights of the targets, `w` those of the
    streams and `∇log L_n = g_n / L_n`, a target's rate of improvement to first order is `<∇log L_n, Σ_k w_k g_k>`; then

    - `z_n ← z_n exp(−(γ/μ_z) <∇log L_n, Σ_k w_k g_k>)`, normalised: slow targets gain weight;
    - `w_k ← w_k exp((γ/μ_w) <g_k, Σ_n z_n ∇log L_n>)`, normalised: streams that help these gain weight.

    Both happen in the same decision, `z` first, as in the derivation (appendix B). The paper draws separate batches of
    targets and streams, and starts `z` and `w` from even weights. Here targets are streams, represented by their own
    training samples, `w` starts from your weights, gradients and losses are smoothed, and noise is removed
    from the product of a target with itself. Rates are the paper's `γ/μ` (1.5 and 10, appendix D), but without the
    decay of its learning rate γ. Its exponents have the unit of a squared gradient over a loss, so they only suit its
    models: `scale_free` divides the products `<∇log L_n, g_k>` by the mean size of the targets' own, `<∇log L_n, g_n>`,
    and suits rates near 0.1 (ours). Nothing pulls back to the start except the targets' own game.

    Losses have to be positive: a target without a positive average loss is left out of the decision.

    Args:
        targets: Names of streams, or importance by name as the start of `z`; `None` is all streams, evenly;
            `"objective"` is the targets of the declared objective, on rows of their own, as in the paper.
        interval_steps: Steps between measurements.
        rate: `γ/μ_w` of the streams' weights.
        task_rate: `γ/μ_z` of the targets' weights; 0 keeps them, which is DoGE with targets.
        scale_free: Whether to divide the products by their mean size.
        min_samples: Least samples of each stream in a batch.
        decay: Share of the old averages that stays at each measurement or loss, in [0, 1).
        unit: Whether the weights are shares of samples or of tokens.

    Raises:
        ValueError: If a value is outside its range; at the start of the run if a target is no stream.
    """

    remembered = ("_tasks", "_losses")

    needs = Needs((Gradients(variance=True), Loss()))

    targets: TargetsOrObjective = None
    interval_steps: IntervalSteps = 100
    rate: Annotated[float, check_range, 0, math.inf, "1.5 is the paper's"] = 1.5
    task_rate: Annotated[float, check_range, 0, math.inf, "10 is the paper's, 0 keeps the targets' weights"] = 10.0
    scale_free: bool = False
    min_samples: MinSamples = 2
    decay: float = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        self._losses = StreamAverage(self.decay)

    def start(self, mixture: Mixture) -> Decision:
        """Reads the targets, and starts as `GradientPolicy`; see `Policy.start`."""
        decision = super().start(mixture)
        self._tasks = self._importance
        self._is_task = self._tasks > 0.0
        self._losses.start(len(self._tasks))
        return decision

    def update(self, observation: Observation) -> Decision:
        """Updates the average losses, then as `GradientPolicy`; see `Policy.update`."""
        targets = observation[Alignment]
        if not self.follows_objective:
            self._losses.take(observation.by_stream(Loss))
        elif targets is not None:
            self._losses.take(targets.losses)
        return super().update(observation)

    def _weigh_targets(self, products: FloatArray, losses: FloatArray, weights: FloatArray) -> FloatArray | None:
        with np.errstate(invalid="ignore", over="ignore"):
            playing = self._is_task & (self._losses.values > 0.0)
            own = np.abs(products[playing]).max(axis=1, initial=0.0) / self._losses.values[playing]
        size = float(np.clip(own, 0.0, 1e150).mean()) if len(own) else 0.0
        return self._game(playing, products[playing], size, weights)

    def _weigh(self, gradients: KnownGradients) -> FloatArray | None:
        losses = self._losses.values
        with np.errstate(invalid="ignore"):
            playing = gradients.known & self._is_task & (losses > 0.0)
        rows = playing[gradients.known]
        with np.errstate(over="ignore"):
            own = np.clip(gradients.gram[rows][:, rows].diagonal() / losses[playing], -1e150, 1e150)
        size = float(np.abs(own).mean()) if len(own) else 0.0
        return self._game(playing, gradients.gram[rows], size, gradients.weights)

    def _game(self, playing: BoolArray, products: FloatArray, size: float, weights: FloatArray) -> FloatArray | None:
        """Updates the weights of the targets that play, then those of the streams.

        Args:
            playing: bool `[num_targets]`.
            products: `[num_playing, num_known]`: `<g_n, g_k>`.
            size: Mean size of the targets' own `<∇log L_n, g_n>`, for `scale_free`.
            weights: `[num_known]` on the simplex.
        """
        tasks = among(self._tasks, playing)
        if tasks is None or (self.scale_free and not size > 0.0):
            return None
        with np.errstate(over="ignore"):
            products = np.clip(products / self._losses.values[playing][:, None], -1e150, 1e150)
            products = np.clip(products / size, -1e150, 1e150) if self.scale_free else products
        tasks = self._play(playing, tasks, products @ weights)
        return exponentiated_step(weights, tasks @ products, self.rate)

    def _play(self, playing: np.ndarray, tasks: FloatArray, improvements: FloatArray) -> FloatArray:
        """Updates the targets' weights, eq. 3; absent targets keep theirs."""
        moved = exponentiated_step(tasks, -improvements, self.task_rate)
        self._tasks = divided_anew(self._tasks, playing, moved)
        return moved

    @property
    def target_weights(self) -> FloatArray:
        """`[num_targets]`: the targets' weights z; where these are streams, 0 for one that is no target."""
        return self._tasks.copy()
