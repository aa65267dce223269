"""Base class of gradient policies whose targets are streams, or those of the declared objective."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from mixer.measurements import Alignment, TargetStatistics
from mixer.policies.contract import Decision, Mixture, Observation
from mixer.policies.objective import Objective
from mixer.policies.shared.gradient_policy import GradientPolicy
from mixer.policies.shared.shares import divided_anew, shares
from mixer.policies.shared.stream_average import StreamAverage
from mixer.policies.shared.targets import Targets, check_targets, target_weights
from mixer.utils.arrays import BoolArray, FloatArray

OBJECTIVE = "objective"  # in place of names: the targets of the declared objective


def _check(name: str, targets: object) -> None:
    if targets != OBJECTIVE:
        check_targets(name, targets)


TargetsOrObjective = Annotated[Targets | str, _check]


@dataclass(eq=False, repr=False)
class TargetedPolicy(GradientPolicy):
    """Goes by the gradients of streams in the batch, or with `targets="objective"` by those of the declared targets.

    The latter are measured on rows of their own, which no stream needs to have, with plain products, as published.

    Args:
        targets: Names of streams, or importance by name; `None`; or `"objective"`.
        unit: Whether the weights are shares of samples or of tokens.
    """

    remembered: ClassVar[tuple[str, ...]] = ("_aligned",)

    targets: TargetsOrObjective = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._aligned = StreamAverage(self.decay)
        self.follows_objective = isinstance(self.targets, str)
        if self.follows_objective:
            self.needs, self.min_samples = (Alignment("plain", self.interval_steps),), 0

    def start(self, mixture: Mixture) -> Decision:
        """Reads the targets, and starts as `GradientPolicy`; see `Policy.start`."""
        count, who = len(mixture.names), type(self).__name__
        objective = mixture.objective or Objective(list(mixture.names))
        if isinstance(self.targets, str):
            self._importance = np.array([objective.importance.get(name, 0.0) for name in objective.names])
            self._aligned.start(len(objective.names) * count)
        else:
            self._aligned.start(0)
            self._importance = target_weights(self.targets, mixture.names, np.full(count, 1.0 / count), who)
        return super().start(mixture)

    def update(self, observation: Observation) -> Decision:
        """Takes a measurement of the targets in, then as `GradientPolicy`; see `Policy.update`."""
        if not self.follows_objective:
            return super().update(observation)
        if (targets := observation[Alignment]) is not None:
            self._align(targets, observation.is_active & (self._own > 0.0))
        return super().update(observation)

    def _align(self, targets: TargetStatistics, active: BoolArray) -> None:
        self._aligned.take(targets.alignment.ravel())
        products = self._aligned.values.reshape(len(targets.losses), -1)
        known = active & np.isfinite(products).all(axis=0)
        if known.sum() < 2 or not self._weights[known].sum() > 0.0:
            return
        found = self._weigh_targets(products[:, known], targets.losses, shares(self._weights[known]))
        if found is not None:
            self._weights = divided_anew(self._weights, known, found)

    @abstractmethod
    def _weigh_targets(self, products: FloatArray, losses: FloatArray, weights: FloatArray) -> FloatArray | None:
        """Computes weights from the products with the objective's targets.

        Args:
            products: `[num_targets, num_known]`: averaged.
            losses: `[num_targets]`.
            weights: `[num_known]` on the simplex: the present weights.

        Returns:
            `[num_known]` on the simplex; `None` keeps the present weights.
        """
