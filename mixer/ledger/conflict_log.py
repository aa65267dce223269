"""What log entries say of streams that are at odds."""

from collections.abc import Mapping, Sequence
from typing import Any

from mixer.utils.arrays import FloatArray


class ConflictLog:
    """Adds up, since the last log entry, steps with a conflict and the weights of the streams' gradients."""

    def __init__(self) -> None:
        self._num_steps, self._num_conflicts = 0, 0
        self._sums: dict[int, float] = {}
        self._counts: dict[int, int] = {}

    def note(self, gramian: FloatArray, stream_ids: Sequence[int], weights: FloatArray) -> None:
        """Notes a step.

        Args:
            gramian: `[num_streams, num_streams]`: products of gradients.
            stream_ids: `[num_present]`: streams whose gradient is not 0.
            weights: `[num_present]`: what these were multiplied by.
        """
        self._num_steps += 1
        self._num_conflicts += int((gramian < 0.0).any())
        for stream_id, weight in zip(stream_ids, weights.tolist(), strict=True):
            self._sums[stream_id] = self._sums.get(stream_id, 0.0) + weight
            self._counts[stream_id] = self._counts.get(stream_id, 0) + 1

    def entries(self, names: Sequence[str]) -> dict[str, float]:
        """Gives the share of steps with a conflict and the streams' mean weights.

        Args:
            names: Names of the streams.

        Returns:
            The entries; none where there was no step.
        """
        if not self._num_steps:
            return {}
        entries = {"conflicts": self._num_conflicts / self._num_steps}
        for stream_id in sorted(self._sums):
            entries[f"conflict_weight/{names[stream_id]}"] = self._sums[stream_id] / self._counts[stream_id]
        return entries

    def state_dict(self) -> dict[str, Any]:
        """Gives the sums as plain data."""
        streams = [[stream_id, self._sums[stream_id], self._counts[stream_id]] for stream_id in sorted(self._sums)]
        return {"steps": self._num_steps, "conflicts": self._num_conflicts, "streams": streams}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "ConflictLog":
        """Goes on with saved sums.

        Args:
            state: What `state_dict` gave; empty where a run begins.

        Returns:
            The log.
        """
        log = cls()
        log._num_steps, log._num_conflicts = state.get("steps", 0), state.get("conflicts", 0)
        for stream_id, total, count in state.get("streams", []):
            log._sums[stream_id], log._counts[stream_id] = total, count
        return log
