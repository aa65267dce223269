"""ADO (adaptive data optimization): samples streams by the slope of their scaling laws."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np

from mixer.measurements import Loss
from mixer.policies.contract import Decision, Mixture, Observation, PolicyWithOptions, Terms
from mixer.policies.shared.loss_history import LossHistory
from mixer.policies.shared.scaling_law import MIN_POINTS, ScalingLaw, fit_scaling_law
from mixer.policies.shared.shares import at_least, resolve_least, share_out, softmax
from mixer.utils.arrays import BoolArray, FloatArray
from mixer.utils.errors import wrong_value
from mixer.utils.ranges import check_count, check_range

_USUAL_FLOOR = 0.01


@dataclass(eq=False, repr=False)
class ADO(PolicyWithOptions):
    """Samples a stream by the rate at which a scaling law predicts its loss to fall: adaptive data optimization.

    Jiang et al. 2024, "Adaptive Data Optimization: Dynamic Sample Selection with Scaling Laws", arXiv:2410.11820 (ICLR
    2025). A law `L_k(n) = ε_k + β_k n^{−α_k}` is fitted to each stream's training losses every `refit_steps` steps (see
    `fit_scaling_law`). At each step, with `μ` your weights and `π` the share of a stream in the samples:

    - `h ← 0.9 h + 0.1 π` from `h = μ`: the credit of a stream for the progress of the others;
    - `ρ_k ∝ μ_k √h_k α_k (L_k(n) − ε_k)/n`, that is, proportional to `−dL_k/dn`;
    - `p = 0.9 p̄ + 0.1 ρ`, each at least `floor`, and `p̄` the mean of all `p` so far, including the warm-up.

    In the `"paper"` form `n` is the amount of the stream's own data. In the authors' code (`"code"`) `n` is the amount
    of all data, `h` follows counts (of tokens, if these are the unit), `√(h(1 − h))` replaces `√h`, the floor applies
    to `ρ`, and `p̄` is the mean of `ρ`. The last matters: the paper's `p̄` approaches a constant `ρ` as `t^{−0.1}`, a
    fifth of the way in ten times the steps; the code's as `1/t`.

    Ours: losses are averaged over blocks instead of filtered, with at most `max_points` per stream, which bounds memory
    and the cost of a fit (about 10 ms per stream); losses of 0 or less are ignored; a stream without a law yet has its
    own share of `ρ`, an absent one keeps its own weight and its credit; one with an own weight of 0 has no floor. Your
    weights apply until the first laws.

    Args:
        form: `"paper"` or `"code"`.
        num_warmup_steps: Steps before the first fit.
        refit_steps: Steps between fits.
        num_ignored_steps: Initial steps with losses that no law uses; at most `num_warmup_steps`.
        floor: Least share of each stream, at most 1/K; `None` is 0.01, or 1/(2K) for more than fifty streams.
        credit_decay: Share of `h` that stays at each step, in [0, 1].
        mean_share: Share of `p̄` in `p`, in [0, 1].
        max_points: Largest number of points of a stream's loss curve; even.
        unit: Whether the weights are shares of samples or of tokens; `n` has the same unit.

    Raises:
        ValueError: If a value is outside its range; at the start of the run if the floors exceed 1.
    """

    remembered = ("_history", "_credit", "_mean", "_amounts")

    needs = (Loss(),)
    compares_losses = True
    own_cost = "fits on the CPU"

    form: Literal["paper", "code"] = "paper"
    num_warmup_steps: Annotated[int, check_count, 1, "a law needs a few losses"] = 1000
    refit_steps: Annotated[int, check_count, 1, "1 fits after every step"] = 1000
    num_ignored_steps: Annotated[int, check_count, 0, "0 takes all losses"] = 500
    floor: Annotated[float | None, check_range, 0, 1, "0 is no floor"] = None
    credit_decay: Annotated[float, check_range, 0, 1, "0 credits only the last step"] = 0.9
    mean_share: Annotated[float, check_range, 0, 1, "0 follows only the newest laws"] = 0.9
    max_points: int = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_ignored_steps > self.num_warmup_steps:
            raise wrong_value(
                "num_ignored_steps",
                f"must be at most num_warmup_steps={self.num_warmup_steps}, got {self.num_ignored_steps}.",
            )
        self._history = LossHistory(self.max_points)

    @property
    def laws(self) -> dict[str, ScalingLaw | None]:
        """The laws of the last fit, by the name of the stream; `None` for a stream with too few losses."""
        return dict(zip(self._names, self._laws, strict=True)) if hasattr(self, "_names") else {}

    def start(self, mixture: Mixture) -> Decision:
        """Discards all losses and returns your weights; see `Policy.start`."""
        num_streams = len(mixture.names)
        self._least = resolve_least(self.floor, _USUAL_FLOOR, num_streams, "ADO", "floor")
        self._names, self._own = mixture.names, mixture.weights
        self._credit = self._mean = mixture.weights
        self._amounts = np.zeros(num_streams)
        self._laws: list[ScalingLaw | None] = [None] * num_streams
        self._history.start(num_streams)
        return Decision(self._own)

    def update(self, observation: Observation) -> Decision:
        """Records the losses, fits laws when they are due, and computes new weights; see `Policy.update`."""
        step, active = observation.step, observation.is_active & (self._own > 0.0)
        self._take(observation)
        if step >= self.num_warmup_steps and (step - self.num_warmup_steps) % self.refit_steps == 0:
            self._laws = [self._fit(stream) for stream in range(len(self._own))]
        if not active.any() or all(law is None for law in self._laws):
            return Decision(self._own)
        preferred = self._prefer(active)
        mean = _among(self._mean, active)
        mixed = np.zeros(len(active))
        mixed[active] = self.mean_share * mean[active] + (1.0 - self.mean_share) * preferred[active]
        # The code's form already includes the floor.
        weights = share_out(mixed, self._own, active, self._least if self.form == "paper" else 0.0)
        averaged = weights if self.form == "paper" else share_out(preferred, self._own, active, 0.0)
        self._mean = self._mean + (averaged - self._mean) / (step + 1)
        return Decision(weights)

    def _take(self, observation: Observation) -> None:
        amounts = observation.counts if self.unit == "samples" else observation.tokens
        shares = observation.weights if observation.shares is None else observation.shares
        drawn = shares if self.form == "paper" else amounts
        credit = self.credit_decay * self._credit + (1.0 - self.credit_decay) * drawn / max(drawn.sum(), 1e-300)
        waited = (observation.weights > 0.0) & (shares <= 0.0)
        self._credit = np.where(waited, self._credit, credit)
        self._amounts = self._amounts + amounts
        if observation.step > self.num_ignored_steps:
            self._history.take(self._amounts_of_laws(), observation.by_stream(Loss))

    def _amounts_of_laws(self) -> FloatArray:
        return self._amounts if self.form == "paper" else np.full(len(self._amounts), self._amounts.sum())

    def _fit(self, stream: int) -> ScalingLaw | None:
        log_amounts, log_losses = self._history.points(stream)
        if len(log_amounts) < MIN_POINTS:
            return self._laws[stream]
        return fit_scaling_law(log_amounts, log_losses)

    def _prefer(self, active: BoolArray) -> FloatArray:
        """`ρ` over the streams that are there; 0 for others."""
        preferred, amounts = _among(self._own, active), np.maximum(self._amounts_of_laws(), 1.0)
        credit = self._credit if self.form == "paper" else self._credit * (1.0 - self._credit)
        with np.errstate(divide="ignore"):  # the logarithm of 0 is a share of 0
            logits = np.log(self._own) + 0.5 * np.log(credit)
        for stream, law in enumerate(self._laws):
            logits[stream] += -np.inf if law is None else law.log_slope(amounts[stream])
        known = active & np.array([law is not None for law in self._laws])
        if known.any() and np.isfinite(logits[known].max()):
            preferred[known] = preferred[known].sum() * softmax(logits[known])
        if self.form == "code":
            preferred[active] = at_least(preferred[active], self._least)
        return preferred

    def explain(self) -> Terms:
        """Returns the laws' slopes, the credit and the mean mixture; see `Policy.explain`."""
        laws = zip(self._laws, np.maximum(self._amounts_of_laws(), 1.0), strict=True)
        slopes = np.array([np.nan if law is None else law.log_slope(amount) for law, amount in laws])
        return {"log slope": slopes, "credit": self._credit, "mean weight": self._mean, "own weight": self._own}

    def state_dict(self) -> dict[str, Any]:
        """Adds the fitted laws; see `Policy.state_dict`."""
        laws = [None if law is None else [law.log_floor, law.log_scale, law.exponent] for law in self._laws]
        return {**super().state_dict(), "laws": laws}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Loads the fitted laws too; see `Policy.load_state_dict`."""
        super().load_state_dict(state)
        self._laws = [None if law is None else ScalingLaw(*law) for law in state["laws"]]


def _among(weights: FloatArray, active: BoolArray) -> FloatArray:
    """Shares among the active streams, 0 for others; equal if these have no weight."""
    among = np.where(active, weights, 0.0)
    total = among.sum()
    shares: FloatArray = among / total if total > 0.0 else active / active.sum()
    return shares
