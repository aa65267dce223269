"""Aioli: weights from the effect of each stream on all losses, measured in short probes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np

from mixer.measurements import EvaluationLoss, Loss, Needs
from mixer.policies.contract import Decision, Mixture, Observation, PolicyWithOptions
from mixer.policies.shared.probe_round import ProbeRound, normalised
from mixer.policies.shared.shares import share_out, softmax
from mixer.policies.shared.slopes import bounded, slopes_of
from mixer.utils.arrays import BoolArray, FloatArray
from mixer.utils.ranges import check_count, check_range


@dataclass(eq=False, repr=False)
class Aioli(PolicyWithOptions):
    """Probes each stream in turn and moves weight to those that lower the losses of all.

    Aioli of Chen et al. 2024, arXiv:2411.05735, algorithms 1 and 2. A round probes, then trains. Probing visits the
    streams `num_sweeps` times and trains `probe_steps` steps on a smoothed one-hot mixture of each; the mean falls of
    the losses solve `ΔL_i = Σ_j A_ij p_j` for A (`interactions_of`). The weights then take a step of exponentiated
    gradient descent, `p_j ← p_j · exp(η Σ_i A_ij)`, with A shifted to be non-negative and scaled to a sum of 1, and
    apply for `training_steps` steps. So `K · num_sweeps · probe_steps` steps of a round are probes: 13 % of all with
    two streams and 70 % with seven in the scripts of the public code.

    The paper evaluates after each probe (`loss="evaluation"`); here a phase then lasts until the first evaluation at or
    after its last step, so evaluate every `probe_steps` steps (`eval_steps`); the first round waits for an evaluation.
    A policy sees an evaluation one step later, so the first step between two evaluations still belongs to the phase
    before: use ten or more steps. By default the falls come from the training losses (ours) at no cost: the slope of a
    line through a stream's losses within a probe, times `probe_steps`. Every probe has samples of every stream as far
    as the smoothing leaves it some; a stream with less than two losses in a probe says nothing about it.

    The paper starts from even weights, and shuffles the probes. Here the weights start from the streams' own, and the
    order is fixed, larger weights first; every second sweep runs backwards, which cancels linear trends (ours). The
    scripts of the public code also average A over rounds (`--ema`), and then use `p_j ∝ exp(η Σ_i A_ij)` instead of a
    step from the last weights; that is not implemented. Streams that are absent at the start of a round are not probed
    and keep their weight; those that end during it are skipped, and while no probed stream is present the training
    weights apply. Wrappers that replace the mixtures of probes (`Hold`, `Smoothed`, `TrustRegion`, `WarmUp`) refuse
    this policy.

    Args:
        learning_rate: η; the public code advises 0.1 to 0.5, and uses 1 for seven streams.
        probe_steps: Steps of a probe; the public code uses 4 to 10, training losses need at least 2.
        num_sweeps: Probes of each stream in a round; the public code uses 2 to 6.
        training_steps: Steps of a round after its probes.
        probe_share: Share of the probed stream in a probe, above 0.5; the others divide the rest evenly. 1 is not
            smoothed, and shows only that stream's training loss.
        normalise: Whether A is shifted and scaled; otherwise η has the unit of 1 / loss.
        num_warmup_steps: Steps with the streams' own weights before the first round.
        loss: Source of the falls: training losses or evaluations.
        unit: Whether the weights are shares of samples or of tokens.

    Raises:
        ValueError: If a value is outside its range.
    """

    _remembered = ("_weights", "_num_steps", "_is_warm_up", "_course", "_base")

    needs = Needs((Loss(),))
    compares_losses = True
    own_cost = "some of the steps are probes"
    plans_probes = True

    learning_rate: Annotated[float, check_range, 0, 100, "0.1 to 0.5 are usual, 0 keeps the weights"] = 0.2
    probe_steps: Annotated[int, check_count, 1, "a slope of training losses needs two"] = 10
    num_sweeps: Annotated[int, check_count, 1, "2 to 6 are usual"] = 2
    training_steps: Annotated[int, check_count, 1, "1 does little but probe"] = 200
    probe_share: Annotated[float, check_range, 0.5 + 1e-6, 1, "0.75 leaves the other streams a quarter"] = 0.75
    normalise: bool = True
    num_warmup_steps: Annotated[int, check_count, 0, "0 probes from the start"] = 0
    loss: Literal["train", "evaluation"] = "train"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.loss == "evaluation":
            self.needs = (EvaluationLoss(),)
            return
        check_count("probe_steps", self.probe_steps, 2, "a slope of training losses needs two")
        if self.probe_share == 1.0:
            raise ValueError(
                "probe_share=1 shows only the training loss of the probed stream; give less, or loss='evaluation'."
            )

    def start(self, mixture: Mixture) -> Decision:
        """Discards all rounds and plans the first phase; see `Policy.start`."""
        self._own = self._weights = mixture.weights
        # Equal weights are sorted by size, then by order.
        self._ranking = np.lexsort((-mixture.num_samples, -mixture.weights))
        self._is_warm_up = True
        self._base = np.full(len(mixture.names), np.nan)  # evaluation losses at the start of the phase
        self._num_steps = 0
        self._course: FloatArray = np.zeros((0, len(self._own)))  # training losses within the probe
        self._plan([])
        if self.num_warmup_steps == 0 and self.loss == "train":
            self._begin_round(mixture.is_active)
        return self._decide(mixture.is_active)

    def update(self, observation: Observation) -> Decision:
        """Records the last step, and ends its phase when it is due; see `Policy.update`."""
        self._num_steps += 1
        evaluation = observation[EvaluationLoss] if self.loss == "evaluation" else None
        if not self._round.is_over and self.loss == "train":
            self._course = np.vstack([self._course, bounded(observation.by_stream(Loss))])
        if self._num_steps >= self._length() and (self.loss == "train" or evaluation is not None):
            self._end_phase(evaluation, observation.is_active)
        return self._decide(observation.is_active)

    def _decide(self, active: BoolArray) -> Decision:
        if not self._round.is_over:
            mixture, among = self._round.mixture(), active & self._round.among
            # If none of them is present, the probe would end the run though others have samples left.
            if mixture[among].sum() > 0.0:
                return Decision(share_out(mixture, self._own, among, 0.0))
        return Decision(share_out(self._weights, self._own, active, 0.0))

    # ---- Phases ----

    def _length(self) -> int:
        """Least number of steps of the present phase."""
        if not self._round.is_over:
            return self.probe_steps
        return self.num_warmup_steps if self._is_warm_up else self.training_steps

    def _plan(self, streams: list[int]) -> None:
        """Plans probes of streams, in the order of a sweep; an empty list means training."""
        self._round = ProbeRound(streams, len(self._own), self.num_sweeps, self.probe_share)

    def _begin_round(self, active: BoolArray) -> None:
        """Plans the probes of a round if there are at least two streams."""
        streams = [int(k) for k in self._ranking if active[k] and self._own[k] > 0]
        self._plan(streams if len(streams) > 1 else [])
        self._is_warm_up = False

    def _end_phase(self, evaluation: FloatArray | None, active: BoolArray) -> None:
        falls = self._falls_of_phase(evaluation)
        self._num_steps, self._course = 0, self._course[:0]
        if self._round.is_over:
            self._begin_round(active)
            return
        if active[self._round.stream]:
            self._round.take(falls)
        if self._round.move_on(active):
            self._step()
            self._plan([])

    def _falls_of_phase(self, evaluation: FloatArray | None) -> FloatArray:
        """`[num_streams]`: fall of the losses in `probe_steps` steps; NaN if unknown."""
        if evaluation is None:
            return -self.probe_steps * slopes_of(np.arange(len(self._course), dtype=np.float64), self._course)
        now = bounded(evaluation)
        falls = (self._base - now) * (self.probe_steps / self._num_steps)
        self._base = now
        return falls

    def _step(self) -> None:
        """One step of exponentiated gradient descent, over the streams with a known probe."""
        interactions, is_known = self._round.interactions()
        if is_known.sum() < 2:
            return
        if self.normalise:
            interactions = normalised(interactions)
        streams = np.array(self._round.streams)[is_known]
        old = self._weights[streams]
        factors = softmax(self.learning_rate * interactions.sum(axis=0)[is_known], old > 0)
        self._weights = self._weights.copy()
        self._weights[streams] = old.sum() * old * factors / (old @ factors)

    # ---- State ----

    def state_dict(self) -> dict[str, Any]:
        """Adds the progress of the round; see `Policy.state_dict`."""
        return {**super().state_dict(), **self._round.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Loads the progress of the round too; see `Policy.load_state_dict`."""
        super().load_state_dict(state)
        self._round.load_state_dict(state)
