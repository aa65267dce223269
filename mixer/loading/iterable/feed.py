"""Feeds rows of iterable streams to the loader; a stream ends on all ranks at the same step."""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mixer.distributed.collectives import OtherRankError, RankSync
from mixer.loading.iterable.passes import ChainedRows
from mixer.loading.iterable.source import RowSource
from mixer.mixture.controller import Mixing
from mixer.mixture.step_plan import StepPlan, StreamShare
from mixer.utils.arrays import Int64Array
from mixer.utils.errors import InvalidValueError
from mixer.utils.files import read_json, write_json
from mixer.utils.validation import refusing_damage

_FAILED = -1
_ALONE = b"alone"
_MOST_SURPLUS = 1_000  # rows left on some ranks only, which all of them hold at the end of a pass


def rows_file(rank: int) -> str:
    """Returns the name of a checkpoint's file with a rank's position in its rows."""
    return f"rows-{rank}.json"


class Feed:
    """Supplies this rank's rows of the iterable streams.

    Before a step is planned, every rank reads as many rows as it may need, or reaches the end. A pass that ends on one
    rank ends on all, before any rank runs short; the rows left on the others are shared out, and come first in the next
    steps.

    Args:
        sources: Row source of each iterable stream, by stream id.
        mixing: Controller, which receives the number of rows left per stream.
        ranks: Collectives.
        world_size: Number of ranks.
    """

    def __init__(self, sources: Mapping[int, RowSource], mixing: Mixing, ranks: RankSync, world_size: int):
        self._rows = {k: ChainedRows(source, mixing.names[k]) for k, source in sources.items()}
        self._mixing, self._ranks, self._world_size = mixing, ranks, world_size
        self._last: tuple[StepPlan | None, dict[int, list[Any]]] = (None, {})

    def prepare(self, num_rows: int) -> None:
        """Reads ahead, and ends passes until there are rows for the next step; one pass only where each is an epoch.

        Args:
            num_rows: Maximum rows per stream that this rank may need in the next step.

        Raises:
            SampleError: If a row cannot be read on this rank.
            OtherRankError: If a row cannot be read on another rank.
            ValueError: If a rank received no row in a whole pass, and the others have too many to share them out.
        """
        cursors = self._mixing.planner.row_drawers
        for stream_id, cursor in cursors.items():
            self._rows[stream_id].advance(cursor.position)
            if self._rows[stream_id].has_left:  # after a resume
                self._share_left(stream_id)
        num_rows += self._mixing.clock.has_passes  # shows whether the step is the last of its pass
        active = list(cursors)
        while active := [stream_id for stream_id in active if self._needs_more(stream_id, num_rows)]:
            numbers, error = self._fill(active, num_rows)
            least = self._ranks.all_reduce_min(numbers)
            if (least == _FAILED).any():
                raise error or OtherRankError("Another rank could not read its rows.")
            ending = {k: ready for k, ready in zip(active, least.tolist(), strict=True) if ready < num_rows}
            for stream_id, ready in ending.items():
                self._end_pass(stream_id, ready)
            active = list(ending)
        for stream_id, cursor in cursors.items():
            cursor.left = self._rows[stream_id].num_in_tail if cursor.is_over else None

    def _needs_more(self, stream_id: int, num_rows: int) -> bool:
        is_over = self._mixing.planner.row_drawers[stream_id].is_over or self._mixing.left_in_pass
        return not is_over and self._rows[stream_id].num_in_tail < num_rows * self._world_size

    def _end_pass(self, stream_id: int, num_equal: int) -> None:
        """Ends a pass and shares out the rows left: all if they can be counted, else at least those of equal number.

        Args:
            stream_id: Stream.
            num_equal: Rows left on the rank that has fewest.
        """
        rows, count, failure = self._rows[stream_id], (0, 0, False, False), None
        try:
            count = rows.count(num_equal + _MOST_SURPLUS + 1)
        except Exception as error:  # raised after the collective, so that no rank is left waiting
            failure = error
        numbers = self._ranks.all_reduce_sum(np.array([*count, failure is not None], dtype=np.int64))
        num_left, num_taken, num_open, num_empty, num_failed = numbers.tolist()
        if num_failed:
            raise failure or OtherRankError("Another rank could not read its rows.")
        is_whole = num_open == 0 and num_left <= num_equal * self._world_size + _MOST_SURPLUS
        if num_empty and not is_whole:
            raise self._empty(stream_id)
        num_before = rows.num_in_tail
        self._share_left(stream_id, num_left if is_whole else num_equal + _MOST_SURPLUS // self._world_size)
        num_kept = rows.num_in_tail - num_before
        if num_taken + num_kept == 0:
            raise self._empty(stream_id)
        self._mixing.planner.row_drawers[stream_id].end_pass(rows.num_in_tail, num_left - num_kept)

    def _share_left(self, stream_id: int, num_rows: int | None = None) -> None:
        """Exchanges the rows left on the ranks.

        Args:
            stream_id: Stream.
            num_rows: Rows of this rank to keep at most of the pass to end; `None` to end none.
        """
        rows, packed, failure = self._rows[stream_id], b"", None
        try:
            if num_rows is not None:
                rows.end_pass(num_rows)
            packed = rows.pack_left() if self._world_size > 1 else _ALONE
        except Exception as error:  # raised after the collective, so that no rank is left waiting
            failure = error
        parts = self._ranks.gather_bytes(packed)
        if not all(parts):
            raise failure or OtherRankError("Another rank could not end a pass over its rows.")
        rows.share_left(parts if self._world_size > 1 else ())

    def take(self, plan: StepPlan, share: Sequence[StreamShare]) -> dict[int, list[Any]]:
        """Returns this rank's rows of a step, by stream; repeated calls with the same plan return the same rows.

        Args:
            plan: Plan of the step.
            share: This rank's share of it.
        """
        if not any(part.stream_id in self._rows for part in share):
            return {}  # keep the rows of the current step
        if self._last[0] is not plan:
            own = [part for part in share if part.stream_id in self._rows]
            self._last = plan, {part.stream_id: self._rows[part.stream_id].take(part.positions) for part in own}
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
        for stream_id, cursor in self._mixing.planner.row_drawers.items():
            self._rows[stream_id].advance(cursor.position)
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
                text = f"{folder} has no position of stream {name!r}: a file rows-RANK.json is missing."
                raise InvalidValueError(text, option="resume_from_checkpoint", stream=name)

    def stop(self) -> None:
        """Stops the workers."""
        for rows in self._rows.values():
            rows.stop()

    def _fill(self, stream_ids: Sequence[int], num_rows: int) -> tuple[Int64Array, Exception | None]:
        """Returns int64 `[num_streams]`: rows ready of the current pass."""
        numbers, failure = [], None
        for stream_id in stream_ids:
            try:
                numbers.append(self._rows[stream_id].fill(num_rows))
            except Exception as error:  # raised after the collective, so that no rank is left waiting
                failure = error
                numbers.append(_FAILED)
        return np.array(numbers, dtype=np.int64), failure

    def _empty(self, stream_id: int) -> InvalidValueError:
        name = self._mixing.names[stream_id]
        return InvalidValueError(
            f"At least one of {self._world_size} ranks received no row in a whole pass over the iterable stream "
            f"{name!r}: it has no rows, or the shards (files) that datasets gave to this rank "
            f"are empty and the others have more than {_MOST_SURPLUS:,} rows, too many to share them out. Remove empty "
            "files, divide the data set anew (dataset.reshard(), or fewer and larger files), or use fewer ranks.",
            option="dataset",
            stream=name,
        )
