"""The planner: from shares to the samples of the next step, with every stream's state."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from mixer.mixture.apportion import apportion
from mixer.mixture.cursor import Cursor
from mixer.mixture.cursors import CursorLookup, IterableCursor, ShuffledCursor, StreamShare
from mixer.mixture.groups import Grouping, Groups
from mixer.mixture.plan import Plan
from mixer.mixture.stream import Stream
from mixer.utils.arrays import BoolArray, FloatArray, Int64Array
from mixer.utils.validation import MOST_COUNT, finite_number, whole_number

Drawing = Literal["exact", "multinomial"]


class Planner:
    """Decides which samples the next step takes from every stream.

    Pure arithmetic on K numbers: it is the same on every rank, and what it remembers is a few numbers a stream.

    Args:
        streams: The streams of the mixture.
        seed: The run's seed.
        groupings: Groups of streams with weights and caps of their own.
        drawing: `"exact"` apportions the counts and carries remainders over; `"multinomial"` draws them.
        cursors: What each stream draws next; `None` for shuffled orders.

    Raises:
        ValueError: If the drawing is another word, or streams and groupings do not fit.
    """

    def __init__(
        self,
        streams: Sequence[Stream],
        seed: int,
        groupings: Sequence[Grouping] = (),
        drawing: Drawing = "exact",
        cursors: Sequence[Cursor] | None = None,
    ):
        if drawing not in ("exact", "multinomial"):
            raise ValueError(f"drawing must be 'exact' or 'multinomial', got {drawing!r}.")
        self.streams = tuple(streams)
        self.cursors: tuple[Cursor, ...] = tuple(cursors or (_cursor(stream, seed) for stream in streams))
        self._has_rows = any(stream.is_iterable for stream in streams)
        self._sizes = np.array([stream.num_samples for stream in streams], dtype=np.int64)
        own = np.array([stream.loss_weight for stream in streams], dtype=np.float64)
        self._loss_weights = None if (own == 1).all() else own
        self.seen: Int64Array = np.zeros(len(self.streams), dtype=np.int64)
        self.seed = seed
        self._drawing = drawing
        self._groups = Groups(streams, groupings)
        self._lookup = CursorLookup(self.cursors)
        self._deficit = np.zeros(len(self.streams))
        self._additional_deficit = np.zeros(len(self.streams))
        self._are_memories = np.array([stream.is_memory for stream in streams])
        self._enters = np.array([stream.enters_at for stream in streams])
        self._leaves = np.array([stream.leaves_at for stream in streams])
        self._always_active = not self._enters.any() and bool((self._leaves == 1.0).all())
        self._unlimited = not (groupings or self._has_rows) and all(cursor.available is None for cursor in self.cursors)
        self._endlessly = np.full(len(self.streams), np.inf)
        _check_presence(self.streams)

    def shares(self, weights: FloatArray, progress: float) -> tuple[FloatArray, FloatArray]:
        """Gives the shares of the streams that are there now, and what those can give.

        Args:
            weights: `[num_streams]`: weights of samples, not all 0.
            progress: Share of the run that is done.

        Returns:
            `[num_streams]` each: shares, which sum to 1 (all 0 if no stream with a positive weight is left), and
            available samples (infinite for a stream without an end). Memories do not keep a run going by themselves.
        """
        if self._always_active and self._unlimited:
            return weights / weights.sum(), self._endlessly
        available = self._groups.limit(self._available(progress), weights, self.seen)
        shares = np.where(available > 0, weights, 0.0)
        if self._only_memories_are_left(weights, shares):
            return np.zeros_like(shares), available
        if shares.sum() > 0:
            shares = self._groups.fit(shares / shares.sum())
        return shares, available

    def active(self, progress: float) -> BoolArray:
        """Says which streams can give a sample now, whatever their weights.

        Args:
            progress: Share of the run that is done.

        Returns:
            bool `[num_streams]`: false for those that have not entered or have left, that are used up or empty, or
            whose group is used up.
        """
        return (self._available(progress) > 0) & self._groups.have_left(self.seen)

    def weigh_losses(self, factors: FloatArray | None) -> FloatArray | None:
        """Multiplies a policy's factors on the streams' losses by the streams' own weights.

        Args:
            factors: `[num_streams]`, or `None` for none.

        Returns:
            `[num_streams]`, or `None` if there is nothing to multiply by.
        """
        own = self._loss_weights
        return factors if own is None else own if factors is None else own * factors

    def _available(self, progress: float) -> FloatArray:
        """`[num_streams]`: samples that each stream can give, but for the limits of its groups."""
        available = self._endlessly
        if not self._unlimited:
            available = np.array([np.inf if d.available is None else float(d.available) for d in self.cursors])
        if self._always_active:
            return available
        present = (self._enters <= progress) & ((progress < self._leaves) | (self._leaves == 1.0))
        return np.where(present, available, 0.0)

    def _only_memories_are_left(self, weights: FloatArray, shares: FloatArray) -> bool:
        lasting = ~self._are_memories
        return not lasting.all() and bool(weights[lasting].any()) and not shares[lasting].any()

    def draw(
        self,
        shares: FloatArray,
        available: FloatArray,
        total: int,
        step: int,
        additional: FloatArray | None = None,
    ) -> tuple[Int64Array, Int64Array]:
        """Takes the samples of a step from the streams.

        Args:
            shares: `[num_streams]`: what `shares` gave.
            available: `[num_streams]`: what `shares` gave beside it.
            total: Number of samples; fewer are drawn only when all streams together have fewer.
            step: Index of the step, for a drawing at random.
            additional: `[num_streams]`: samples on top, as multiples of those; `None` for none.

        Returns:
            int64 `[num_streams]` each: counts, and the position of each stream's first sample.
        """
        counts = self._counts(shares, available, total, step)
        if additional is not None:
            counts += self._additional_counts(additional * int(counts.sum()), available - counts)
        starts = [cursor.advance(count) for cursor, count in zip(self.cursors, counts.tolist(), strict=True)]
        self.seen += counts
        return counts, np.array(starts, dtype=np.int64)

    @property
    def unique(self) -> Int64Array:
        """int64 `[num_streams]`: different samples drawn so far."""
        unique = np.minimum(self.seen, self._sizes)
        for stream_id, cursor in self.row_drawers.items():
            unique[stream_id] = cursor.num_unique
        return unique

    @property
    def deficit(self) -> FloatArray:
        """`[num_streams]`: samples of its share that each stream has not had yet; negative for those ahead of it."""
        return self._deficit

    @property
    def undelivered(self) -> Int64Array:
        """int64 `[num_streams]`: rows of iterable streams that some ranks had left where another had none."""
        rows = np.zeros(len(self.cursors), dtype=np.int64)
        for stream_id, cursor in self.row_drawers.items():
            rows[stream_id] = cursor.undelivered
        return rows

    @property
    def row_drawers(self) -> dict[int, IterableCursor]:
        """The cursors of the iterable streams, by stream id."""
        if not self._has_rows:
            return {}
        return {number: cursor for number, cursor in enumerate(self.cursors) if isinstance(cursor, IterableCursor)}

    def skip(self, num_samples: int) -> None:
        """Leaves out the next samples of a mixture of one stream, at an epoch's end that is dropped.

        Args:
            num_samples: How many.
        """
        assert len(self.cursors) == 1, "only the epochs of a single stream end together with the run's"  # noqa: S101
        self.cursors[0].advance(num_samples)

    def rank_share(self, plan: Plan, rank: int, world_size: int, is_balanced: bool = True) -> list[StreamShare]:
        """Looks up which samples of a plan a rank has to fetch; see `CursorLookup.share`."""
        return self._lookup.share(plan, rank, world_size, is_balanced)

    def example(self, plan: Plan, stream_id: int, number: int = 0) -> StreamShare:
        """Looks up one sample of a plan, for a rank that has none but has to keep in step with the others.

        Args:
            plan: The plan.
            stream_id: Its stream, one that can be indexed.
            number: Which of its samples of that stream.

        Returns:
            The sample.
        """
        first = int(plan.starts[stream_id]) + number
        positions = range(first, first + 1)
        return StreamShare(stream_id, positions, self.cursors[stream_id].references(positions))

    def ahead(self) -> "Planner":
        """Gives a copy to look ahead with.

        Returns:
            The copy; drawing from it does not move this one.
        """
        planner = copy.copy(self)
        planner.cursors = tuple(cursor.ahead() for cursor in self.cursors)
        planner.seen = self.seen.copy()
        return planner

    def _counts(self, shares: FloatArray, available: FloatArray, total: int, step: int) -> Int64Array:
        counts, deficit = self._draw_counts(shares, total, step)
        fixed = np.zeros(len(shares), dtype=np.int64)
        while not self._unlimited and (over := counts > available).any():
            # A stream that runs out gives its last samples and leaves; the others share the rest among them.
            fixed[over] = available[over].astype(np.int64)
            shares = np.where(over, 0.0, shares)
            if not shares.any():
                counts, deficit = np.zeros_like(fixed), np.zeros(len(shares))
                break
            shares = shares / shares.sum()
            counts, deficit = self._draw_counts(shares, total - int(fixed.sum()), step)
        self._deficit = deficit
        return counts + fixed

    def _additional_counts(self, wanted: FloatArray, available: FloatArray) -> Int64Array:
        """Rounds with the remainder carried over; what a stream cannot give is not made up for later."""
        due = np.where(wanted > 0, self._additional_deficit + wanted, 0.0)
        counts = np.minimum(np.floor(due + 1e-9), available)
        self._additional_deficit = np.where(counts < available, due - counts, 0.0)
        return counts.astype(np.int64)

    def _draw_counts(self, shares: FloatArray, total: int, step: int) -> tuple[Int64Array, FloatArray]:
        if self._drawing == "exact":
            return apportion(shares, total, self._deficit)
        random = np.random.default_rng([self.seed % 2**63, step, int(np.count_nonzero(shares))])
        return random.multinomial(total, shares), self._deficit

    def state_dict(self) -> dict[str, Any]:
        """Gives every stream's state and what it is owed, as plain data."""
        return {
            "seed": self.seed,
            "streams": {
                stream.name: {
                    **cursor.state_dict(),
                    "seen": int(seen),
                    "deficit": deficit,
                    "additional_deficit": on_top,
                }
                for stream, cursor, seen, deficit, on_top in zip(
                    self.streams,
                    self.cursors,
                    self.seen,
                    self._deficit.tolist(),
                    self._additional_deficit.tolist(),
                    strict=True,
                )
            },
        }

    def load_state_dict(self, state: Mapping[str, Any], allow_inexact: bool = False) -> None:
        """Takes up a saved state.

        Args:
            state: What `state_dict` gave.
            allow_inexact: Goes on with streams of the same name, where they are not the same streams; new ones begin.

        Raises:
            ValueError: If it is of other streams, of streams that changed, or of another seed.
        """
        saved, names = state["streams"], [stream.name for stream in self.streams]
        is_same = list(saved) == names
        if not (is_same or allow_inexact):
            raise ValueError(f"the streams were {list(saved)} when the run was saved and are {names} now")
        if state["seed"] != self.seed and not allow_inexact:
            raise ValueError(f"the data seed was {state['seed']} when the run was saved and is {self.seed} now")
        for name, cursor in zip(names, self.cursors, strict=True):
            try:
                if name in saved:
                    cursor.load_state_dict(saved[name], allow_inexact)
            except ValueError as error:
                raise ValueError(f"stream {name!r}: {error}") from None
        seen = [_seen(saved[name]["seen"], name) if name in saved else 0 for name in names]
        self.seen = np.array(seen, dtype=np.int64)
        if is_same:
            self._deficit = np.array([_deficit_of(saved[name]["deficit"], name) for name in names])
            on_top = [_deficit_of(saved[name]["additional_deficit"], name) for name in names]
            self._additional_deficit = np.array(on_top)


def _seen(saved: Any, name: str) -> int:
    return whole_number(saved, f"the samples seen of {name!r}", most=MOST_COUNT)


def _deficit_of(saved: Any, name: str) -> float:
    return finite_number(saved, f"the deficit of {name!r}", -_MAX_DEFICIT, _MAX_DEFICIT)


# Apportionment owes a stream less than 1 + ln K samples, and what comes on top less than 1.
_MAX_DEFICIT = 1e6


def _cursor(stream: Stream, seed: int) -> Cursor:
    if stream.is_memory:
        cursor: Cursor = stream.dataset.new_cursor(stream.order_key(seed))
        return cursor
    return IterableCursor(stream) if stream.is_iterable else ShuffledCursor(stream, seed)


def _check_presence(streams: Sequence[Stream]) -> None:
    """Refuses streams that leave a part of the run without any."""
    covered = 0.0
    for stream in sorted(streams, key=lambda stream: stream.enters_at):
        if stream.is_memory:
            continue
        if stream.enters_at > covered:
            break
        covered = max(covered, stream.leaves_at)
    if covered < 1.0:
        raise ValueError(
            f"No stream is there from progress {covered} of the run on; "
            "let one enter earlier (enters_at) or leave later (leaves_at)."
        )
