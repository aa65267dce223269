"""A warning of a stream that takes most of a mixture without learning anything."""

import logging

import numpy as np

from mixer.measurements import EvaluationLoss, Loss
from mixer.policies.contract import Observation
from mixer.policies.shared.slopes import LARGEST
from mixer.utils.arrays import FloatArray

_MOST = 0.6  # a share
_NUM_OBSERVATIONS = 100  # whose losses are compared, half with half
_LEAST_FALL = 0.005  # of the loss
_NUM_RISES = 2  # of the evaluation loss, in a row
_logger = logging.getLogger(__name__)


class DominantStream:
    """Follows the stream with most of the share, and warns once if its loss does not fall, or only in training.

    Args:
        policy: Name of the policy, for the warning.
    """

    def __init__(self, policy: str):
        self._policy = policy
        self.start(())

    def start(self, names: tuple[str, ...]) -> None:
        """Begins a run with these streams."""
        self._names, self._has_warned = names, False
        self._follow(-1)

    def _follow(self, stream: int) -> None:
        self._stream, self._losses, self._since_evaluation = stream, list[float](), list[float]()
        self._last = (np.nan, np.nan)  # evaluation loss and training loss, at the last evaluation
        self._num_rises = 0

    def take(self, observation: Observation, shares: FloatArray) -> None:
        """Takes a step in.

        Args:
            observation: The observation.
            shares: `[num_streams]`: share of each stream in it, by samples or by factors on losses.
        """
        if self._has_warned or len(shares) < 2:
            return
        stream = int(np.argmax(shares))
        if not shares[stream] > _MOST * shares.sum():
            stream = -1
        if stream != self._stream:
            self._follow(stream)
        if stream < 0:
            return
        if np.isfinite(loss := float(np.clip(observation.by_stream(Loss)[stream], -LARGEST, LARGEST))):
            self._losses.append(loss)
            self._since_evaluation.append(loss)
        reason = self._does_not_fall() or self._falls_in_training_only(observation[EvaluationLoss])
        if reason is not None:
            self._has_warned = True
            start = f"Step {observation.step}: {self._policy} gives {self._names[stream]!r} "
            _logger.warning("%s%.0f %% of the mixture, but %s", start, 100 * shares[stream] / shares.sum(), reason)

    def _does_not_fall(self) -> str | None:
        if len(self._losses) < _NUM_OBSERVATIONS:
            return None
        half = _NUM_OBSERVATIONS // 2
        first, second = float(np.mean(self._losses[:half])), float(np.mean(self._losses[half:]))
        self._losses = self._losses[half:]
        if second < first - _LEAST_FALL * abs(first):
            return None
        return (
            f"its loss has not fallen in {_NUM_OBSERVATIONS} observations ({first:.4g}, then {second:.4g}): it may be "
            f"noise, or as good as it gets. Keep the others' share by Floor({self._policy}(...))."
        )

    def _falls_in_training_only(self, evaluated: FloatArray | None) -> str | None:
        if evaluated is None or not np.isfinite(evaluated[self._stream]) or not self._since_evaluation:
            return None
        now = float(evaluated[self._stream]), float(np.mean(self._since_evaluation))
        is_contrary = now[0] > self._last[0] and now[1] < self._last[1]
        self._num_rises = self._num_rises + 1 if is_contrary else 0
        self._last, self._since_evaluation = now, []
        if self._num_rises < _NUM_RISES:
            return None
        return (
            f"its evaluation loss rises (to {now[0]:.4g}) while its training loss falls: it is learned by heart. Take "
            f"its share back by OverfitGuard({self._policy}(...)), or limit its passes by Stream(max_epochs=...)."
        )
