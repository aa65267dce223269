"""Rows of the iterable streams: read ahead on every rank, ended on all ranks at the same step."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from mixer.distributed.collectives import OtherRankError
from mixer.loading.iterable.passes import ENDLESS, ChainedRows
from mixer.loading.iterable.source import RowSource
from mixer.mixture.controller import Mixing
from mixer.mixture.cursors import StreamShare
from mixer.mixture.plan import Plan
from mixer.utils.arrays import Int64Array
from mixer.utils.files import read_json, write_json
from mixer.utils.validation import refusing_damage

_FAILED = -1
_ROWS_FILE = re.compile(r"rows-\d{1,9}\.json")


def rows_file(rank: int) -> str:
    """Names the file of a checkpoint that says where a rank is in its rows.

    Args:
        rank: The rank.

    Returns:
        The name.
    """
    return f"rows-{rank}.json"


class Ranks(Protocol):
    """What the feeds of all ranks have to agree on."""

    def least(self, numbers: Int64Array) -> Int64Array:
        """Finds the smallest numbers of all ranks."""

    def total(self, numbers: Int64Array) -> Int64Array:
        """Adds numbers of all ranks up."""


class Feed:
    """Gives a rank its rows of the iterable streams.

    Before a step is planned, every rank has as many rows ready as it may need, or has seen the end. The ranks tell
    each other how many are left: a stream that ends on one of them ends for all, before any of them lacks a row.

    Args:
        sources: The rows of each iterable stream, by stream id.
        mixing: The controller, whose streams are told how many rows are left.
        ranks: What the ranks agree by.
        world_size: Number of ranks.
    """

    def __init__(self, sources: Mapping[int, RowSource], mixing: Mixing, ranks: Ranks, world_size: int):
        self._rows = {stream_id: ChainedRows(source) for stream_id, source in sources.items()}
        self._mixing, self._ranks, self._world_size = mixing, ranks, world_size
        self._given: tuple[Plan | None, dict[int, list[Any]]] = (None, {})

    def prepare(self, num_rows: int) -> None:
        """Reads ahead and finds out how many rows are left.

        Args:
            num_rows: Most rows of a stream that this rank may need for the next step.

        Raises:
            SampleError: If a row cannot be read on this rank.
            OtherRankError: If a row cannot be read on another rank.
            ValueError: If a whole pass over a data set gave a rank no row.
        """
        cursors = self._mixing.planner.row_drawers
        active = [stream_id for stream_id, cursor in cursors.items() if not cursor.is_over]
        began: list[int] = []
        while active:
            numbers, error = self._fill(active, num_rows)
            least = self._ranks.least(numbers)
            if (least == _FAILED).any():
                raise error or OtherRankError("Another rank could not read its rows.")
            ending = []
            for stream_id, ready, left in zip(active, *least.reshape(2, -1).tolist(), strict=True):
                cursor = cursors[stream_id]
                if cursor.is_in_last_pass:
                    cursor.limit(None if ready == ENDLESS else ready * self._world_size)
                if ready == 0 if cursor.is_in_last_pass else ready < num_rows:
                    ending.append((stream_id, left))
            self._check_passes([stream_id for stream_id, left in ending if stream_id in began and left == 0])
            for stream_id, left in ending:
                self._end_pass(stream_id, left)
            active = began = [stream_id for stream_id, _ in ending if not cursors[stream_id].is_over]

    def _end_pass(self, stream_id: int, num_kept: int) -> None:
        rows, rest, failure = self._rows[stream_id], 0, None
        try:
            rest = rows.end_pass(num_kept)
        except Exception as error:  # raised once the other ranks are not left waiting
            failure = error
        numbers = np.array([rows.num_kept, rest, failure is not None], dtype=np.int64)
        kept, undelivered, num_failed = self._ranks.total(numbers).tolist()
        if num_failed:
            raise failure or OtherRankError("Another rank could not end a pass over its rows.")
        self._mixing.planner.row_drawers[stream_id].end_pass(kept, undelivered)

    def take(self, plan: Plan, share: Sequence[StreamShare]) -> dict[int, list[Any]]:
        """Gives this rank's rows of a step.

        Args:
            plan: The step's plan; the same rows are given again if it is asked for again.
            share: What this rank has of the step.

        Returns:
            The rows of each iterable stream in it.
        """
        if not any(part.stream_id in self._rows for part in share):
            return {}  # samples that are looked at beside a step leave its rows as they are
        if self._given[0] is not plan:
            rows = {
                part.stream_id: self._rows[part.stream_id].take(len(part.indices))
                for part in share
                if part.stream_id in self._rows
            }
            self._given = (plan, rows)
        return self._given[1]

    def example(self) -> tuple[int, Any]:
        """Gives a row that is ready, without taking it, for a rank that has none of its own in a step.

        Returns:
            The stream and the row.

        Raises:
            ValueError: If there is none.
        """
        for stream_id, rows in self._rows.items():
            row = rows.peek()
            if row is not None:
                return stream_id, row
        raise ValueError("This rank has no row left for a step that it has no part in.")

    def save(self, folder: Path, rank: int) -> None:
        """Writes where this rank is in its rows.

        Args:
            folder: The checkpoint.
            rank: This rank.
        """
        names = self._mixing.names
        states = {names[stream_id]: rows.state_dict() for stream_id, rows in self._rows.items()}
        write_json(folder / rows_file(rank), states)

    def load(self, folder: Path, rank: int, allow_inexact: bool = False) -> None:
        """Takes up where the ranks were.

        Args:
            folder: The checkpoint.
            rank: This rank.
            allow_inexact: Goes on as near as can be where the rows cannot be had back.

        Raises:
            ValueError: If a file is missing or torn, or the rows cannot be had back.
        """
        paths = [path for path in folder.glob("rows-*.json") if _ROWS_FILE.fullmatch(path.name)]
        states = [read_json(path) for path in sorted(paths, key=lambda path: int(path.stem.split("-")[1]))]
        for stream_id, rows in self._rows.items():
            name = self._mixing.names[stream_id]
            saved = [state[name] for state in states if name in state]
            if saved:
                with refusing_damage(f"where stream {name!r} was, in a file rows-RANK.json of {folder},"):
                    rows.load_state_dict(saved, rank, allow_inexact)
            elif not allow_inexact:
                raise ValueError(f"{folder} does not say where stream {name!r} was: a file rows-RANK.json is missing.")

    def stop(self) -> None:
        """Ends workers."""
        for rows in self._rows.values():
            rows.stop()

    def _fill(self, stream_ids: Sequence[int], num_rows: int) -> tuple[Int64Array, Exception | None]:
        """Gives int64 `[2 * num_streams]`: of each stream the rows that are left in all, then those of its pass."""
        numbers, failure = [], None
        for stream_id in stream_ids:
            try:
                numbers.append(self._rows[stream_id].fill(num_rows))
            except Exception as error:  # raised once the other ranks are not left waiting
                failure = error
                numbers.append((_FAILED, _FAILED))
        return np.array(numbers, dtype=np.int64).T.ravel(), failure

    def _check_passes(self, stream_ids: Sequence[int]) -> None:
        if stream_ids:
            names = [self._mixing.names[stream_id] for stream_id in stream_ids]
            raise ValueError(
                f"A whole pass over the iterable streams {names} gave at least one of {self._world_size} ranks no row: "
                "they have fewer rows than there are ranks (and workers). Use fewer, or leave these streams out."
            )
