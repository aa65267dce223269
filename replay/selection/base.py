"""What every selection is: a rule which of the samples that were trained on a buffer keeps, and in which slot."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mixer.policies.shared.ranges import check_count
from mixer.utils.arrays import FloatArray, Int64Array

Values = TypeVar("Values")


@dataclass(frozen=True)
class Offers:
    """Samples that are offered to a buffer, in the order in which they were trained on; the same on every rank.

    Args:
        count: How many.
        first: Number of samples that were offered before them, over the whole life of the buffer.
        tasks: int64 `[count]`: the task (source) of each; `None` unless the selection needs `"task"`.
        labels: int64 `[count]`: the class of each; `None` unless it needs `"label"`.
        losses: `[count]`: mean loss per item of each; `None` unless it needs `"loss"`.
        scores: `[count]`: the largest cosine of its gradient with those of entries drawn at random, in [-1, 1];
            `None` unless the selection needs `"gradient"`.
        features: float32 or float64 `[count, num_features]`; `None` unless the selection needs `"features"`.
    """

    count: int
    first: int
    tasks: Int64Array | None = None
    labels: Int64Array | None = None
    losses: FloatArray | None = None
    scores: FloatArray | None = None
    features: NDArray[Any] | None = None

    def part(self, numbers: NDArray[Any]) -> "Offers":
        """Gives some of the samples.

        Args:
            numbers: Which: int `[num_taken]`, or bool `[count]`.

        Returns:
            Offers of those alone.
        """
        columns = {name: getattr(self, name) for name in ("tasks", "labels", "losses", "scores", "features")}
        taken = {name: None if column is None else column[numbers] for name, column in columns.items()}
        return Offers(len(np.arange(self.count)[numbers]), self.first, **taken)

    @property
    def numbers(self) -> Int64Array:
        """int64 `[count]`: the number of each sample among all that were ever offered, from 0."""
        return np.arange(self.first, self.first + self.count, dtype=np.int64)


def known(values: Values | None, name: str) -> Values:
    """Gives what a selection needs to know of the samples.

    Args:
        values: What the offers have.
        name: Name of that field of `Offers`.

    Returns:
        The values.

    Raises:
        ValueError: If there are none.
    """
    if values is None:
        raise ValueError(f"Offers.{name} must be given, since the selection needs it, got None; see Selection.needs.")
    return values


class Selection(ABC):
    """A rule which samples a buffer keeps.

    A buffer has `capacity` slots, of which 0 to `size - 1` are taken. A selection remembers what it needs of each taken
    slot itself. It knows no samples, model or global random state: whatever it draws at random is a function of `key`
    and of numbers that it saves. Its cost per offered sample does not grow with the capacity (but for a logarithm), nor
    with the number of tasks.

    A subclass says in `needs` what has to be known of the samples: of `"task"`, `"label"`, `"loss"`, `"gradient"` and
    `"features"`. One that chooses among all samples of a task at once, at the task's end, says so by `is_by_task`.
    One that wants to know the losses of entries when they are replayed says so by `follows_losses`.
    In `options` it names the entries of its state that have to be equal where the state is taken up.
    """

    needs: frozenset[str] = frozenset()
    is_by_task: bool = False
    follows_losses: bool = False
    options: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What the selection is called in checkpoints."""
        return type(self).__name__

    def start(self, capacity: int, key: int) -> None:
        """Begins with an empty buffer.

        Args:
            capacity: Number of slots, at most 2**31 - 1.
            key: Random key, a signed 64-bit integer.

        Raises:
            ValueError: If the capacity is none, or the selection needs a larger one.
        """
        check_count("capacity", capacity, 1, "it is the number of samples that the buffer holds")
        self._capacity, self._key = capacity, key

    @property
    @abstractmethod
    def size(self) -> int:
        """Number of slots that are taken."""

    @abstractmethod
    def choose(self, offers: Offers) -> Int64Array:
        """Decides on samples one after the other, each knowing what became of those before it.

        Args:
            offers: The samples.

        Returns:
            int64 `[count]`: the slot that each takes, or -1 for one that is not kept. New slots are taken in order,
            `size`, `size + 1` and so on; a slot that occurs more than once ends with the last sample that takes it.

        Raises:
            ValueError: If the capacity is too small for what is offered.
        """

    def update_losses(self, slots: ArrayLike, losses: ArrayLike) -> None:
        """Is told the losses of entries that were replayed, if it `follows_losses`.

        Args:
            slots: int `[count]`: taken slots.
            losses: `[count]`: the mean loss per item of each.
        """
        return

    @abstractmethod
    def remove(self, slot: int) -> None:
        """Forgets an entry: what stood in the last taken slot stands in this one afterwards.

        Args:
            slot: A taken slot.
        """

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Gives everything that `choose` remembers: JSON-safe values and numpy arrays, by name, not nested.

        `"capacity"` and what `options` names are among them.
        """

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes up a saved state, after `start`.

        Args:
            state: What `state_dict` gave.

        Raises:
            ValueError: If it is of a selection that remembers other things, or of another capacity or options.
        """
        own = self.state_dict()
        if sorted(state) != sorted(own):
            raise ValueError(f"{self.name} remembers {sorted(own)}, but the saved state has {sorted(state)}.")
        for option in ("capacity", *self.options):
            if state[option] != own[option]:
                raise ValueError(
                    f"{self.name} has {option} {own[option]!r}, but the saved state is of one with {state[option]!r}; "
                    "build the buffer as it was when it was saved."
                )
