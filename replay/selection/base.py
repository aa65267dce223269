"""What every selection is: a rule which of the samples that were trained on a buffer keeps, and in which slot."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
Int64Array = NDArray[np.int64]


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


class Selection(ABC):
    """A rule which samples a buffer keeps.

    A buffer has `capacity` slots, of which 0 to `size - 1` are taken. A selection remembers what it needs of each taken
    slot itself. It knows no samples, model or global random state: whatever it draws at random is a function of `key`
    and of numbers that it saves. Its cost per offered sample does not grow with the capacity (but for a logarithm), nor
    with the number of tasks.

    A subclass says in `needs` what has to be known of the samples: of `"task"`, `"label"`, `"loss"`, `"gradient"` and
    `"features"`. One that chooses among all samples of a task at once, at the task's end, says so by `is_by_task`.
    """

    needs: frozenset[str] = frozenset()
    is_by_task: bool = False

    @property
    def name(self) -> str:
        """What the selection is called in checkpoints."""
        return type(self).__name__

    @abstractmethod
    def start(self, capacity: int, key: int) -> None:
        """Begins with an empty buffer.

        Args:
            capacity: Number of slots.
            key: Random key, a signed 64-bit integer.

        Raises:
            ValueError: If the selection needs a larger capacity.
        """

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

    @abstractmethod
    def remove(self, slot: int) -> None:
        """Forgets an entry: what stood in the last taken slot stands in this one afterwards.

        Args:
            slot: A taken slot.
        """

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Gives everything that `choose` remembers: JSON-safe values and numpy arrays, by name, not nested."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes up a saved state, after `start`.

        Args:
            state: What `state_dict` gave.

        Raises:
            ValueError: If it is of a selection that remembers other things, or of another capacity or options.
        """
