"""How many batches still follow the old weights after these were changed between two steps."""

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import Dataset, Sampler

from benchmarks.speed.competitors import Sample
from benchmarks.speed.loading import OURS, THEIRS, MixingSource, PreparedSource, Source


class _Marks(Dataset[Sample]):
    """Samples that show the mark that they have, or that was drawn for them.

    Args:
        mark: The mark of all of them; `None` if indices come with one.
    """

    def __init__(self, mark: int | None = None):
        self._mark = mark

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, drawn: Any) -> Sample:
        return {"mark": torch.tensor(drawn[1] if self._mark is None else self._mark)}


class _MarkingSampler(Sampler[tuple[int, int]]):
    """Does what an adaptive sampler would: it reads the newest decision when an index is drawn."""

    def __init__(self) -> None:
        self.mark = 0

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return ((index, self.mark) for index in itertools.count())


def staleness(num_workers: int, batch_size: int = 32) -> dict[str, int]:
    """Counts the batches that still follow the old weights after these were changed between two steps.

    Args:
        num_workers: Number of processes that load.
        batch_size: Samples of a batch.

    Returns:
        Number of batches by competitor; `plan`: the most that our plans said of themselves.
    """
    ours = MixingSource([_Marks(0), _Marks(1)], batch_size, num_workers, (1.0, 0.0))
    sampler = _MarkingSampler()
    theirs = PreparedSource([_Marks()], batch_size, num_workers, sampler)
    counted = {
        OURS: _count_old(ours, lambda: ours.mixing.set_weights([0.0, 1.0])),
        THEIRS: _count_old(theirs, lambda: setattr(sampler, "mark", 1)),
    }
    return {**counted, "plan": ours.staleness}


def _count_old(source: Source, change: Callable[[], None]) -> int:
    for _ in range(10):
        assert not source.next_batch()["mark"].any()
        time.sleep(0.02)  # a step, in which workers load as far ahead as they may
    change()
    count = 0
    while not source.next_batch()["mark"].all():
        count += 1
    source.stop()
    return count
