"""How well the streams' gradients fit those of the objective's targets."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np

from mixer.measurements.measurement import Measurement
from mixer.utils.arrays import FloatArray
from mixer.utils.errors import wrong_value

_MOST_VARIANCE = 1e6  # more, or what is not finite, counts as this


@dataclass(frozen=True)
class TargetStatistics:
    """Measurements of an objective's targets on development rows.

    Args:
        losses: `[num_targets]`: mean loss per item of each target's rows, in the order of `Objective.names`.
        alignment: `[num_targets, num_streams]`: products `<g_j, D g_k>` of the gradients of the targets' and the
            streams' mean losses, with the diagonal D of the optimizer's own metric. To first order, a step on a sample
            of stream k lowers the loss of target j by this times the learning rate. NaN for a stream without samples of
            its own. `[1, num_streams]` where targets are joined: the products with the objective's gradient.
        error: Of the same shape: standard errors by the differences between a stream's rows.
        metric: The optimizer's metric: `"adam"`, `"rmsprop"`, or `"plain"` with `D = 1`.
        test_losses: `[num_targets]`: mean loss per item of test rows, the same each time, if they were asked for; then
            `losses` are of the same rows each time too. NaN for a target without such rows.
        gap_error: `[num_targets]`: standard errors of `log(test_losses / losses)`.
        stream_losses: `[num_streams]`: mean loss per item of the streams' rows, which are still to come; NaN for a
            stream without a measurement. `None` if unknown.
    """

    losses: FloatArray
    alignment: FloatArray
    error: FloatArray
    metric: str = "plain"
    test_losses: FloatArray | None = None
    gap_error: FloatArray | None = None
    stream_losses: FloatArray | None = None

    def worth(self, importance: FloatArray) -> "Worth":
        """Returns what a sample of each stream is worth for several targets.

        Args:
            importance: `[num_targets]`: weights of the targets' losses.
        """
        importance = importance if len(self.alignment) == len(importance) else np.ones(1)
        with np.errstate(over="ignore", invalid="ignore"):
            used = importance > 0.0  # what is not asked for may have no measurement
            scores = importance[used] @ self.alignment[used]
            errors = importance[used] ** 2 @ self.error[used] ** 2
        scores = np.where(np.isfinite(scores), scores, np.nan)
        largest = float(np.abs(scores[np.isfinite(scores)]).max(initial=0.0))
        if not largest > 0.0:
            return Worth(scores, 0.0, errors)
        with np.errstate(over="ignore", invalid="ignore"):
            variance = errors / largest / largest
        known = np.isfinite(variance) & (variance < _MOST_VARIANCE)
        return Worth(scores / largest, largest, np.where(known, variance, _MOST_VARIANCE))


class Worth(NamedTuple):
    """What a sample of each stream is worth for the objective, in units of the largest.

    Attributes:
        scores: `[num_streams]`: at most 1 in size; NaN for streams without a measurement.
        largest: The unit; 0 if all are 0.
        variance: `[num_streams]`: squared standard errors of the scores.
    """

    scores: FloatArray
    largest: float
    variance: FloatArray


@dataclass(frozen=True)
class Alignment(Measurement[TargetStatistics]):
    """What a sample of each stream is worth for the targets of the objective, on development rows.

    Args:
        metric: Whether gradients are compared in the metric of the optimizer, or plainly.
        interval_steps: Steps between regular measurements; 0 chooses the interval by its cost.
        joined: Whether the gradient of the whole objective will do where it is an average without bounds.
        test_losses: Whether to measure the losses of test rows too.
    """

    requires = frozenset({"objective", "gradients between steps"})
    costs = "a few rows of each stream and target every so often, about 3 % of the run's work"

    metric: Literal["optimizer", "plain"] = "optimizer"
    interval_steps: int = 0
    joined: bool = False
    test_losses: bool = False

    @staticmethod
    def part(result: TargetStatistics, streams: Sequence[int]) -> TargetStatistics:
        """Returns the products with some of the streams; see `Measurement.part`."""
        index = np.asarray(streams, dtype=np.int64)
        losses = None if result.stream_losses is None else result.stream_losses[index]
        return replace(result, alignment=result.alignment[:, index], error=result.error[:, index], stream_losses=losses)

    @classmethod
    def merged(cls, requests: Sequence["Alignment"]) -> "Alignment":
        """Returns one request that serves several: the shortest interval, joined only if all are content with that.

        Raises:
            ValueError: If their metrics differ.
        """
        first = requests[0]
        if any(request.metric != first.metric for request in requests):
            raise wrong_value("needs", f": alignment is measured in one metric, but {list(requests)} ask for two.")
        intervals = [request.interval_steps for request in requests if request.interval_steps]
        joined, test_losses = (
            all(request.joined for request in requests),
            any(request.test_losses for request in requests),
        )
        return cls(first.metric, math.gcd(*intervals), joined, test_losses)
