"""What `benchmarks.continual.replay` measures rates of: buffers with tasks behind them, and what they are offered."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mixer.utils.arrays import Int64Array
from replay import ReplayBuffer
from replay.retrieval import Retrieval
from replay.selection import Offers
from replay.storage import Row, Storage
from replay.storage.sources import addresses

STEP_SIZE = 32  # samples of a step
BLOCK = 8  # steps that are timed together
WARM = 2  # steps before them that are not
OFFERED = 2  # samples offered for each slot, in the steady state
_CHUNK = 16_384
_TABLE = 1_024
_LARGEST_RESTORED = 100_000


@dataclass(frozen=True)
class Setting:
    """A size of a buffer and its history.

    Args:
        capacity: Number of slots.
        num_tasks: Tasks that were offered one after the other, each a source and a class of its own.
        copy: Which of several that are equal.
    """

    capacity: int
    num_tasks: int
    copy: int = 0

    @property
    def label(self) -> str:
        """What it is called in tables and figures."""
        return f"{self.capacity:g} slots, {self.num_tasks} tasks" + (", again" if self.copy else "")


class Repeated:
    """A data set of any length of few samples of 1 KB: `input_ids`, int64 `[128]`.

    Args:
        length: Number of its samples.
    """

    ids = torch.arange(_TABLE * 128).reshape(_TABLE, 128)

    def __init__(self, length: int):
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_ids": self.ids[index % _TABLE]}

    def __getitems__(self, indices: list[int]) -> list[dict[str, Tensor]]:
        return [self[index] for index in indices]


@dataclass(frozen=True)
class StepBatch:
    """One call of `ReplayBuffer.offer`.

    Args:
        offers: What is known of the samples.
        where: Their addresses.
        make_rows: What is kept of them; `None` where nothing is.
    """

    offers: Offers
    where: Int64Array
    make_rows: Callable[[Int64Array], list[Row]] | None

    def offer_to(self, buffer: ReplayBuffer) -> None:
        """Offers them.

        Args:
            buffer: The buffer.
        """
        buffer.offer(self.offers, self.where.__getitem__, self.make_rows)


def _make_rows(numbers: Int64Array) -> list[Row]:
    return [Row({"input_ids": Repeated.ids[number % _TABLE]}) for number in numbers.tolist()]


class Subject:
    """A buffer that is offered random samples: losses even over [0, 1], scores over [-1, 1].

    Args:
        selection: Name of the selection.
        setting: Size and history.
        storage: Where contents lie.
        retrieval: What is drawn.
    """

    def __init__(
        self,
        selection: str,
        setting: Setting,
        storage: Storage | str = "references",
        retrieval: Retrieval | str = "Uniform",
    ):
        self._setting = setting
        self._choices = (selection, storage, retrieval)
        self._random = np.random.default_rng(setting.copy)
        self.buffer = self._new()
        self.first = 0
        self._state: dict[str, Any] | None = None
        length = OFFERED * setting.capacity
        for task in range(setting.num_tasks):
            self.buffer.sources.add(f"task{task}", Repeated(length))

    def _new(self) -> ReplayBuffer:
        return ReplayBuffer(self._setting.capacity, *self._choices, seed=self._setting.copy)

    def empty(self) -> None:
        """Begins with an empty buffer."""
        self.buffer, self.first = self._new(), 0

    def fill(self, num_offered: int) -> None:
        """Offers tasks one after the other, each the same number of samples.

        Args:
            num_offered: How many in all.
        """
        chunk = STEP_SIZE if self.buffer.storage.keeps_contents else _CHUNK  # contents of a chunk are in memory at once
        bounds = np.linspace(0, num_offered, self._setting.num_tasks + 1).round().astype(int).tolist()
        for task in range(self._setting.num_tasks):
            for start in range(bounds[task], bounds[task + 1], chunk):
                count = min(chunk, bounds[task + 1] - start)
                self.batch(count, np.full(count, task)).offer_to(self.buffer)

    def settle(self) -> None:
        """Fills the buffer to where the middle of a block has `OFFERED` samples a slot, and keeps that state."""
        self.fill(max(1, OFFERED * self._setting.capacity - (WARM + BLOCK // 2) * STEP_SIZE))
        self._state = self.buffer.selection.state_dict()
        self._settled_at = self.first

    def restore(self, key: int) -> None:
        """Puts the selection back, but for its random numbers, so that a block accepts as many samples as the last.

        A large buffer stays as it is: blocks hardly change its samples a slot.

        Args:
            key: New key of the random numbers.
        """
        if self._setting.capacity <= _LARGEST_RESTORED and self._state is not None:
            self.buffer.selection.start(self._setting.capacity, key)
            self.buffer.selection.load_state_dict(self._state)
            self.first = self._settled_at

    def batches(self, count: int) -> list[StepBatch]:
        """Makes the next steps: of the newest task; for a selection that goes by class alone, of all of them.

        Args:
            count: How many.

        Returns:
            The steps.
        """
        mixes = self.buffer.selection.needs == {"label"}
        least = 0 if mixes else self._setting.num_tasks - 1
        tasks = self._random.integers(least, self._setting.num_tasks, size=(count, STEP_SIZE))
        return [self.batch(STEP_SIZE, own) for own in tasks]

    def batch(self, count: int, tasks: Int64Array) -> StepBatch:
        """Makes a step.

        Args:
            count: Number of samples.
            tasks: int64 `[count]`: their tasks, which are their classes too.

        Returns:
            The step.
        """
        needs, random = self.buffer.selection.needs, self._random
        offers = Offers(
            count,
            self.first,
            tasks,
            tasks if "label" in needs else None,
            random.random(count) if "loss" in needs else None,
            random.uniform(-1.0, 1.0, count) if "gradient" in needs else None,
        )
        where = addresses(0, (self.first + np.arange(count)) % (OFFERED * self._setting.capacity))
        self.first += count
        return StepBatch(offers, where | tasks << 40, _make_rows if self.buffer.storage.keeps_contents else None)
