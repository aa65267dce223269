"""The interface of a selection: which samples a buffer keeps, and in which slots."""

import copy
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mixer.utils.arrays import FloatArray, Int64Array
from mixer.utils.errors import InvalidTypeError, InvalidValueError
from mixer.utils.ranges import check_count
from mixer.utils.saved_state import HasState

Values = TypeVar("Values")
# The columns of the offers, by what a selection says in `needs`.
COLUMNS = {"task": "tasks", "label": "labels", "loss": "losses", "features": "features"}


@dataclass(frozen=True)
class Offers:
    """Samples offered to a buffer, in training order; the same on every rank.

    Args:
        count: Number of samples.
        first: Number of samples that the selection was offered before, over the lifetime of the buffer.
        tasks: int64 `[count]`: the task (source) of each; `None` unless the selection needs `"task"`.
        labels: int64 `[count]`: the class of each; `None` unless the selection needs `"label"`.
        losses: `[count]`: mean loss per item of each; `None` unless the selection needs `"loss"`.
        features: float32 or float64 `[count, num_features]`; `None` unless the selection needs `"features"`.
        held: int64 `[count]`: the slot of each that the buffer holds already, -1 for others; `None` unless the
            selection sets `follows_repeats`, without which such samples are not offered.
    """

    count: int
    first: int
    tasks: Int64Array | None = None
    labels: Int64Array | None = None
    losses: FloatArray | None = None
    features: NDArray[Any] | None = None
    held: Int64Array | None = None

    def part(self, numbers: NDArray[Any]) -> "Offers":
        """Returns a part of the samples, by int `[num_taken]` or bool `[count]`."""
        names = ("tasks", "labels", "losses", "features", "held")
        columns = {name: getattr(self, name) for name in names}
        parts = {name: None if column is None else column[numbers] for name, column in columns.items()}
        return Offers(len(np.arange(self.count)[numbers]), self.first, **parts)

    @property
    def numbers(self) -> Int64Array:
        """int64 `[count]`: the number of each sample among all that the selection was ever offered, from 0."""
        return np.arange(self.first, self.first + self.count, dtype=np.int64)


def known(values: Values | None, name: str) -> Values:
    """Returns a column of the offers; raises a `ValueError` if it is missing."""
    if values is None:
        raise InvalidValueError.about(f"Offers.{name}", "must be given, since the selection needs it.")
    return values


