"""How the next samples of a map-style stream, and of an iterable one, are drawn."""

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np

from mixer.mixture.length_order import LengthOrder, ReadLengths
from mixer.mixture.permutation import Permutation, PermutationBlock
from mixer.mixture.stream import Stream
from mixer.utils.arrays import Int64Array
from mixer.utils.errors import InvalidValueError, wrong_value
from mixer.utils.validation import MOST_COUNT, finite_number, whole_number

_STATE = ("position", "passes", "pass_start", "longest_pass", "left", "undelivered")  # of an iterable stream


class IterableCursor:
    """Cursor over an iterable dataset: simply its next rows.

    The total is unknown until the last pass ends on a rank; the row reader then reports how many rows are left.

    Args:
        stream: Stream.
    """

    def __init__(self, stream: Stream):
        self._max_passes = None if stream.max_epochs is None else int(stream.max_epochs)
        self._end = stream.end
        self.position = self.passes = self.pass_start = self.longest_pass = 0
        self.undelivered = 0
        self.left: int | None = None  # rows over all ranks; `None` if the last pass has not ended

    @property
    def is_over(self) -> bool:
        """Whether the last pass has ended."""
        return self.passes == self._max_passes

    @property
    def available(self) -> int | None:
        """Rows left, or `None` without a limit until the end of the last pass is known."""
        if self._end is None:
            return self.left
        to_end = max(0, self._end - self.position)
        return to_end if self.left is None else min(self.left, to_end)

    @property
    def left_in_pass(self) -> int | None:
        """Rows left of a pass whose end is known, or `None`; 0 between two passes."""
        return self.pass_start - self.position if self.pass_start >= self.position else None

    @property
    def num_unique(self) -> int:
        """Distinct rows drawn: those of the longest pass."""
        return min(self.position, max(self.longest_pass, self.position - self.pass_start))

    def end_pass(self, num_kept: int, num_undelivered: int) -> None:
        """Records the end of a pass.

        Args:
            num_kept: Rows over all ranks left from this and earlier passes, which are drawn next.
            num_undelivered: Rows over all ranks that are discarded.
        """
        self.passes += 1
        end = self.position + num_kept
        self.longest_pass = max(self.longest_pass, end - self.pass_start)
        self.pass_start = end
        self.undelivered += num_undelivered

    def advance(self, count: int) -> int:
        """Reserves the next rows; see `Cursor.advance`."""
        start = self.position
        self.position += count
        if self.left is not None:
            self.left -= count
        return start

    def references(self, positions: range | Int64Array) -> Int64Array:
        """Returns the positions themselves: rows have no other index."""
        return np.asarray(positions, dtype=np.int64)

    def lookahead_copy(self) -> "IterableCursor":
        """Returns a copy for lookahead; see `Cursor.lookahead_copy`."""
        return copy.copy(self)

    def state_dict(self) -> dict[str, Any]:
        """Returns the position of all ranks together; see `Cursor.state_dict`."""
        return {name: getattr(self, name) for name in _STATE}

    def load_state_dict(self, state: Mapping[str, Any], allow_inexact: bool = False) -> None:
        """Restores the position of all ranks together.

        Args:
            state: Result of `state_dict`.
            allow_inexact: Whether to start anew if the dataset was not iterable before.

        Raises:
            ValueError: If the dataset was not iterable before.
        """
        if "passes" not in state:
            if allow_inexact:
                return
            raise wrong_value("dataset", "had a length when the run was saved and is iterable now")
        for name in _STATE:
            is_unknown = name == "left" and state[name] is None
            setattr(self, name, None if is_unknown else whole_number(state[name], name, most=MOST_COUNT))


class ShuffledOrder:
    """The permuted order of a stream, epoch after epoch; the planner has its position, all that a run moves.

    Args:
        stream: Stream.
        run_seed: Seed of the run, for streams without their own.
        group_size: Samples of a group of similar length; 0 for an order without regard to length.
        read_lengths: Returns the lengths of samples, for groups.
        is_alone: Whether steps have samples of no other stream; see `LengthOrder`.
    """

    def __init__(
        self,
        stream: Stream,
        run_seed: int,
        group_size: float = 0,
        read_lengths: ReadLengths | None = None,
        is_alone: bool = False,
    ):
        self.length, self.key, self.shuffle = stream.num_samples, stream.order_key(run_seed), stream.shuffle
        self._content = stream.content
        self._read_lengths = read_lengths
        self.turns, self.is_alone = run_seed % 2**62, is_alone
        self.set_order(0 if read_lengths is None or not stream.shuffle else group_size)

    def set_order(self, group_size: float) -> None:
        """Sets the size of groups of similar length, before anything is drawn; see `LengthOrder`."""
        order, self.group_size = Permutation(self.length, self.key, self.shuffle), group_size
        self._block: PermutationBlock | LengthOrder = PermutationBlock(order)
        if group_size and self._read_lengths is not None:
            own = self._read_lengths, self.turns, self.is_alone
            self._block = LengthOrder(order, self.length, group_size, *own)

    def references(self, positions: range | Int64Array) -> Int64Array:
        """Maps positions to indices; see `Cursor.references`."""
        return self._block.read(positions)

    def state_dict(self, position: int) -> dict[str, Any]:
        """Returns a position and the parameters of the order as plain data."""
        state: dict[str, Any] = {"position": position, "length": self.length}
        state |= {"key": self.key, "shuffle": self.shuffle}
        if self.group_size:
            state["window_samples"] = self.group_size
        return state if self._content is None else {**state, "content": self._content}

    def load_state_dict(self, state: Mapping[str, Any], allow_inexact: bool = False) -> int:
        """Restores a saved order.

        Args:
            state: Result of `state_dict`.
            allow_inexact: Whether to continue after the same fraction of passes if positions map to other samples now.

        Returns:
            The position.

        Raises:
            ValueError: If dataset, seed or shuffling have changed.
        """
        self._restore_groups(state, allow_inexact)
        position = whole_number(state["position"], "position", most=MOST_COUNT)
        own = self.state_dict(position)
        for field in ("length", "key", "shuffle", *({"content"} & state.keys() & own.keys())):
            if state.get(field) != own[field]:
                if not allow_inexact:
                    raise wrong_value(field, f"was {state.get(field)} when the run was saved and is {own[field]} now")
                length = whole_number(state.get("length", self.length), "length", least=1)
                position = int(state["position"]) * self.length // length
        return position

    def _restore_groups(self, state: Mapping[str, Any], allow_inexact: bool) -> None:
        """Continues with groups of the saved size, which the batch size set when the run began."""
        saved = finite_number(state.get("window_samples", 0), "window_samples", 0.0, MOST_COUNT)
        if saved and self.group_size:
            self.set_order(saved)
        elif saved != self.group_size and not allow_inexact:
            then, now = ("grouped by length" if size else "in any order" for size in (saved, self.group_size))
            raise InvalidValueError(
                f"samples were drawn {then} when the run was saved and are {now} now (train_sampling_strategy)",
                option="train_sampling_strategy",
                expected=then,
                found=now,
            )
