"""Iterable streams in a mixture, on ranks that are threads here."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from torch.utils.data import IterableDataset

from mixer import Fixed, Stream, Uniform
from mixer.budget import Budget
from mixer.checkpoint import write_json
from mixer.clock import Clock
from mixer.controller import Mixing
from mixer.cutting import MicroBatchOptions
from mixer.feed import Feed
from mixer.loader import MixingLoader, Update
from mixer.planner import Planner
from mixer.reader import SampleError
from mixer.rows import RowSource


class _Rows(IterableDataset[dict[str, int]]):
    def __init__(self, length: int, stream: int = 0, fails_at: int = -1):
        self.length, self.stream, self.fails_at = length, stream, fails_at

    def __iter__(self) -> Iterator[dict[str, int]]:
        for number in range(self.length):
            if number == self.fails_at:
                raise OSError("gone")
            yield {"stream": self.stream, "row": number}


def _shards(sizes: list[int]) -> datasets.IterableDataset:
    """A streamed data set of one shard a size: with as many ranks each has one."""

    def rows(shards: list[tuple[int, int]]) -> Iterator[dict[str, int]]:
        for shard, size in shards:
            for number in range(size):
                yield {"stream": 0, "row": 1000 * shard + number}

    return datasets.IterableDataset.from_generator(rows, gen_kwargs={"shards": list(enumerate(sizes))})


class _Places:
    def __init__(self, length: int, stream: int):
        self.length, self.stream = length, stream

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, int]:
        return {"stream": self.stream, "row": index}


class _Meeting:
    """Brings threads together that stand for ranks."""

    def __init__(self, world_size: int):
        self._barrier = threading.Barrier(world_size, timeout=20)
        self._numbers: dict[int, np.ndarray] = {}

    def _gather(self, numbers: np.ndarray) -> np.ndarray:
        self._numbers[threading.get_ident()] = numbers
        self._barrier.wait()
        together = np.stack(list(self._numbers.values()))
        self._barrier.wait()
        return together

    def least(self, numbers: np.ndarray) -> np.ndarray:
        return self._gather(numbers).min(axis=0)

    def total(self, numbers: np.ndarray) -> np.ndarray:
        return self._gather(numbers).sum(axis=0)


def _collate(samples: list[dict[str, int]]) -> dict[str, Any]:
    return {name: np.array([sample[name] for sample in samples]) for name in samples[0]}


def _loader(
    streams: list[Stream], rank: int, world_size: int, meeting: _Meeting, policy: Any = None, batch_size: int = 6
) -> MixingLoader:
    clock = Clock(batch_size, epoch_size=60, budget=Budget(epochs=50))
    mixing = Mixing(Planner(streams, seed=1), policy or Uniform(), clock)
    sources = {
        number: RowSource(stream.name, stream.dataset, number, rank, world_size)
        for number, stream in enumerate(streams)
        if stream.is_iterable
    }
    feed = Feed(sources, mixing, meeting, world_size)
    parts = [stream.dataset for stream in streams]
    return MixingLoader(mixing, parts, _collate, rank, world_size, MicroBatchOptions(3), feed=feed)


def _run(
    make_streams: Callable[[], list[Stream]], world_size: int, num_steps: int, **options: Any
) -> list[tuple[MixingLoader, list[Update]]]:
    """Trains on all ranks at once; an error of any of them is raised."""
    meeting, results = _Meeting(world_size), {}

    def train(rank: int) -> None:
        loader = _loader(make_streams(), rank, world_size, meeting, **options)
        updates: list[Update] = []
        results[rank] = (loader, updates)
        try:
            while len(updates) < num_steps and not loader.mixing.is_exhausted:
                update = loader.next_update()
                if update is None:
                    break
                updates.append(update)
                num_streams = len(loader.mixing.names)
                loader.mixing.observe(update.plan, np.full(num_streams, np.nan), np.zeros(num_streams, dtype=np.int64))
        except Exception as error:
            results[rank] = error

    threads = [threading.Thread(target=train, args=(rank,)) for rank in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    for result in results.values():
        if isinstance(result, Exception):
            raise result
    return [results[rank] for rank in range(world_size)]


def _rows(updates: list[Update], stream: int = 0) -> list[int]:
    return [
        int(row)
        for update in updates
        for micro in update.micro_batches
        if not micro.is_padding
        for number, row in zip(micro.inputs["stream"], micro.inputs["row"], strict=True)
        if number == stream
    ]


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_one_pass_gives_each_row_once(world_size: int) -> None:
    ranks = _run(lambda: [Stream("rows", _Rows(30), max_epochs=1)], world_size, 100)
    together = sorted(row for _, updates in ranks for row in _rows(updates))
    assert together == list(range(30))
    for loader, updates in ranks:
        assert len(updates) == 5
        assert loader.mixing.is_exhausted
        assert loader.mixing.seen.tolist() == [30]


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_passes_follow_each_other(world_size: int) -> None:
    ranks = _run(lambda: [Stream("rows", _Rows(12))], world_size, 9)
    together = np.bincount([row for _, updates in ranks for row in _rows(updates)], minlength=12)
    assert together.sum() == 54
    assert together.max() - together.min() <= 1
    assert ranks[0][0].mixing.unique.tolist() == [12]


def test_a_shard_that_ends_first_ends_the_stream_for_all_at_the_same_step() -> None:
    ranks = _run(lambda: [Stream("rows", _shards([9, 40]), max_epochs=1), Stream("map", _Places(50, 1))], 2, 40)
    counts = [[update.plan.counts.tolist() for update in updates] for _, updates in ranks]
    assert counts[0] == counts[1]
    given = [_rows(updates) for _, updates in ranks]
    assert given[0] == list(range(9))
    assert given[1] == list(range(1000, 1000 + len(given[1])))
    assert abs(len(given[0]) - len(given[1])) <= 1
    undelivered = ranks[0][0].mixing.planner.undelivered.tolist()
    assert undelivered == [49 - len(given[0]) - len(given[1]), 0]
    assert all(total == [0, 6] for total in counts[0][-5:])  # the others have taken over


def test_a_row_that_cannot_be_read_leaves_no_rank_waiting() -> None:
    meeting, errors = _Meeting(2), {}

    def train(rank: int) -> None:
        streams = [Stream("rows", _Rows(30, fails_at=13), max_epochs=1)]
        loader = _loader(streams, rank, 2, meeting)
        try:
            for _ in range(5):
                update = loader.next_update()
                assert update is not None
                loader.mixing.observe(update.plan, np.full(1, np.nan), np.zeros(1, dtype=np.int64))
        except SampleError as error:
            errors[rank] = str(error)
            meeting._barrier.abort()
        except threading.BrokenBarrierError:
            errors[rank] = "went on until the ranks would confirm the update"

    threads = [threading.Thread(target=train, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert any("'rows'" in error and "OSError: gone" in error for error in errors.values())


def test_fewer_rows_than_ranks_is_an_error_and_no_endless_search() -> None:
    with pytest.raises(
        ValueError, match=r"whole pass over the iterable streams \['rows'\] gave at least one of 3 ranks"
    ):
        _run(lambda: [Stream("rows", _Rows(2)), Stream("map", _Places(50, 1))], 3, 20)


def test_a_stream_of_weight_0_gives_nothing_and_loses_nothing() -> None:
    ranks = _run(lambda: [Stream("rows", _Rows(9)), Stream("map", _Places(50, 1))], 1, 5, policy=Fixed([0.0, 1.0]))
    assert _rows(ranks[0][1]) == []


def test_loading_an_update_again_gives_the_same_rows() -> None:
    loader = _loader([Stream("rows", _Rows(30))], 0, 1, _Meeting(1))
    update = loader.next_update()
    assert update is not None
    assert _rows([loader.load(update.plan)]) == _rows([update]) == list(range(6))


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("length", [4, 7, 10])
def test_the_end_of_a_pass_costs_a_stream_nothing_of_its_share(length: int, world_size: int) -> None:
    ranks = _run(lambda: [Stream("rows", _Rows(length)), Stream("map", _Places(1000, 1))], world_size, 20)
    assert all(update.plan.counts.tolist() == [3, 3] for _, updates in ranks for update in updates)
    times = np.bincount([row for _, updates in ranks for row in _rows(updates)], minlength=length)
    assert times.sum() == 60
    assert times.max() - times.min() <= 1 + int(ranks[0][0].mixing.planner.undelivered[0])


def test_a_pass_may_be_shorter_than_an_update() -> None:
    ((_, updates),) = _run(lambda: [Stream("rows", _Rows(5))], 1, 4, batch_size=12)
    assert _rows(updates) == [number % 5 for number in range(48)]


def test_a_look_ahead_goes_beyond_the_end_of_a_pass() -> None:
    ((loader, _),) = _run(lambda: [Stream("rows", _Rows(8)), Stream("map", _Places(50, 1))], 1, 2)
    loader.mixing.next_plan()
    ahead = [plan.counts.tolist() for _, plan in zip(range(5), loader.mixing.forecast(), strict=False)]
    assert ahead == [[3, 3]] * 5


def test_coverage_of_rows_is_no_share() -> None:
    ((loader, _),) = _run(lambda: [Stream("rows", _Rows(30)), Stream("map", _Places(12, 1))], 1, 3)
    coverage = loader.mixing.coverage
    assert np.isnan(coverage["rows"])
    assert coverage["map"] == pytest.approx(9 / 12)


@pytest.mark.parametrize("dataset", [lambda: _Rows(25), lambda: _shards([12, 13])], ids=["torch", "datasets"])
@pytest.mark.parametrize("num_steps", [2, 5, 7])
def test_the_feed_goes_on_where_it_was(dataset: Any, num_steps: int, tmp_path: Path) -> None:
    def streams() -> list[Stream]:
        return [Stream("rows", dataset()), Stream("map", _Places(50, 1))]

    ((_, whole),) = _run(streams, 1, 16)
    ((first, before),) = _run(streams, 1, num_steps)
    first._feed.save(tmp_path, 0)
    second = _loader(streams(), 0, 1, _Meeting(1))
    second.mixing.load_state_dict(first.mixing.state_dict())
    second._feed.load(tmp_path, 0)
    after = []
    for _ in range(16 - num_steps):
        update = second.next_update()
        assert update is not None
        after.append(update)
        second.mixing.observe(update.plan, np.full(2, np.nan), np.zeros(2, dtype=np.int64))
    assert [_rows(before + after, stream) for stream in (0, 1)] == [_rows(whole, stream) for stream in (0, 1)]


def test_a_torn_or_missing_file_of_rows_is_named(tmp_path: Path) -> None:
    loader = _loader([Stream("rows", _Rows(30))], 0, 1, _Meeting(1))
    with pytest.raises(ValueError, match=r"does not say where stream 'rows' was: a file rows-RANK\.json is missing"):
        loader._feed.load(tmp_path, 0)
    (tmp_path / "rows-0.json").write_text("{torn")
    with pytest.raises(ValueError, match=r"rows-0\.json is torn"):
        loader._feed.load(tmp_path, 0)


def test_another_number_of_ranks_is_refused_unless_told_otherwise(tmp_path: Path) -> None:
    one = _loader([Stream("rows", _Rows(30))], 0, 1, _Meeting(1))
    one.next_update()
    one._feed.save(tmp_path, 0)
    two = _loader([Stream("rows", _Rows(30))], 0, 2, _Meeting(1))
    with pytest.raises(ValueError, match=r"'rows'.*allow_inexact=True"):
        two._feed.load(tmp_path, 0)
    two._feed.load(tmp_path, 0, allow_inexact=True)


class TestDamagedRows:
    def _saved(self, folder: Path) -> None:
        ((loader, _),) = _run(lambda: [Stream("rows", _Rows(30))], 1, 2)
        loader._feed.save(folder, 0)

    def _load(self, folder: Path) -> None:
        _loader([Stream("rows", _Rows(30))], 0, 1, _Meeting(1))._feed.load(folder, 0)

    @pytest.mark.parametrize("name", ["rows-x.json", "rows-.json", "rows-1-2.json", "rows-9999999999.json"])
    def test_files_of_other_names_are_left_alone(self, name: str, tmp_path: Path) -> None:
        self._saved(tmp_path)
        (tmp_path / name).write_text("{}")
        self._load(tmp_path)

    @pytest.mark.parametrize("value", [3, None, [], {}, {"lanes": 3}])
    def test_what_is_no_place_in_rows_is_refused_with_its_stream(self, value: Any, tmp_path: Path) -> None:
        self._saved(tmp_path)
        write_json(tmp_path / "rows-0.json", {"rows": value})
        with pytest.raises(ValueError, match=r"where stream 'rows' was, in a file rows-RANK\.json of .* is damaged"):
            self._load(tmp_path)
