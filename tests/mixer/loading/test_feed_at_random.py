"""Mixtures with iterable streams as they come: what a rank does next depends on what all ranks know."""

import random
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from mixer import Stream
from tests.mixer.loaders import quick_and_full
from tests.mixer.loading.rows_on_ranks import Rows, places, rows_of, run_ranks


class _Case(NamedTuple):
    """Streams as (whether it is iterable, length, max_epochs)."""

    streams: tuple[tuple[bool, int, int | None], ...]
    world_size: int
    batch_size: int
    epoch_size: int = 60
    seed: int | None = None
    num_steps: int = 24

    def make_streams(self) -> list[Stream]:
        return [
            Stream(f"s{k}", (Rows if is_iterable else places)(length, k), max_epochs=max_epochs)
            for k, (is_iterable, length, max_epochs) in enumerate(self.streams)
        ]

    def weigh(self, step: int) -> list[float]:
        """Weights that change with every step, some of them to 0."""
        random_weights = np.random.default_rng([self.seed or 0, step])
        weights = random_weights.random(len(self.streams)) * (random_weights.random(len(self.streams)) < 0.8)
        return [float(weight) for weight in (weights if weights.any() else weights + 1)]


_REPORTED = [
    _Case(((False, 50, None), (True, 7, None)), 2, 9, epoch_size=50),
    _Case(((False, 1, None), (False, 2, None), (True, 7, None), (True, 23, None), (True, 50, None)), 2, 9, 33),
]


def _draw(seed: int) -> _Case:
    """Draws odd sizes; every rank has a row of each iterable stream, without which a pass cannot be shared out."""
    draw = random.Random(seed)
    world_size = draw.randint(2, 4)
    streams = [(True, draw.randint(world_size, 9), None)]
    for _ in range(draw.randint(0, 4)):
        is_iterable = draw.random() < 0.6
        length = draw.randint(world_size if is_iterable else 1, draw.choice([9, 60]))
        streams.append((is_iterable, length, draw.choice([None, None, 1, 2, 3])))
    batch_size = draw.randint(world_size, draw.choice([9, 17]))
    epoch_size = draw.randint(batch_size, 80)
    return _Case(tuple(streams), world_size, batch_size, epoch_size, draw.choice([None, seed]), draw.randint(10, 30))


@pytest.mark.parametrize(
    "case", quick_and_full([*_REPORTED, *map(_draw, range(3))], [(_draw(n),) for n in range(3, 16)])
)
def test_ranks_do_the_same_whatever_each_has_left_and_go_on_from_anywhere(case: _Case, tmp_path: Path) -> None:
    options = {"batch_size": case.batch_size, "epoch_size": case.epoch_size}
    options["weigh"] = None if case.seed is None else case.weigh
    whole = run_ranks(case.make_streams, case.world_size, case.num_steps, **options)
    assert len({str([batch.plan.counts.tolist() for batch in batches]) for _, batches in whole}) == 1
    assert len({str([len(batch.micro_batches) for batch in batches]) for _, batches in whole}) == 1
    mixing, num_steps = whole[0][0].mixing, len(whole[0][1])
    for k, (_, length, max_epochs) in enumerate(case.streams):
        given = [row for _, batches in whole for row in rows_of(batches, k)]
        assert len(given) == mixing.seen[k]
        if max_epochs is not None:
            assert len(given) + int(mixing.planner.undelivered[k]) <= length * max_epochs
            assert max(np.bincount(given), default=0) <= max_epochs
    until = num_steps * 2 // 3
    before = run_ranks(case.make_streams, case.world_size, until, save=tmp_path, **options)
    after = run_ranks(case.make_streams, case.world_size, num_steps - until, resume=tmp_path, **options)
    for k in range(len(case.streams)):
        for (_, first), (_, second), (_, all_of_them) in zip(before, after, whole, strict=True):
            assert rows_of(first, k) + rows_of(second, k) == rows_of(all_of_them, k)
