"""Base class of policies that go by the targets of a declared objective."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from mixer.measurements import Alignment, TargetStatistics, Worth
from mixer.policies.contract import Decision, Mixture, Observation, PolicyWithOptions
from mixer.policies.objective import Objective
from mixer.policies.shared.repeated import passes
from mixer.policies.shared.shares import divided_anew, share_out
from mixer.utils.arrays import BoolArray, FloatArray
from mixer.utils.ranges import check_count

AlignmentInterval = Annotated[int, check_count, 0, "0 chooses the interval by its cost"]


@dataclass(eq=False, repr=False)
class AlignmentPolicy(PolicyWithOptions):
    """Decides after each measurement of the objective's targets, and keeps the weights in between.

    `_num_passes` is how often each stream is passed over in the whole run at the pace so far, `[num_streams]`; 0 where
    its size is unknown. `_progress` is the completed share of the run.

    A stream without a measurement keeps its share, and an absent one its own weight. None has a least share: streams
    without samples are measured all the same.

    Args:
        unit: Whether the weights are shares of samples or of tokens.
    """

    remembered: ClassVar[tuple[str, ...]] = ("_weights",)

    needs = (Alignment(joined=True),)

    interval_steps = 0
    tau = 3.0

    def start(self, mixture: Mixture) -> Decision:
        """Starts from your weights; see `Policy.start`."""
        self._objective = mixture.objective or Objective(list(mixture.names))
        self._own = self._weights = mixture.weights
        self._num_samples, self._num_passes, self._progress = mixture.num_samples, np.zeros(len(mixture.names)), 0.0
        return Decision(self._own)

    def update(self, observation: Observation) -> Decision:
        """Computes new weights after a measurement; see `Policy.update`."""
        active = observation.is_active & (self._own > 0.0)
        if (targets := observation[Alignment]) is not None:
            self._progress = observation.progress
            self._num_passes = passes(observation.seen / (self._progress or 1.0), self._num_samples)
            self._decide(targets, active)
        return Decision(share_out(self._weights, self._own, active, 0.0, observation.tokens_per_sample))

    def _decide(self, targets: TargetStatistics, active: BoolArray) -> None:
        worth = targets.worth(self._importance(targets.losses))
        known = active & np.isfinite(worth.scores)
        total = float(self._weights[known].sum())
        if worth.largest > 0.0 and known.sum() > 1 and total > 0.0:
            parts = self._weigh(worth, known, self._weights[known] / total)
            self._weights = divided_anew(self._weights, known, parts)

    def _importance(self, losses: FloatArray) -> FloatArray:
        """`[num_targets]`: the weights of the targets' losses in the objective's gradient."""
        return self._objective.weights(losses, self.tau)

    @abstractmethod
    def _weigh(self, worth: Worth, known: BoolArray, weights: FloatArray) -> FloatArray:
        """Computes the weights of the measured streams.

        Args:
            worth: What samples of the streams are worth.
            known: bool `[num_streams]`: the measured streams.
            weights: `[num_known]` on the simplex: their present weights.

        Returns:
            `[num_known]` on the simplex.
        """
