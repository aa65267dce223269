"""Planner: converts shares to the samples of the next step, and keeps every stream's state."""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np

from mixer.mixture.apportion import apportion
from mixer.mixture.batches import BatchedOrder
from mixer.mixture.cursors import IterableCursor, ShuffledOrder
from mixer.mixture.groups import Grouping, Groups
from mixer.mixture.length_order import NO_GROUPS, LengthGroups
from mixer.mixture.step_plan import RankLookup, StepPlan, StreamShare
from mixer.mixture.stream import Cursor, Stream
from mixer.policies.contract import UNITS, no_decay
from mixer.utils.arrays import BoolArray, FloatArray, Int64Array
from mixer.utils.errors import InvalidValueError, wrong_value
from mixer.utils.ranges import check_choice
from mixer.utils.validation import MOST_COUNT, finite_number, whole_number

Drawing = Literal["exact", "multinomial"]
OneStreamPer = Literal["step", "micro_batch"]
_MAX_DEFICIT = 1e6  # apportionment stays below 1 + ln K, additional samples below 1
_OWN = ("seen", "deficit", "additional_deficit")  # numbers of a stream in the planner's state


class Planner:
    """Chooses the next step's samples from every stream.

    Pure arithmetic on K numbers: identical on every rank, with a few numbers of state per stream.

    Args:
        streams: Streams of the mixture.
        seed: Seed of the run.
        groupings: Groups of streams with their own weights and caps.
        drawing: `"exact"` apportions counts and carries remainders over; `"multinomial"` draws them.
        decay_begins: Returns the progress at which the learning rate begins to fall.
        length_groups: Streams that are drawn in groups of similar length.
        whole_step_size: Samples of a step, if each step is one stream's; it ends where a pass of that stream ends. 0
            for mixed steps.
        drops_rest: Whether a pass of a stream is left before a step that would be smaller.

    Raises:
        ValueError: If the drawing is unknown, or streams and groupings are inconsistent.
    """

    def __init__(
        self,
        streams: Sequence[Stream],
        seed: int,
        groupings: Sequence[Grouping] = (),
        drawing: Drawing = "exact",
        decay_begins: Callable[[], float] = no_decay,
        length_groups: LengthGroups = NO_GROUPS,
        whole_step_size: int = 0,
        drops_rest: bool = False,
    ):
        check_choice("drawing", drawing, get_args(Drawing))
        self.streams = tuple(streams)
        self.cursors = tuple(
            _cursor(stream, seed, length_groups, number, is_alone=len(streams) == 1 or whole_step_size > 0)
            if stream.batches is None
            else BatchedOrder(stream, whole_step_size, seed, drops_rest)
            for number, stream in enumerate(streams)
        )
        # `[num_streams]`: positions of the shuffled streams, which advance at once; `others` advance one by one.
        self.positions: Int64Array = np.zeros(len(self.streams), dtype=np.int64)
        cursors = enumerate(self.cursors)
        self.others = {number: cursor for number, cursor in cursors if not isinstance(cursor, ShuffledOrder)}
        self._ends = np.array([np.inf if stream.end is None else float(stream.end) for stream in streams])
        self._sizes = np.array([stream.num_samples for stream in streams], dtype=np.int64)
        own = np.array([stream.loss_weight for stream in streams], dtype=np.float64)
        self._loss_weights = None if (own == 1).all() else own
        self.seen: Int64Array = np.zeros(len(self.streams), dtype=np.int64)
        self.seed = seed
        self._drawing, self.has_whole_steps = drawing, whole_step_size > 0
        self._whole_step_size = whole_step_size
        self._least_rest = whole_step_size if drops_rest else 1
        self._groups = Groups(streams, groupings)
        self._lookup = RankLookup(self.cursors)
        # `[num_streams]`: samples of its share that each stream has yet to receive; negative for streams ahead.
        self.deficit: FloatArray = np.zeros(len(self.streams))
        self._additional_deficit = np.zeros(len(self.streams))
        self._are_memories = np.array([stream.is_memory for stream in streams])
        self._enters, self.leaves = _presence(streams, decay_begins)
        most = [[stream.amounts.get(unit, np.inf) for stream in streams] for unit in UNITS[1:]]
        self._most: FloatArray = np.array(most)  # `[2, num_streams]`: their amounts of tokens and of labels
        self._has_amounts = bool(np.isfinite(self._most).any())
        self._left_by_amounts = np.full(len(self.streams), np.inf)
        self._always_active = not self._enters.any() and bool((self.leaves == 1.0).all())
        is_limited = bool(groupings) or bool(self.row_drawers) or self._has_amounts or self.has_whole_steps
        are_endless = np.isinf(self._ends).all() and all(cursor.available is None for cursor in self.others.values())
        self._unlimited = bool(are_endless) and not is_limited
        self._endlessly = np.full(len(self.streams), np.inf)
        self._last_shares: tuple[FloatArray, FloatArray] | None = None  # of unlimited streams, and their weights

    def shares(self, weights: FloatArray, progress: float) -> tuple[FloatArray, FloatArray]:
        """Returns the shares of the active streams and their available samples.

        Args:
            weights: `[num_streams]`: sample weights, not all 0.
            progress: Completed fraction of the run.

        Returns:
            `[num_streams]` each: shares, which sum to 1 (all 0 if no stream with a positive weight is left), and
            available samples (infinite for unlimited streams). Memories alone do not keep a run going.
        """
        if self._always_active and self._unlimited:
            if self._last_shares is None or self._last_shares[0] is not weights:
                self._last_shares = weights, weights / weights.sum()
            return self._last_shares[1], self._endlessly
        available = self._groups.limit(self._available(progress), weights, self.seen)
        shares = np.where(available > 0, weights, 0.0)
        lasting = ~self._are_memories
        if not lasting.all() and weights[lasting].any() and not shares[lasting].any():  # only memories are left
            return np.zeros_like(shares), available
        if shares.sum() > 0:
            shares = self._groups.fit(shares / shares.sum())
        return shares, available

    def active(self, progress: float) -> BoolArray:
        """Returns which streams can give a sample now, regardless of their weights.

        Args:
            progress: Completed fraction of the run.

        Returns:
            bool `[num_streams]`: false for streams that have not entered, have left, or are exhausted, and for those of
            an exhausted group.
        """
        if self._always_active and self._unlimited:
            return np.ones(len(self.streams), dtype=np.bool_)
        return (self._available(progress) > 0) & self._groups.have_left(self.seen)

    def match_lengths(self, weights: FloatArray) -> None:
        """Draws streams in groups as large as their shares of a step, if groups have similar lengths.

        Args:
            weights: `[num_streams]`: the shares.
        """
        for cursor, weight in zip(self.cursors, weights.tolist(), strict=True):
            if isinstance(cursor, ShuffledOrder) and cursor.group_size and not self.has_whole_steps:
                cursor.set_order(cursor.group_size * (weight or 1.0 / len(weights)))

    @property
    def has_label_amounts(self) -> bool:
        """Whether a stream has an amount of labels."""
        return bool(np.isfinite(self._most[1]).any())

    def count_amounts(self, done: Int64Array) -> None:
        """Finds how many samples the streams' `max_tokens` and `max_labels` leave, at their mean length so far.

        Args:
            done: int64 `[2, num_streams]`: tokens and labels so far.
        """
        if not self._has_amounts:
            return
        lengths = np.divide(done, self.seen, out=np.zeros(done.shape), where=self.seen > 0)
        with np.errstate(divide="ignore", invalid="ignore"):
            in_samples = np.where(lengths > 0.0, np.ceil(np.maximum(self._most - done, 0.0) / lengths), np.inf)
        self._left_by_amounts = in_samples.min(axis=0)

    def weigh_losses(self, factors: FloatArray | None) -> FloatArray | None:
        """Combines a policy's loss weights with the streams' own, `[num_streams]`; `None` stands for no weights."""
        own = self._loss_weights
        return factors if own is None else own if factors is None else own * factors

    def _available(self, progress: float) -> FloatArray:
        """`[num_streams]`: available samples of each stream, without group limits."""
        available = self._endlessly
        if not self._unlimited:
            own = np.maximum(self._ends - self.positions, 0.0)
            if self.has_whole_steps:  # the next pass may bring a row of this step again
                own = np.minimum(own, self._sizes - self.positions % np.maximum(self._sizes, 1))
            for number, cursor in self.others.items():
                own[number] = np.inf if cursor.available is None else cursor.available
                if self.has_whole_steps and isinstance(cursor, IterableCursor) and cursor.left_in_pass:
                    own[number] = min(own[number], cursor.left_in_pass)
            available = np.minimum(own, self._left_by_amounts)
        if self._always_active:
            return available
        present = (self._enters <= progress) & ((progress < self.leaves) | (self.leaves == 1.0))
        return np.where(present, available, 0.0)

    def draw(
        self, shares: FloatArray, available: FloatArray, total: int, step: int, additional: FloatArray | None = None
    ) -> tuple[Int64Array, Int64Array]:
        """Draws the samples of a step from the streams.

        Args:
            shares: `[num_streams]`: shares from `shares`.
            available: `[num_streams]`: available samples from `shares`.
            total: Number of samples; fewer are drawn only if all streams together have fewer.
            step: Index of the step, for multinomial drawing.
            additional: `[num_streams]`: additional samples as multiples of the total; `None` for none.

        Returns:
            int64 `[num_streams]` each: counts, and the position of each stream's first sample.
        """
        if self.has_whole_steps:
            self.check_additional(additional)
            counts = self._whole_step(shares, available, total, step)
        else:
            counts = self._counts(shares, available, total, step)
        if additional is not None:
            counts += self._additional_counts(additional * int(counts.sum()), available - counts)
        starts = self._advance(counts)
        if self.has_whole_steps and self._least_rest > 1:
            left = -self.positions % np.maximum(self._sizes, 1)
            self.positions += np.where((counts > 0) & (left < self._least_rest), left, 0)
        self.seen += counts
        if self._has_amounts:
            self._left_by_amounts = np.maximum(self._left_by_amounts - counts, 0.0)
        return counts, starts

    def _advance(self, counts: Int64Array) -> Int64Array:
        starts = self.positions
        self.positions = starts + counts
        for number, cursor in self.others.items():
            starts[number] = cursor.advance(int(counts[number]))
        return starts

    @property
    def unique(self) -> Int64Array:
        """int64 `[num_streams]`: distinct samples drawn so far."""
        unique = np.minimum(self.seen, self._sizes)
        for stream_id, cursor in self.row_drawers.items():
            unique[stream_id] = cursor.num_unique
        return unique

    @property
    def undelivered(self) -> Int64Array:
        """int64 `[num_streams]`: rows of iterable streams that ranks discarded at the ends of passes."""
        rows = np.zeros(len(self.cursors), dtype=np.int64)
        for stream_id, cursor in self.row_drawers.items():
            rows[stream_id] = cursor.undelivered
        return rows

    @property
    def row_drawers(self) -> dict[int, IterableCursor]:
        """Cursors of the iterable streams, by stream id."""
        return {number: cursor for number, cursor in self.others.items() if isinstance(cursor, IterableCursor)}

    def skip(self, num_samples: int) -> None:
        """Skips the next samples of a mixture of one stream, when the end of an epoch is dropped."""
        assert len(self.cursors) == 1, "only the epochs of a single stream end together with the run's"  # noqa: S101
        if not self.has_whole_steps:  # whose passes end by themselves
            self._advance(np.array([num_samples]))

    def rank_share(self, plan: StepPlan, rank: int, world_size: int, is_balanced: bool = True) -> list[StreamShare]:
        """Returns a rank's samples of a plan; see `RankLookup.share`."""
        return self._lookup.share(plan, rank, world_size, is_balanced)

    def example(self, plan: StepPlan, stream_id: int, number: int = 0) -> StreamShare:
        """Returns one sample of a plan's stream, for a rank that has none but must keep in step.

        Args:
            plan: Plan of the step.
            stream_id: A stream of it that can be indexed.
            number: Number of the sample in that stream.
        """
        first = int(plan.starts[stream_id]) + number
        positions = range(first, first + 1)
        return StreamShare(stream_id, positions, self.cursors[stream_id].references(positions))

    def lookahead_copy(self) -> "Planner":
        """Returns a copy for lookahead: drawing from it does not move this one.

        It has positions of its own, but shares the orders of shuffled streams.
        """
        planner = copy.copy(self)
        planner.positions, planner.seen = self.positions.copy(), self.seen.copy()
        planner.others = {number: cursor.lookahead_copy() for number, cursor in self.others.items()}
        planner.cursors = tuple(planner.others.get(number, cursor) for number, cursor in enumerate(self.cursors))
        return planner

    def check_additional(self, additional: FloatArray | None) -> None:
        """Refuses samples on top of a step that is one stream's, with a `ValueError`."""
        if self.has_whole_steps and additional is not None:
            hint = "Give a replay buffer a weight of its own, as a stream whose steps take turns with the others'."
            expected = "a policy without additional samples, because one_stream_per='step'"
            raise InvalidValueError(option="mixing", expected=expected, found="samples on top of a step", hint=hint)

    def _whole_step(self, shares: FloatArray, available: FloatArray, total: int, step: int) -> Int64Array:
        """Gives the step to one stream, chosen as a single sample is: a step of `total` samples is the unit.

        Deficits stay in samples, so that a stream whose steps are cut short gets more of them. A batch of a stream that
        has its own is whole, beyond the end of an epoch or a budget in samples.
        """
        chosen, deficit = self._draw_counts(shares, 1, step, self.deficit / total)
        number = int(chosen.argmax())
        is_batch = isinstance(self.cursors[number], BatchedOrder)  # whole: its rows may need each other
        count = int(min(self._whole_step_size if is_batch else total, float(available[number])))
        self.deficit = deficit * total
        if self._drawing == "exact":
            self.deficit += (total - count) * (chosen - shares)
        return chosen * count

    def _counts(self, shares: FloatArray, available: FloatArray, total: int, step: int) -> Int64Array:
        counts, deficit = self._draw_counts(shares, total, step, self.deficit)
        if self._unlimited:
            self.deficit = deficit
            return counts
        fixed = np.zeros(len(shares), dtype=np.int64)
        while (over := counts > available).any():
            # An exhausted stream gives its last samples and leaves; the others share the rest.
            fixed[over] = available[over].astype(np.int64)
            shares = np.where(over, 0.0, shares)
            if not shares.any():
                counts, deficit = np.zeros_like(fixed), np.zeros(len(shares))
                break
            shares = shares / shares.sum()
            counts, deficit = self._draw_counts(shares, total - int(fixed.sum()), step, self.deficit)
        self.deficit = deficit
        return counts + fixed

    def _additional_counts(self, wanted: FloatArray, available: FloatArray) -> Int64Array:
        """Rounds counts, carrying the remainder over; missing samples of exhausted streams are not made up later."""
        due = np.where(wanted > 0, self._additional_deficit + wanted, 0.0)
        counts = np.minimum(np.floor(due + 1e-9), available)
        self._additional_deficit = np.where(counts < available, due - counts, 0.0)
        return counts.astype(np.int64)

    def _draw_counts(
        self, shares: FloatArray, total: int, step: int, deficit: FloatArray
    ) -> tuple[Int64Array, FloatArray]:
        if self._drawing == "exact":
            return apportion(shares, total, deficit)
        random = np.random.default_rng([self.seed % 2**63, step, int(np.count_nonzero(shares))])
        return random.multinomial(total, shares), deficit

    def state_dict(self) -> dict[str, Any]:
        """Returns every stream's state and deficit as plain data."""
        arrays = (self.positions, self.seen, self.deficit, self._additional_deficit)
        numbers = zip(*(array.tolist() for array in arrays), strict=True)
        states = {}
        for stream, cursor, (position, *own) in zip(self.streams, self.cursors, numbers, strict=True):
            state = cursor.state_dict(position) if isinstance(cursor, ShuffledOrder) else cursor.state_dict()
            states[stream.name] = state | dict(zip(_OWN, own, strict=True))
        return {"seed": self.seed, "streams": states}

    def load_state_dict(self, state: Mapping[str, Any], allow_inexact: bool = False) -> None:
        """Restores a saved state.

        Args:
            state: Result of `state_dict`.
            allow_inexact: Whether to continue streams of the same name although they differ; new ones start.

        Raises:
            ValueError: If streams or seed have changed.
        """
        saved, names = state["streams"], [stream.name for stream in self.streams]
        is_same = list(saved) == names
        if not (is_same or allow_inexact):
            raise wrong_value("streams", f"were {list(saved)} when the run was saved and are {names} now")
        if state["seed"] != self.seed and not allow_inexact:
            text = f"was {state['seed']} when the run was saved and is {self.seed} now (in a loop of your own, seed)"
            raise wrong_value("data_seed", text)
        seen = np.zeros(len(names), dtype=np.int64)
        for number, (name, cursor) in enumerate(zip(names, self.cursors, strict=True)):
            if name in saved:
                try:
                    position = cursor.load_state_dict(saved[name], allow_inexact)
                except ValueError as error:
                    raise InvalidValueError(
                        f"stream {name!r}: {error}", option=getattr(error, "option", None), stream=name
                    ) from None
                self.positions[number] = position or 0
                seen[number] = whole_number(saved[name]["seen"], f"the samples seen of {name!r}", most=MOST_COUNT)
        self.seen = seen
        if is_same:
            bounds = -_MAX_DEFICIT, _MAX_DEFICIT
            self.deficit, self._additional_deficit = (
                np.array([finite_number(saved[name][field], f"the deficit of {name!r}", *bounds) for name in names])
                for field in _OWN[1:]
            )


