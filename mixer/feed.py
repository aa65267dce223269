"""Rows of the iterable streams: read ahead on every rank, ended on all ranks at the same step."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mixer.agreement import OtherRankError
from mixer.checkpoint import write_json
from mixer.controller import Mixing
from mixer.drawers import StreamShare
from mixer.rows import RowSource

Int64Array = NDArray[np.int64]

_ENDLESS = 2**62
_FAILED = -1


class Ranks(Protocol):
    """What the feeds of all ranks have to agree on."""

    def least(self, numbers: Int64Array) -> Int64Array:
        """Finds the smallest numbers of all ranks."""

    def total(self, numbers: Int64Array) -> Int64Array:
        """Adds numbers of all ranks up."""


class Feed:
    """Gives a rank its rows of the iterable streams.

    Before an update is planned, every rank has as many rows ready as it may need, or has seen the end. The ranks tell
    each other how many are left: a stream that ends on one of them ends for all, before any of them lacks a row.

    Args:
        sources: The rows of each iterable stream, by stream id.
        mixing: The controller, whose streams are told how many rows are left.
        ranks: Gives what the ranks of the present run agree by.
        world_size: Number of ranks.
    """

    def __init__(self, sources: Mapping[int, RowSource], mixing: Mixing, ranks: Callable[[], Ranks], world_size: int):
        self._sources = dict(sources)
        self._mixing, self._ranks, self._world_size = mixing, ranks, world_size
        self._given: tuple[int, dict[int, list[Any]]] = (-1, {})

    def prepare(self, num_rows: int) -> None:
        """Reads ahead and finds out how many rows are left.

        Args:
            num_rows: Most rows of a stream that this rank may need for the next update.

        Raises:
            SampleError: If a row cannot be read on this rank.
            OtherRankError: If a row cannot be read on another rank.
            ValueError: If a whole pass over a data set gave a rank no row.
        """
        drawers = self._mixing.planner.row_drawers
        active = [stream_id for stream_id, drawer in drawers.items() if not drawer.is_over]
        began: list[int] = []
        while active:
            numbers, error = self._fill(active, num_rows)
            least = self._ranks().least(numbers).tolist()
            if _FAILED in least:
                raise error or OtherRankError("Another rank could not read its rows.")
            ended = []
            for stream_id, left in zip(active, least, strict=True):
                drawers[stream_id].limit(None if left == _ENDLESS else left * self._world_size)
                if left == 0:
                    ended.append(stream_id)
            self._check_passes([stream_id for stream_id in ended if stream_id in began])
            for stream_id in ended:
                rest = self._ranks().total(np.array([self._sources[stream_id].end_pass()]))
                drawers[stream_id].end_pass(int(rest[0]))
            active = began = [stream_id for stream_id in ended if not drawers[stream_id].is_over]

    def take(self, step: int, share: Sequence[StreamShare]) -> dict[int, list[Any]]:
        """Gives this rank's rows of an update.

        Args:
            step: Index of the update; the same rows are given again if it is asked for again.
            share: What this rank has of the update.

        Returns:
            The rows of each iterable stream in it.
        """
        if self._given[0] != step:
            rows = {
                part.stream_id: self._sources[part.stream_id].take(len(part.indices))
                for part in share
                if part.stream_id in self._sources
            }
            self._given = (step, rows)
        return self._given[1]

    def example(self) -> tuple[int, Any]:
        """Gives a row that is ready, without taking it, for a rank that has none of its own in an update.

        Returns:
            The stream and the row.

        Raises:
            ValueError: If there is none.
        """
        for stream_id, source in self._sources.items():
            row = source.peek()
            if row is not None:
                return stream_id, row
        raise ValueError("This rank has no row left for an update that it has no part in.")

    def save(self, folder: Path, rank: int) -> None:
        """Writes where this rank is in its rows.

        Args:
            folder: The checkpoint.
            rank: This rank.
        """
        names = self._mixing.names
        states = {names[stream_id]: source.state_dict() for stream_id, source in self._sources.items()}
        write_json(folder / f"rows-{rank}.json", states)

    def load(self, folder: Path, allow_inexact: bool = False) -> None:
        """Takes up where the ranks were.

        Args:
            folder: The checkpoint.
            allow_inexact: Goes on as near as can be where the rows cannot be had back.

        Raises:
            ValueError: If a file is missing or torn, or the rows cannot be had back.
        """
        paths = sorted(folder.glob("rows-*.json"), key=lambda path: int(path.stem.split("-")[1]))
        states = [_read(path) for path in paths]
        for stream_id, source in self._sources.items():
            name = self._mixing.names[stream_id]
            saved = [state[name] for state in states if name in state]
            if saved:
                source.load_state_dict(saved, allow_inexact)
            elif not allow_inexact:
                raise ValueError(f"{folder} does not say where stream {name!r} was: a file rows-RANK.json is missing.")

    def stop(self) -> None:
        """Ends workers."""
        for source in self._sources.values():
            source.stop()

    def _fill(self, stream_ids: Sequence[int], num_rows: int) -> tuple[Int64Array, Exception | None]:
        numbers, failure = [], None
        for stream_id in stream_ids:
            try:
                self._sources[stream_id].fill(num_rows)
                left = self._sources[stream_id].remaining
                numbers.append(_ENDLESS if left is None else left)
            except Exception as error:  # raised once the other ranks are not left waiting
                failure = error
                numbers.append(_FAILED)
        return np.array(numbers, dtype=np.int64), failure

    def _check_passes(self, stream_ids: Sequence[int]) -> None:
        if stream_ids:
            names = [self._mixing.names[stream_id] for stream_id in stream_ids]
            raise ValueError(
                f"A whole pass over the iterable streams {names} gave at least one of {self._world_size} ranks no row: "
                "they have fewer rows than there are ranks (and workers). Use fewer, or leave these streams out."
            )


def _read(path: Path) -> dict[str, Any]:
    try:
        states = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is torn ({error}). Resume from an earlier checkpoint.") from None
    if not isinstance(states, dict):
        raise ValueError(f"{path} does not hold the state of rows. Resume from an earlier checkpoint.")
    return states
