"""Balanced PiKE: PiKE for even learning of the streams."""

from dataclasses import replace
from typing import Literal, TypedDict, Unpack

import numpy as np

from mixer.measurements import Gradients, Loss
from mixer.policies.contract import Decision, Mixture, Observation, Unit
from mixer.policies.pike import PiKE
from mixer.policies.shared.decisions import with_mean_one
from mixer.policies.shared.descent_bound import Bound
from mixer.policies.shared.shares import softmax
from mixer.policies.shared.stream_average import StreamAverage
from mixer.utils.arrays import BoolArray, FloatArray
from mixer.utils.ranges import check_range


class PiKEArguments(TypedDict, total=False):
    """Keyword arguments of `PiKE`."""

    interval_steps: int
    mode: Literal["practical", "conceptual"]
    signal_rate: float
    noise_rate: float
    scale_free: bool
    max_log_change: float
    step_sharpness: float
    conflict: float | None
    alignment: float | None
    bound: Bound
    min_samples: int
    decay: float
    unit: Unit


class BalancedPiKE(PiKE):
    """PiKE on the losses `y_k L_k`, with larger factors for higher losses: balanced PiKE.

    The balanced variant of Li et al. 2025, arXiv:2502.06244: the objective is `(1/τ) log Σ_k exp(τ L_k)` instead of the
    sum, close to the largest loss for large τ, and `y_k = τ softmax(τL)_k`. So gradients are scaled by `y_k`, norms and
    variances by `y_k²`. The paper tried τ of 1, 3 (best on average) and 5 (most even).

    Losses are smoothed over steps (ours); a stream without one counts as the mean of the others. τ depends on the unit
    of the losses, which should be comparable between streams.

    Args:
        tau: `τ`, above 0, per unit of loss.
        loss_decay: Share of the old average loss that stays at each step, in [0, 1).
        uses_loss_weights: Whether to also multiply the losses of stream k by `K softmax(τL)_k`, as the objective has
            it, with a mean of 1 over the present streams; by default the factors only affect the sampling. Loss weights
            need micro-batches of one stream each, and so more of them.
        **arguments: See `PiKE`.

    Raises:
        ValueError: If a value is outside its range.
    """

    remembered = ("_losses",)

    needs = (Gradients(variance=True), Loss())
    compares_losses = True

    def __init__(
        self,
        tau: float = 3.0,
        loss_decay: float = 0.9,
        uses_loss_weights: bool = False,
        **arguments: Unpack[PiKEArguments],
    ):
        super().__init__(**arguments)
        check_range("tau", tau, 1e-9, 1e9, "3 is best on average, 5 most even, a small one is PiKE")
        self.tau = tau
        self.uses_loss_weights = uses_loss_weights
        self._losses = StreamAverage(loss_decay, "loss_decay")

    def start(self, mixture: Mixture) -> Decision:
        """Discards losses and gradients and returns your weights; see `Policy.start`."""
        self._losses.start(len(mixture.names))
        return self._with_loss_weights(super().start(mixture), mixture.is_active)

    def update(self, observation: Observation) -> Decision:
        """Updates the average losses, then as `PiKE`; see `Policy.update`."""
        self._losses.take(observation.by_stream(Loss))
        return self._with_loss_weights(super().update(observation), observation.is_active)

    def _with_loss_weights(self, decision: Decision, active: BoolArray) -> Decision:
        if not self.uses_loss_weights:
            return decision
        return replace(decision, loss_weights=with_mean_one(self._softmax(), active & (self._own > 0.0)))

    def _factors(self) -> FloatArray:
        return self.tau * self._softmax()

    def _softmax(self) -> FloatArray:
        losses = self._losses.values
        known = np.isfinite(losses)
        if not known.any():
            return np.full(len(losses), 1.0 / len(losses))
        with np.errstate(over="ignore"):  # -inf is a share of 0
            scores = self.tau * (losses - losses[known].max())
            scores[~known] = scores[known].mean()
        return softmax(scores)