def _cursor(
    stream: Stream, seed: int, length_groups: LengthGroups, number: int, is_alone: bool
) -> Cursor | ShuffledOrder:
    if stream.is_memory:
        cursor: Cursor = stream.dataset.new_cursor(stream.order_key(seed))
        return cursor
    if stream.is_iterable:
        return IterableCursor(stream)
    return ShuffledOrder(stream, seed, length_groups.size, length_groups.readers.get(number), is_alone)


def _presence(streams: Sequence[Stream], decay_begins: Callable[[], float]) -> tuple[FloatArray, FloatArray]:
    """Gives the progress at which each stream enters and leaves; refuses a part of the run without any."""
    moments = [[_progress(stream, name, decay_begins) for stream in streams] for name in ("enters_at", "leaves_at")]
    covered = 0.0
    lasting = [span for *span, stream in zip(*moments, streams, strict=True) if not stream.is_memory]
    for enters, leaves in sorted(lasting):
        if enters > covered:
            break
        covered = max(covered, leaves)
    if covered < 1.0:
        raise wrong_value(
            "enters_at", f"No stream is active from progress {covered} on: let one enter earlier or leave later."
        )
    return np.array(moments[0]), np.array(moments[1])


def _progress(stream: Stream, name: str, decay_begins: Callable[[], float]) -> float:
    share: float | str = getattr(stream, name)
    if not isinstance(share, str):
        return share
    try:
        return decay_begins()
    except ValueError as error:
        raise InvalidValueError(f"Stream {stream.name!r}: {name}: {error}", option=name, stream=stream.name) from None
