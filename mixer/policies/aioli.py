"""More of what lowers all losses, as short probe phases show: Aioli."""

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from mixer.policies.contract import Decision, Mixture, Observation, Policy, Unit
from mixer.policies.shared.interactions import normalised
from mixer.policies.shared.least_share import share_out
from mixer.policies.shared.plain import from_plain, to_plain
from mixer.policies.shared.probe_round import ProbeRound
from mixer.policies.shared.ranges import check_count, check_range
from mixer.policies.shared.slopes import slopes_of
from mixer.policies.shared.softmax import softmax
from mixer.utils.arrays import BoolArray, FloatArray

_HUGE = 1e100  # infinity with which one can still calculate


class Aioli(Policy):
    """Probes each stream in turn and shifts weight to those whose samples lower the losses of all.

    Aioli of Chen et al. 2024, arXiv:2411.05735, algorithms 1 and 2. A round probes, then trains. Probing runs through
    the streams `num_sweeps` times and trains `probe_steps` steps on a smoothed one-hot mixture of each; mean falls
    of the losses solve `ΔL_i = Σ_j A_ij p_j` for A (`interactions_of`). The weights then take a step of exponentiated
    gradient descent, `p_j ← p_j · exp(η Σ_i A_ij)`, with A shifted to be non-negative and scaled to a sum of 1, and
    rule `training_steps` steps. So `K · num_sweeps · probe_steps` steps of a round are probes: 13 % of all with two
    streams and 70 % with seven in the scripts of the public code.

    The paper evaluates after each probe (`loss="evaluation"`); here a phase then lasts until the first evaluation at or
    after its last step, so that an evaluation every `probe_steps` steps (`eval_steps`) suits it, and the first
    round waits for one. A policy sees an evaluation with the step after it, so that of the steps between two
    evaluations the first is still one of the phase before: let there be ten or more of them. By default the falls come
    from the training losses (ours), which cost nothing: the slope of a line through a stream's losses within a probe,
    times `probe_steps`. Every probe has samples of every stream as long as the smoothing leaves it some; one that had
    less than two losses in it tells nothing of that probe.

    The paper starts from even weights, and draws the order of the probes. Here the weights start from the streams' own,
    and the order is fixed, larger weights first, where every second sweep runs backwards, which takes out what changes
    evenly with time (ours). The scripts of the public code average A over rounds too (`--ema`), and then take `p_j ∝
    exp(η Σ_i A_ij)` anew each time instead of a step from the last weights; that is not done here. Streams that are not
    there at the start of a round are not probed and keep their share of the weight; those that leave on the way are
    passed over, and while none that is probed is there the weights of the training rule. Wrappers that put other
    mixtures in place of the probes (`Hold`, `Smoothed`, `TrustRegion`, `WarmUp`) refuse this policy.

    Args:
        learning_rate: η; the public code advises 0.1 to 0.5, and takes 1 for seven streams.
        probe_steps: Steps of a probe; the public code has 4 to 10, training losses need at least 2.
        num_sweeps: Probes of each stream in a round; the public code has 2 to 6.
        training_steps: Steps of a round between its last probe and the next round.
        probe_share: Share of the probed stream in a probe, above 0.5; the others have even parts of the rest. 1 is not
            smoothed, and shows the training losses of that stream alone.
        normalise: Whether A is shifted and scaled; without, η has the unit of 1 / loss.
        num_warmup_steps: Steps with the streams' own weights before the first round.
        loss: Which losses tell the falls.
        unit: Whether the weights are shares of samples or of tokens.

    Raises:
        ValueError: If a value is outside its range.
    """

    needs = frozenset({"loss"})
    own_cost = "a part of the steps are probes"
    plans_probes = True

    def __init__(
        self,
        learning_rate: float = 0.2,
        probe_steps: int = 10,
        num_sweeps: int = 2,
        training_steps: int = 200,
        probe_share: float = 0.75,
        normalise: bool = True,
        num_warmup_steps: int = 0,
        loss: Literal["train", "evaluation"] = "train",
        *,
        unit: Unit = "samples",
    ):
        super().__init__(unit=unit)
        if loss not in ("train", "evaluation"):
            raise ValueError(f"loss must be 'train' or 'evaluation', got {loss!r}.")
        self.learning_rate, self.normalise = learning_rate, normalise
        self.probe_steps, self.num_sweeps, self.probe_share = probe_steps, num_sweeps, probe_share
        self.training_steps, self.num_warmup_steps = training_steps, num_warmup_steps
        self.loss = loss
        self._check_ranges()
        if loss == "evaluation":
            self.needs = frozenset({"evaluation_loss"})

    def _check_ranges(self) -> None:
        is_train = self.loss == "train"
        check_range("learning_rate", self.learning_rate, 0, 100, "0.1 to 0.5 are usual, 0 keeps the weights")
        check_count("probe_steps", self.probe_steps, 2 if is_train else 1, "a slope of training losses needs two")
        check_count("num_sweeps", self.num_sweeps, 1, "2 to 6 are usual")
        check_count("training_steps", self.training_steps, 1, "1 does little but probe")
        check_count("num_warmup_steps", self.num_warmup_steps, 0, "0 probes from the start")
        check_range("probe_share", self.probe_share, 0.5 + 1e-6, 1, "0.75 leaves the other streams a quarter")
        if is_train and self.probe_share == 1.0:
            raise ValueError(
                "probe_share=1 shows the training loss of the probed stream alone; give less, or loss='evaluation'."
            )

    def start(self, mixture: Mixture) -> Decision:
        """Forgets all rounds and plans the first phase; see `Policy.start`."""
        self._own = self._weights = mixture.weights
        # Ties of weights go by size, and only then by order.
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
        """Takes what the last step showed into its phase, and ends it when it is time; see `Policy.update`."""
        self._num_steps += 1
        evaluation = observation.evaluation_losses if self.loss == "evaluation" else None
        if not self._round.is_over and self.loss == "train":
            losses = observation.losses
            row = np.where(np.isfinite(losses), np.clip(losses, -_HUGE, _HUGE), np.nan)
            self._course = np.vstack([self._course, row])
        if self._num_steps >= self._length() and (self.loss == "train" or evaluation is not None):
            self._end_phase(evaluation, observation.is_active)
        return self._decide(observation.is_active)

    def _decide(self, active: BoolArray) -> Decision:
        if not self._round.is_over:
            mixture, among = self._round.mixture(), active & self._round.among
            # With none of them there the probe would be of nothing, and the run end though others have samples left.
            if mixture[among].sum() > 0.0:
                return Decision(share_out(mixture, self._own, among, 0.0))
        return Decision(share_out(self._weights, self._own, active, 0.0))

    # ---- Phases ----

    def _length(self) -> int:
        """Steps of the present phase, at least."""
        if not self._round.is_over:
            return self.probe_steps
        return self.num_warmup_steps if self._is_warm_up else self.training_steps

    def _plan(self, streams: list[int]) -> None:
        """Plans probes of streams, in the order of a sweep; of none while a round trains."""
        self._round = ProbeRound(streams, len(self._own), self.num_sweeps, self.probe_share)

    def _begin_round(self, active: BoolArray) -> None:
        """Plans the probes of a round, unless there is nothing to weigh up."""
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
        """`[num_streams]`: what the losses fell by in `probe_steps` steps; NaN where it is not known."""
        if evaluation is None:
            return -self.probe_steps * slopes_of(np.arange(len(self._course), dtype=np.float64), self._course)
        now = np.where(np.isfinite(evaluation), np.clip(evaluation, -_HUGE, _HUGE), np.nan)
        falls = (self._base - now) * (self.probe_steps / self._num_steps)
        self._base = now
        return falls

    def _step(self) -> None:
        """One step of exponentiated gradient descent, over the streams of which a probe told something."""
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
        """Gives the weights, and how far the round and its phase are; see `Policy.state_dict`."""
        return {
            "weights": self._weights.tolist(),
            "num_steps": self._num_steps,
            "is_warm_up": self._is_warm_up,
            "course": to_plain(self._course),
            "base": to_plain(self._base),
            **self._round.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes up the weights, and how far the round and its phase are; see `Policy.load_state_dict`."""
        super().load_state_dict(state)
        num_streams = len(self._own)
        self._weights = np.array(state["weights"], dtype=np.float64)
        self._num_steps, self._is_warm_up = int(state["num_steps"]), bool(state["is_warm_up"])
        self._course = from_plain(state["course"], -1, num_streams)
        self._base = from_plain(state["base"], num_streams)
        self._round.load_state_dict(state)
