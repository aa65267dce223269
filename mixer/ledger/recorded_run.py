"""What a run recorded, step after step, as arrays."""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mixer.gradients.records import measurements_in
from mixer.ledger.folder import open_ledger, read_note
from mixer.policies.contract import Mixture
from mixer.policies.gradient_statistics import GradientStatistics
from mixer.utils.arrays import FloatArray, Int64Array

# What stands in the place of a stream that a step did not have.
_ABSENT = {"count": 0, "tokens": 0, "seen": 0, "staleness": 0, "active": False}
# What is needed of a run's description, and of each stream in it.
_DESCRIBED = {"streams", "mixing", "batch_size", "initial_batch_size", "world_size", "groupings"}
_STREAM_DESCRIBED = {"name", "kind", "num_samples", "weight", "enters_at", "loss_weight"}
_OLDER = "an older version wrote the ledger, which does not hold what it decided"
_DAMAGED = "the description of the run in its ledger.json is damaged"
_MOST_RANGES = 6


class RecordedRun:
    """A run's ledger: of every step that it holds whole, what every stream gave and got.

    Args:
        folder: The output folder of a trainer.

    Attributes:
        description: What `describe_run` gave; empty if an older version wrote the ledger, or it is damaged.
        why_undescribed: Why it is empty; a clause.
        policy_name: The name of the policy, as recorded; `None` if it is not.
        names: Names of the streams, in the order of the run.
        steps: int64 `[num_steps]`: numbers of the steps, ascending.
        clock: `[num_steps]` by column of the ledger's `clock`.
        streams: `[num_steps, num_streams]` by column of the ledger's `streams`.
        has_same_streams: Whether every step had just those of the description; else the run went on with others than
            it began with.

    Raises:
        ValueError: If the folder is none, holds no run, or its ledger cannot be read.
    """

    description: dict[str, Any]
    why_undescribed: str
    policy_name: str | None

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)
        self._ledger = open_ledger(folder)
        self._take_note(read_note(self.folder))
        rows, clock = self._ledger.to_pandas(), self._ledger.clock()
        recorded = tuple(dict.fromkeys(rows["stream"]))
        listed = tuple(stream["name"] for stream in self.description.get("streams", []))
        if not all(isinstance(name, str) for name in listed):
            raise ValueError(f"{self.folder / 'ledger' / 'ledger.json'} is damaged: the name of a stream is no text.")
        self.names: tuple[str, ...] = listed if set(recorded) <= set(listed) else recorded
        # A run that is going on may have written the one table and not the other.
        self.steps: Int64Array = np.intersect1d(rows["step"].unique(), clock["step"].to_numpy())
        if not len(self.steps):
            raise ValueError(
                f"The ledger of {self.folder} has no step of which both tables, streams and clock, hold rows. If the "
                "run has just begun, try again when it has done some; else one of the two is lost."
            )
        clock = clock[clock["step"].isin(self.steps)]
        self.clock = {str(name): clock[name].to_numpy() for name in clock.columns}
        self.streams = self._by_stream(rows)
        own = rows[rows["step"].isin(self.steps)]
        is_full = set(own["stream"]) == set(self.names) and len(own) == self.streams["count"].size
        self.has_same_streams = is_full and (not listed or set(listed) == set(self.names))
        if is_full and not self.has_same_streams:
            self.description, self.why_undescribed = {}, _DAMAGED  # no run loses a stream that each step had

    def _take_note(self, note: Mapping[str, Any]) -> None:
        name, run = note.get("policy"), note.get("run")
        self.policy_name = name if isinstance(name, str) else None
        self.description = run if isinstance(run, dict) and _is_whole(run) else {}
        self.why_undescribed = _DAMAGED if "run" in note else _OLDER

    def row_of(self, step: int) -> int:
        """Finds a step.

        Args:
            step: Its number.

        Returns:
            Its row in the arrays.

        Raises:
            ValueError: If the ledger does not hold it; those that it holds are named.
        """
        row = int(np.searchsorted(self.steps, step))
        if row == len(self.steps) or self.steps[row] != step:
            raise ValueError(
                f"step must be one of the steps in the ledger of {self.folder}, {self.held_steps}, got {step}."
            )
        return row

    @property
    def held_steps(self) -> str:
        """Numbers of the steps that the ledger holds, as a text: `1 to 5, 8 to 12`."""
        gaps = np.flatnonzero(np.diff(self.steps) > 1)
        ends = zip(self.steps[[0, *(gaps + 1)]], self.steps[[*gaps, -1]], strict=True)
        ranges = [f"{first} to {last}" if first < last else f"{first}" for first, last in ends]
        left_out = f", ... ({len(ranges) - _MOST_RANGES} more parts)" if len(ranges) > _MOST_RANGES else ""
        return ", ".join(ranges[:_MOST_RANGES]) + left_out

    @functools.cached_property
    def num_tokens(self) -> Int64Array:
        """int64 `[num_steps, num_streams]`: tokens of each stream so far."""
        return np.cumsum(self.streams["tokens"], axis=0)

    @functools.cached_property
    def evaluations(self) -> dict[int, list[tuple[str, float]]]:
        """Sets and losses of the evaluations, in order, by the number of steps before them."""
        found: dict[int, list[tuple[str, float]]] = {}
        table = self._ledger.evaluations()
        for step, name, loss in zip(*(table[column].tolist() for column in ("step", "stream", "loss")), strict=True):
            found.setdefault(step, []).append((name, loss))
        return found

    @functools.cached_property
    def gradients(self) -> dict[int, GradientStatistics]:
        """What was measured of the gradients, by the number of the step."""
        measured = measurements_in(self._ledger.gradients())
        return {step: statistics for step, names, statistics in measured if tuple(names) == self.names}

    @functools.cached_property
    def compared(self) -> dict[str, FloatArray]:
        """`[num_steps, num_streams]` by column of the ledger's `comparisons`; empty where nothing was compared."""
        rows = self._ledger.comparisons()
        return {} if rows.empty else self._by_stream(rows)

    def mixture(self) -> Mixture:
        """Gives what the policy knew before the run.

        Returns:
            The streams. Which of them were there in the first step is told by when they enter; a memory was if it
            gave a sample, as nobody wrote down what it held.
        """
        table: list[dict[str, Any]] = self.description["streams"]
        weights = np.array([1.0 if stream["weight"] is None else stream["weight"] for stream in table])
        first = self.streams["count"][0]
        given = zip(table, first, strict=True)
        active = [count > 0 if stream["kind"] == "memory" else stream["enters_at"] <= 0 for stream, count in given]
        return Mixture(
            names=self.names,
            num_samples=np.array([stream["num_samples"] or 0 for stream in table], dtype=np.int64),
            weights=weights / weights.sum(),
            memories=tuple(number for number, stream in enumerate(table) if stream["kind"] == "memory"),
            has_weights=table[0]["weight"] is not None,
            active=np.array(active),
        )

    def _by_stream(self, rows: pd.DataFrame) -> dict[str, NDArray[Any]]:
        """Lays rows, one a step and stream, out as arrays."""
        number = rows["stream"].map({name: number for number, name in enumerate(self.names)})
        is_known = rows["step"].isin(self.steps) & number.notna()
        rows, places = rows[is_known], number[is_known].to_numpy(dtype=np.int64)
        batches = np.searchsorted(self.steps, rows["step"].to_numpy())
        arrays: dict[str, NDArray[Any]] = {}
        for name in rows.columns.drop(["step", "stream"]):
            values = rows[name].to_numpy()
            shape = (len(self.steps), len(self.names))
            arrays[str(name)] = np.full(
                shape, _ABSENT.get(str(name), np.nan), dtype=values.dtype if name in _ABSENT else np.float64
            )
            arrays[str(name)][batches, places] = values
        return arrays


def _is_whole(description: Mapping[str, Any]) -> bool:
    """Whether a run's description has all that is needed of one."""
    if not description.keys() >= _DESCRIBED:
        return False
    streams, groupings = description["streams"], description["groupings"]
    if not isinstance(streams, list) or not streams or not isinstance(groupings, list):
        return False
    has_streams = all(isinstance(stream, Mapping) and stream.keys() >= _STREAM_DESCRIBED for stream in streams)
    return has_streams and all(isinstance(grouping, Mapping) and "name" in grouping for grouping in groupings)
