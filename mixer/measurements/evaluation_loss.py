"""Evaluation losses of the streams."""

from dataclasses import dataclass

from mixer.measurements.measurement import ByStream, Requirement


@dataclass(frozen=True)
class EvaluationLoss(ByStream):
    """Losses of an evaluation since the last observation, `[num_streams]`; NaN for a stream without one.

    Args:
        before_first_step: Whether there must be an evaluation before the first step.
    """

    requires = frozenset({"evaluations"})
    is_loss = True
    costs = "the evaluations"

    before_first_step: bool = False

    def requirements(self) -> frozenset[Requirement]:
        """Returns the evaluations, and the one before the first step; see `Measurement.requirements`."""
        return self.requires | {"an evaluation before the first step"} if self.before_first_step else self.requires
