"""Feeds rows of iterable streams to the loader; a stream ends on all ranks at the same step."""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mixer.distributed.collectives import OtherRankError, RankSync
from mixer.loading.iterable.passes import ENDLESS, ChainedRows
from mixer.loading.iterable.source import RowSource
from mixer.mixture.controller import Mixing
from mixer.mixture.cursors import StreamShare
from mixer.mixture.plan import Plan
from mixer.utils.arrays import Int64Array
from mixer.utils.files import read_json, write_json
from mixer.utils.validation import refusing_damage

_FAILED = -1


def rows_file(rank: int) -> str:
    """Returns the name of a checkpoint's file with a rank's position in its rows."""
    return f"rows-{rank}.json"


class Feed:
    """Supplies this rank's rows of the iterable streams.

    Before a step is planned, every rank reads as many rows as it may need, or reaches the end. The ranks exchange how
    many rows are left: a stream that ends on one rank ends on all, before any rank runs short.

    Args:
        sources: Row source of each iterable stream, by stream id.
        mixing: Controller, which receives the number of rows left per stream.
        ranks: Collectives.
        world_size: Number of ranks.
    """

    def __init__(self, sources: Mapping[int, RowSource], mixing: Mixing, ranks: RankSync, world_size: int):
        self._rows = {stream_id: ChainedRows(source) for stream_id, source in sources.items()}
        self._mixing, self._ranks, self._world_size = mixing, ranks, world_size
        self._last: tuple[Plan | None, dict[int, list[Any]]] = (None, {})

    def prepare(self, num_rows: int) -> None:
        """Reads ahead and determines how many rows are left.

        Args:
            num_rows: Maximum rows per stream that this rank may need in the next step.

        Raises:
            SampleError: If a row cannot be read on this rank.
            OtherRankError: If a row cannot be read on another rank.
            ValueError: If a rank received no row in a whole pass over a dataset.
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
        ended, failure = (0, 0), None
        try:
            ended = self._rows[stream_id].end_pass(num_kept)
        except Exception as error:  # raised after the collective, so that no rank is left waiting
            failure = error
        numbers = np.array([*ended, failure is not None], dtype=np.int64)
        kept, undelivered, num_failed = self._ranks.total(numbers).tolist()
        if num_failed:
            raise failure or OtherRankError("Another rank could not end a pass over its rows.")
        self._mixing.planner.row_drawers[stream_id].end_pass(kept, undelivered)

    def take(self, plan: Plan, share: Sequence[StreamShare]) -> dict[int, list[Any]]:
        """Returns this rank's rows of a step, by stream; repeated calls with the same plan return the same rows.

        Args:
            plan: Plan of the step.
            share: This rank's share of it.
        """
        if not any(part.stream_id in self._rows for part in share):
            return {}  # keep the rows of the current step
        if self._last[0] is not plan:
            own = [part for part in share if part.stream_id in self._rows]
            self._last = plan, {part.stream_id: self._rows[part.stream_id].take(len(part.indices)) for part in own}
        return self._last[1]

    def example(self) -> tuple[int, Any]:
        """Returns a stream id and one of its rows, without consuming it, for a rank without rows in a step.

        Raises:
            ValueError: If no row is left.
        """
        for stream_id, rows in self._rows.items():
            if (row := rows.peek()) is not None:
                return stream_id, row
        raise ValueError("This rank has no row left to repeat in a step without samples for it.")

    def save(self, folder: Path, rank: int) -> None:
        """Writes this rank's position in its rows to the checkpoint `folder`."""
        names = self._mixing.names
        states = {names[stream_id]: rows.state_dict() for stream_id, rows in self._rows.items()}
        write_json(folder / rows_file(rank), states)

    def load(self, folder: Path, rank: int, allow_inexact: bool = False) -> None:
        """Restores the ranks' positions.

        Args:
            folder: Checkpoint.
            rank: This rank.
            allow_inexact: Whether to resume approximately if the exact rows cannot be recovered.

        Raises:
            ValueError: If a file is missing or damaged, or the rows cannot be recovered.
        """
        paths = (folder / rows_file(number) for number in itertools.count())
        states = [read_json(path) for path in itertools.takewhile(Path.is_file, paths)]
        for stream_id, rows in self._rows.items():
            name = self._mixing.names[stream_id]
            saved = [state[name] for state in states if name in state]
            if saved:
                with refusing_damage(f"the position of stream {name!r} in a file rows-RANK.json of {folder}"):
                    rows.load_state_dict(saved, rank, allow_inexact)
            elif not allow_inexact:
                raise ValueError(f"{folder} has no position of stream {name!r}: a file rows-RANK.json is missing.")

    def stop(self) -> None:
        """Stops the workers."""
        for rows in self._rows.values():
            rows.stop()

    def _fill(self, stream_ids: Sequence[int], num_rows: int) -> tuple[Int64Array, Exception | None]:
        """Returns int64 `[2 * num_streams]`: rows left in total per stream, then rows left in the current pass."""
        numbers, failure = [], None
        for stream_id in stream_ids:
            try:
                numbers.append(self._rows[stream_id].fill(num_rows))
            except Exception as error:  # raised after the collective, so that no rank is left waiting
                failure = error
                numbers.append((_FAILED, _FAILED))
        return np.array(numbers, dtype=np.int64).T.ravel(), failure

    def _check_passes(self, stream_ids: Sequence[int]) -> None:
        if stream_ids:
            names = [self._mixing.names[stream_id] for stream_id in stream_ids]
            raise ValueError(
                f"At least one of {self._world_size} ranks received no row in a whole pass over the iterable streams "
                f"{names}: either they have fewer rows than there are ranks (and workers), or the shards (files) that "
                "datasets gave to this rank are empty. Remove empty files, divide the data set anew "
                "(dataset.reshard(), or fewer and larger files), or use fewer ranks."
            )
