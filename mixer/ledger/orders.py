"""Records what it takes to say later which rows a run was trained on; `mixer.Exposure` reads it."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from mixer.ledger.ledger import Ledger
from mixer.mixture.batches import BatchedOrder
from mixer.mixture.controller import Mixing
from mixer.mixture.cursors import IterableCursor, ShuffledOrder
from mixer.mixture.step_plan import StepPlan
from mixer.utils.arrays import Int64Array

# Between the kind of a stream that is drawn in groups of similar length, their size, and the key of shared turns.
BY_LENGTH, IN_TURNS, ALONE = " by windows of ", " in turns ", " alone"


class OrderRecorder:
    """Writes three tables of the ledger beside the counts of each step.

    - `orders`: how a stream's positions map to rows, from a step on. A row is written only when that changes: at the
      start, after an inexact resume, and when the end of an epoch is dropped. Position = samples seen + `shift`.
      `kind` is `data` (`data by windows of 6.4 in turns 7`: 6.4 samples of similar length a step, in the turns of
      this key; `alone`: in steps without other streams), `batches`, `iterable` or `memory`.
    - `left_out`: positions of samples that could not be loaded and were skipped.
    - `replays`: rows that a replay buffer gave in a step, by the data set that they came from (-1: an iterable one),
      and rows of a stream that gives whole batches.

    Args:
        mixing: The controller.
        ledger: The ledger.
    """

    def __init__(self, mixing: Mixing, ledger: Ledger):
        self._mixing, self._ledger = mixing, ledger
        self._shifts: Int64Array | None = None  # of the last step
        self._recorded: dict[str, dict[str, Any]] = {}  # the last row of each stream

    def record(self, plan: StepPlan, left_out: Sequence[tuple[int, int]]) -> None:
        """Records a step that the controller has observed.

        Args:
            plan: Its plan.
            left_out: Stream id and position of each sample that was skipped.
        """
        if not self._ledger.is_writer:
            return
        shifts = plan.starts - (self._mixing.seen - plan.counts)
        if self._shifts is None:  # an earlier part of the run may have written them
            earlier = self._ledger.read("orders").to_pylist()
            self._recorded = {row["stream"]: {**row, "step": 0} for row in earlier}
        if self._shifts is None or not np.array_equal(shifts, self._shifts):
            self._shifts = shifts
            self._record_orders(plan.step, shifts.tolist())
        names = self._mixing.names
        rows = [{"step": plan.step, "stream": names[k], "position": position} for k, position in left_out]
        self._write("left_out", rows)
        self._record_replays(plan, frozenset(left_out))

    def _record_orders(self, step: int, shifts: Sequence[int]) -> None:
        rows = []
        for name, cursor, shift in zip(self._mixing.names, self._mixing.planner.cursors, shifts, strict=True):
            kind = "iterable" if isinstance(cursor, IterableCursor) else "memory"
            row: dict[str, Any] = {"step": 0, "stream": name, "shift": shift, "kind": kind}
            row |= {"length": 0, "key": 0, "shuffle": False}
            if isinstance(cursor, ShuffledOrder):
                by_length = f"{BY_LENGTH}{cursor.group_size}{IN_TURNS}{cursor.turns}{ALONE * cursor.is_alone}"
                row["kind"] = f"data{by_length}" if cursor.group_size else "data"
                row |= {"length": cursor.length, "key": cursor.key, "shuffle": cursor.shuffle}
            elif isinstance(cursor, BatchedOrder):
                row |= {"kind": "batches", "length": cursor.length}
            if self._recorded.get(name) != row:
                self._recorded[name] = row
                rows.append({**row, "step": step})
        self._write("orders", rows)

    def _record_replays(self, plan: StepPlan, left_out: frozenset[tuple[int, int]]) -> None:
        rows = []
        for stream_id, cursor in self._mixing.planner.others.items():
            count = int(plan.counts[stream_id])
            if not count or not hasattr(cursor, "origins"):
                continue
            sources, indices = cursor.origins()
            by_source: dict[str, list[int]] = {}
            for place, (source, index) in enumerate(zip(sources, indices.tolist(), strict=True)):
                if (stream_id, int(plan.starts[stream_id]) + place) not in left_out:
                    by_source.setdefault(source, []).append(index)
            step, stream = plan.step, self._mixing.names[stream_id]
            rows += [{"step": step, "stream": stream, "source": name, "rows": own} for name, own in by_source.items()]
        self._write("replays", rows)

    def _write(self, table: str, rows: Sequence[dict[str, Any]]) -> None:
        if rows:
            self._ledger.record(table, {name: [row[name] for row in rows] for name in rows[0]})