class Selection(HasState, ABC):
    """A rule for which samples a buffer keeps.

    A buffer has `capacity` slots, of which 0 to `size - 1` are occupied. A selection stores its own data per occupied
    slot. It has no access to samples, the model or the global random state: random decisions are functions of `key` and
    of saved counters. The cost per offered sample grows at most logarithmically with the capacity, and not with the
    number of tasks.

    A subclass lists in `needs` the columns it requires: `"task"`, `"label"`, `"loss"` and `"features"`.
    It sets `is_by_task` if it chooses among all samples of a task at once, at the end of the task, `follows_losses`
    if it wants the losses of replayed entries, `counts_rows` if a row that comes again, in a second epoch, must not
    count again even if it is no longer held, and `follows_repeats` if it is told of rows that are held already, which
    it leaves out (-1) unless an offer before in the same call took their slot.
    """

    needs: frozenset[str] = frozenset()
    is_by_task: bool = False
    follows_losses: bool = False
    counts_rows: bool = False
    follows_repeats: bool = False

    @property
    def name(self) -> str:
        """Name of the selection in checkpoints."""
        return type(self).__name__

    def start(self, capacity: int, key: int) -> None:
        """Starts with an empty buffer.

        Args:
            capacity: Number of slots, at most 2**31 - 1.
            key: Random key, a signed 64-bit integer.

        Raises:
            ValueError: If the capacity is invalid or too small for the selection.
        """
        check_count("capacity", capacity, 1, "it is the number of samples that the buffer holds")
        if unknown := sorted(set(self.needs) - COLUMNS.keys()):
            raise InvalidValueError(option="needs", expected=f"some of {sorted(COLUMNS)}", found=unknown)
        self._capacity, self._key, self._size = capacity, key, 0

    @property
    def capacity(self) -> int:
        """Number of slots."""
        return self._capacity

    @property
    def key(self) -> int:
        """Random key, on which alone random choices depend, together with the numbers of the offers."""
        return self._key

    @property
    def size(self) -> int:
        """Number of occupied slots, as `choose` and `remove` leave it; a subclass counts what it holds."""
        return self._size

    @abstractmethod
    def choose(self, offers: Offers) -> Int64Array:
        """Decides on samples one by one; each decision sees the results of the previous ones.

        Args:
            offers: The samples.

        Returns:
            int64 `[count]`: the slot of each sample, or -1 if it is not kept. New slots are used in order, `size`,
            `size + 1` and so on; if a slot occurs more than once, the last sample ends up in it.

        Raises:
            ValueError: If the capacity is too small for the samples.
        """

    def check_room(self, num_groups: int, groups: str, option: str) -> None:
        """Refuses a capacity below that of `num_groups` groups, of which each has the slots of an option, if set."""
        each = getattr(self, option)
        if each is not None and num_groups * each > self._capacity:
            expected = f"{num_groups * each} or more for {num_groups} {groups} with {option}={each}"
            hint = f"{option}=None shares the capacity."
            raise InvalidValueError(option="capacity", expected=expected, found=self._capacity, hint=hint)

    def update_losses(self, slots: ArrayLike, losses: ArrayLike) -> None:
        """Updates the losses of replayed entries; called if `follows_losses` is set.

        Args:
            slots: int `[count]`: occupied slots.
            losses: `[count]`: the mean loss per item of each.
        """
        return

    @abstractmethod
    def remove(self, slot: int) -> None:
        """Removes the entry in a slot; the entry in the last occupied slot moves into it."""

    def state_dict(self) -> dict[str, Any]:
        """Returns the whole state of `choose`: JSON-safe values and numpy arrays, by name, not nested.

        It has the attributes that `remembered` names; a subclass may add to it. `load_state_dict` is called after
        `start`, on a selection of the same capacity and the same public attributes.
        """
        return {name.lstrip("_"): copy.copy(getattr(self, name)) for name in self._remembered_names()}


def checked_choice(selection: Selection, offers: Offers, size: int, capacity: int) -> Int64Array:
    """Lets a selection choose, and refuses slots that it must not return, as samples could not be read later.

    Args:
        selection: The selection.
        offers: The samples.
        size: Number of occupied slots.
        capacity: Number of slots.

    Returns:
        int64 `[count]`; see `Selection.choose`.

    Raises:
        TypeError: If it returns no whole numbers.
        ValueError: If they are no slots of the samples, or `size` is not what it must be then.
    """
    option, slots = f"selection={selection.name}: choose(...)", np.asarray(selection.choose(offers))
    if slots.ndim != 1 or (slots.dtype.kind not in "iu" and len(slots)):
        raise InvalidTypeError(option=option, expected="int64 [count], one slot per sample", found=slots)
    if len(slots) != offers.count:
        raise InvalidValueError(option=option, expected=f"of length {offers.count}, one slot per sample", found=slots)
    new = slots[slots >= size]
    new = new[np.sort(np.unique(new, return_index=True)[1])]
    in_order = np.array_equal(new, np.arange(size, size + len(new)))
    if slots.min(initial=-1) < -1 or slots.max(initial=-1) >= capacity or not in_order:
        expected = f"-1 or slots below capacity={capacity}, new ones in order from {size} on"
        raise InvalidValueError(option=option, expected=expected, found=slots.tolist())
    if selection.size != size + len(new):
        option, expected = f"selection={selection.name}: size", f"{size + len(new)} after choose, one more a new slot"
        raise InvalidValueError(option=option, expected=expected, found=selection.size)
    return slots.astype(np.int64)
