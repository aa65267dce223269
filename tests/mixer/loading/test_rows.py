import json
import os
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from datasets import Dataset, load_dataset
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import IterableDataset, get_worker_info

from mixer.loading.iterable.shards import _GIVES_BUFFER_OF_ONE
from mixer.loading.iterable.source import RowSource
from mixer.loading.reader import SampleError
from mixer.loading.workers import WorkerOptions
from mixer.utils.random_state import RandomState
from tests.mixer.loaders import children

datasets.disable_progress_bars()
NUM_ROWS = 41
MADE: list[RowSource] = []


@pytest.fixture(autouse=True)
def sources_stop(no_workers_stay: None) -> Iterator[None]:
    yield
    while MADE:
        MADE.pop().stop()


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    warn = "mixer.loading.iterable.source.logger.warning"
    monkeypatch.setattr(warn, lambda text, *values: found.append(text % values))
    return found


def shard_rows(shards: list[int], num_rows: int = NUM_ROWS) -> Iterator[dict[str, int]]:
    for shard in shards:
        first, after = (num_rows * number // 6 for number in (shard, shard + 1))
        yield from ({"x": number} for number in range(first, after))


def add_noise(row: dict[str, Any]) -> dict[str, Any]:
    return {"noise": [random.random(), float(np.random.rand()), float(torch.rand(()))]}  # noqa: NPY002


def add_noise_to_all(rows: dict[str, list[Any]]) -> dict[str, Any]:
    return {"noise": [random.random() for _ in rows["x"]]}


def is_not_third(row: dict[str, Any]) -> bool:
    return bool(row["x"] % 3 != 2)


class Plain:
    """Has only `__iter__`."""

    def __init__(self, num_rows: int = NUM_ROWS, row: Callable[[int], Any] | None = None):
        self.num_rows, self.row = num_rows, row

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for number in range(self.num_rows):
            yield {"x": number, "noise": random.random()} if self.row is None else self.row(number)


def failing(number: int) -> dict[str, Any]:
    if number == 13:
        raise KeyError("thirteen")
    return {"x": number}


class Shuffled(IterableDataset[Any]):
    """Draws its order anew for each pass."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        order = list(range(NUM_ROWS))
        random.shuffle(order)
        for number in order:
            yield {"x": number, "noise": torch.rand(2)}


class Aware(IterableDataset[Any]):
    """Shares its rows out among the workers of a loader by itself."""

    def __iter__(self) -> Iterator[dict[str, int]]:
        info = get_worker_info()
        step, first = (info.num_workers, info.id) if info is not None else (1, 0)
        yield from ({"x": number} for number in range(first, NUM_ROWS, step))


class Stateful(IterableDataset[Any]):
    """Can go on from where it was; its epoch shifts the rows."""

    def __init__(self) -> None:
        self.next, self.epoch, self.num_read = 0, 0, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[dict[str, Any]]:
        while self.next < NUM_ROWS:
            self.next += 1
            self.num_read += 1
            yield {"x": (self.next - 1 + self.epoch) % NUM_ROWS, "noise": random.random()}
        self.next = 0

    def state_dict(self) -> dict[str, Any]:
        return {"next": self.next, "epoch": self.epoch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.next, self.epoch = state["next"], state["epoch"]


class Odd(Stateful):
    """Its state is no JSON."""

    def state_dict(self) -> dict[str, Any]:
        return {"next": {1, 2}}


def hugging_face(num_shards: int = 6) -> Any:
    return datasets.IterableDataset.from_generator(shard_rows, gen_kwargs={"shards": list(range(num_shards))})


def from_map_style(num_shards: int = 3) -> Any:
    return Dataset.from_dict({"x": list(range(NUM_ROWS))}).to_iterable_dataset(num_shards=num_shards)


EXACT: dict[str, Callable[[], Any]] = {
    "generator": hugging_face,
    "noisy map": lambda: hugging_face().map(add_noise),
    "noisy map of batches": lambda: hugging_face().map(add_noise_to_all, batched=True, batch_size=4),
    "map of batches": lambda: hugging_face().map(dict, batched=True, batch_size=4).filter(is_not_third),
    "arrow": from_map_style,
    "arrow tensors": lambda: from_map_style().with_format("torch").map(add_noise),
    "arrow tables": lambda: from_map_style().with_format("arrow").map(lambda rows: rows, batched=True, batch_size=4),
    "shuffled shards": lambda: hugging_face().shuffle(seed=3, buffer_size=1),
    "interleaved": lambda: datasets.interleave_datasets(
        [hugging_face(3), from_map_style()], [0.4, 0.6], seed=1, stopping_strategy="all_exhausted"
    ),
    "noisy shuffled shards": lambda: hugging_face().map(add_noise).shuffle(seed=3, buffer_size=1),
    "noisy interleaved": lambda: datasets.interleave_datasets([hugging_face(3).map(add_noise), hugging_face(4)]),
    "alternating": lambda: datasets.interleave_datasets([hugging_face(3), from_map_style()]),
    "concatenated": lambda: datasets.concatenate_datasets([hugging_face(3), from_map_style()]),
    "skip and take": lambda: hugging_face().skip(3).take(30),
    "repeated": lambda: hugging_face().repeat(2),
    "stateful": Stateful,
    "plain": Plain,
    "list": lambda: list(range(NUM_ROWS)),
    "shuffled": Shuffled,
    "empty": list,
}
if not _GIVES_BUFFER_OF_ONE:  # such a buffer is refused like any other
    EXACT = {name: make_dataset for name, make_dataset in EXACT.items() if "shuffled shards" not in name}


def make(dataset: Any, rank: int = 0, world_size: int = 1, num_workers: int = 0, **options: Any) -> RowSource:
    workers = WorkerOptions(num_workers)
    MADE.append(RowSource("x", dataset, 7, rank, world_size, workers, **{"chunk_size": 3, **options}))
    return MADE[-1]


def make_ranks(name: str, world_size: int, num_workers: int = 0) -> list[RowSource]:
    return [make(EXACT[name](), rank, world_size, num_workers) for rank in range(world_size)]


def take(source: RowSource, num_rows: int) -> list[Any]:
    """Takes so many rows, or those that are left."""
    source.fill(num_rows)
    left = source.remaining
    return source.take(num_rows if left is None else min(num_rows, left))


def rest(source: RowSource) -> list[Any]:
    rows = []
    while part := take(source, 5):
        rows += part
    assert source.remaining == 0
    return rows


def comparable(rows: list[Any]) -> str:
    def plain(value: Any) -> Any:
        return value.to_pylist() if hasattr(value, "to_pylist") else value.tolist()

    return json.dumps(rows, default=plain, sort_keys=True)


def numbers(rows: list[Any]) -> list[int]:
    return [int(row["x"]) for row in rows]


def saved(*sources: RowSource) -> list[Any]:
    return [json.loads(json.dumps(source.state_dict())) for source in sources]


def passes(source: RowSource, num_passes: int) -> list[list[Any]]:
    found = []
    for number in range(num_passes):
        assert source.pass_number == number
        found.append(rest(source))
        assert source.num_taken == len(found[-1])
        assert source.end_pass() == 0
    return found


def assert_each_once(sources: list[RowSource], num_passes: int = 1, num_rows: int = NUM_ROWS) -> None:
    """In each pass the ranks together have each row once."""
    for parts in zip(*[passes(source, num_passes) for source in sources], strict=True):
        assert sorted(numbers([row for part in parts for row in part])) == list(range(num_rows))


class TestEachRowGoesToOneRankOnce:
    @pytest.mark.parametrize("name", ["generator", "arrow", "arrow tensors", "stateful", "plain", "shuffled"])
    @pytest.mark.parametrize(
        ("world_size", "num_workers"), [(1, 0), (3, 0), pytest.param(2, 2, marks=pytest.mark.full)]
    )
    def test_with_and_without_workers(self, name: str, world_size: int, num_workers: int) -> None:
        assert_each_once(make_ranks(name, world_size, num_workers), 2)

    @pytest.mark.parametrize(("world_size", "num_workers"), [(1, 2), (2, 0)])
    def test_a_data_set_that_shares_out_by_workers_itself(self, world_size: int, num_workers: int) -> None:
        assert_each_once([make(Aware(), rank, world_size, num_workers) for rank in range(world_size)])

    @pytest.mark.parametrize(
        ("kind", "world_size", "num_workers"), [("json", 2, 0), ("parquet", 1, 1), ("parquet", 3, 0)]
    )
    def test_streamed_files(self, kind: str, world_size: int, num_workers: int, tmp_path: Path) -> None:
        for shard in range(4):
            part = Dataset.from_dict({"x": list(range(NUM_ROWS))[shard::4]})
            path = str(tmp_path / f"{shard}.{kind}")
            part.to_json(path) if kind == "json" else part.to_parquet(path, batch_size=3)
        streamed = load_dataset(kind, data_files=str(tmp_path / "*"), streaming=True, split="train")
        assert_each_once([make(streamed, rank, world_size, num_workers) for rank in range(world_size)])
        source, resumed = make(streamed), make(streamed)
        take(source, 7)
        resumed.load_state_dict(saved(source))
        assert numbers(rest(resumed)) == numbers(rest(source))

    @pytest.mark.parametrize("num_shards", [5, 6])
    def test_a_data_set_that_is_split_by_ranks_already(self, num_shards: int) -> None:
        split = datasets.distributed.split_dataset_by_node
        assert_each_once([make(split(from_map_style(num_shards), rank, 2), rank, 2) for rank in range(2)])

    @pytest.mark.parametrize("num_rows", [0, 1, 3])
    def test_more_shards_than_rows(self, num_rows: int) -> None:
        assert_each_once([make(Plain(num_rows), rank, 4) for rank in range(4)], 2, num_rows)


class TestOrder:
    @pytest.mark.parametrize(
        ("name", "num_workers"),
        [*[(name, 0) for name in ("noisy map", "plain", "stateful", "shuffled")], ("noisy map", 2)],
    )
    def test_is_the_same_in_every_repetition_however_rows_are_taken(self, name: str, num_workers: int) -> None:
        found = []
        for size in (1, 7):
            source, rows = make(EXACT[name](), num_workers=num_workers), []
            while part := take(source, size):
                random.seed(len(rows))
                rows += part
            found.append(comparable(rows))
        assert found[0] == found[1]

    def test_is_that_of_one_worker_without_any_and_leaves_the_surrounding_random_state(self) -> None:
        state = RandomState.capture()
        found = [passes(make(EXACT["noisy map"](), num_workers=number), 2) for number in (0, 1)]
        assert comparable(found[0]) == comparable(found[1])
        assert state.is_current()
        drawn = {row["noise"][0] for part in found[0] for row in part}
        assert len(drawn) == 2 * NUM_ROWS  # random numbers differ between rows and passes

    def test_goes_round_the_shards_by_chunks_and_leaves_out_those_that_ended(self) -> None:
        found = numbers(rest(make(Plain(20), num_workers=2)))
        assert found == [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11, 12, 14, 16, 13, 15, 17, 18, 19]


def check_resuming(name: str, world_size: int, num_workers: int, sizes: list[int], num_passes: int = 0) -> None:
    """What is left of the pass, and the next pass, are the same for fresh sources."""
    sources = make_ranks(name, world_size, num_workers)
    for source in sources:
        for _ in range(num_passes):
            take(source, 4)
            source.end_pass()
        for size in sizes:
            take(source, size)
    states, resumed = saved(*sources), make_ranks(name, world_size, num_workers)
    for old, new in zip(sources, resumed, strict=True):
        new.load_state_dict(states)
        assert saved(new) == saved(old)
        for _ in range(2):
            assert (new.pass_number, new.num_taken) == (old.pass_number, old.num_taken)
            assert comparable(rest(new)) == comparable(rest(old))
            assert new.end_pass() == old.end_pass() == 0


class TestResuming:
    @settings(max_examples=2, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(
        sizes=st.lists(st.integers(1, 9), min_size=1, max_size=5),
        world_size=st.integers(1, 3),
        num_passes=st.integers(0, 2),
    )
    @pytest.mark.parametrize("name", EXACT)
    def test_gives_the_very_next_rows(self, name: str, sizes: list[int], world_size: int, num_passes: int) -> None:
        check_resuming(name, world_size, 0, sizes, num_passes)

    @pytest.mark.parametrize(
        ("name", "num_workers", "sizes", "num_passes"),
        [
            ("noisy map", 2, [3, 1, 9], 1),
            *[pytest.param(name, 2, [22, 1], 1, marks=pytest.mark.full) for name in ("stateful", "arrow tensors")],
        ],
    )
    def test_with_workers(self, name: str, num_workers: int, sizes: list[int], num_passes: int) -> None:
        check_resuming(name, 1, num_workers, sizes, num_passes)

    def test_a_data_set_with_a_state_is_not_read_again(self) -> None:
        old, dataset = make(Stateful()), Stateful()
        take(old, 31)
        new = make(dataset)
        new.load_state_dict(saved(old))
        assert numbers(rest(new)) == list(range(31, NUM_ROWS))
        assert dataset.num_read == NUM_ROWS - 30

    def test_another_data_set_is_read_again_and_says_so_before(self, warnings: list[str]) -> None:
        old, new = make(Plain()), make(Plain())
        take(old, 31)
        new.load_state_dict(saved(old))
        assert not warnings
        new.fill(1)
        (said,) = warnings
        assert "'x'" in said
        assert " 31 rows" in said

    def test_a_state_that_is_no_json_is_done_without(self, warnings: list[str]) -> None:
        old, new = make(Odd()), make(Odd())
        take(old, 31)
        (said,) = warnings
        assert "TypeError" in said
        new.load_state_dict(saved(old))
        assert comparable(rest(new)) == comparable(rest(old))

    @pytest.mark.parametrize(("name", "num_workers"), [("noisy map", 0), ("plain", 0), ("plain", 1)])
    def test_stopping_loses_and_repeats_no_row(self, name: str, num_workers: int) -> None:
        source, whole, rows = *(make(EXACT[name](), num_workers=num_workers) for _ in range(2)), []
        for size in (4, 9):
            rows += take(source, size)
            source.fill(size + 3)
            source.stop()
        assert comparable(rows + rest(source)) == comparable(rest(whole))


class TestRefusals:
    @pytest.mark.parametrize(
        ("old", "new", "words"),
        [
            ([(0, 2, 0), (1, 2, 0)], (0, 1, 0), "2 ranks with 1 .* over 1 with 1"),
            ([(0, 1, 0)], (0, 1, 2), "1 ranks with 1 .* over 1 with 2"),
        ],
    )
    def test_another_sharing_out(self, old: Any, new: Any, words: str, warnings: list[str]) -> None:
        sources = [make(hugging_face(), *args) for args in old]
        for source in sources:
            take(source, 10)
            source.end_pass()
            take(source, 12 // len(old))
        fresh = make(hugging_face(), *new)
        with pytest.raises(ValueError, match=f"'x'.*{words}"):
            fresh.load_state_dict(saved(*sources))
        fresh.load_state_dict(saved(*sources), allow_inexact=True)
        num_shards = new[1] * max(1, new[2])
        assert (fresh.pass_number, fresh.num_taken) == (1, 12 // num_shards * max(1, new[2]))
        assert any(f" {12 // num_shards} rows" in warning for warning in warnings)
        whole = make(hugging_face(), *new)
        whole.end_pass()
        expected = numbers(rest(whole))
        assert set(numbers(rest(fresh))) < set(expected)
        assert fresh.num_taken == len(expected)

    def test_a_shuffle_buffer(self, warnings: list[str]) -> None:
        old, new = (make(hugging_face().map(add_noise).shuffle(seed=3, buffer_size=10)) for _ in range(2))
        new.load_state_dict(saved(old))  # nothing was taken yet
        take(old, 12)
        with pytest.raises(ValueError, match="'x': the shuffle buffer"):
            new.load_state_dict(saved(old))
        new.load_state_dict(saved(old), allow_inexact=True)
        assert any("buffer" in warning for warning in warnings)
        assert 0 < len(rest(new)) < NUM_ROWS
        assert new.end_pass() == 0
        old.end_pass()
        assert comparable(rest(new)) == comparable(rest(old))  # the next pass is whole again


class TestPasses:
    @pytest.mark.parametrize(("name", "num_workers"), [("generator", 0), ("stateful", 0), ("plain", 2)])
    def test_what_was_not_delivered_is_counted_and_the_next_pass_is_whole(self, name: str, num_workers: int) -> None:
        source = make(EXACT[name](), num_workers=num_workers)
        take(source, 6)
        source.fill(4)
        before = children()
        assert source.end_pass() == NUM_ROWS - 6
        take(source, 2)
        assert before == children()  # workers live on into the next pass
        assert 5 <= source.end_pass(most=5) <= 5 + 2 * 3
        assert sorted(numbers(rest(source))) == list(range(NUM_ROWS))

    @pytest.mark.parametrize("num_workers", [0, 2])
    def test_an_empty_data_set_has_nothing_left_at_once(self, num_workers: int) -> None:
        source = make([], num_workers=num_workers)
        for _ in range(2):
            source.fill(1)
            assert source.remaining == 0
            assert source.peek() is None
            assert source.end_pass() == 0

    @pytest.mark.parametrize("num_workers", [0, 2])
    def test_no_more_is_held_than_was_asked_for(self, num_workers: int) -> None:
        counted = torch.zeros(()).share_memory_()  # in all processes together
        rows = Plain(10_000, lambda number: counted.add_(1) and {"x": number})
        source = make(rows, num_workers=num_workers, chunk_size=4)
        taken = sum(len(take(source, size)) for size in (3, 50, 1))
        source.fill(20)
        source.stop()
        shards = max(1, num_workers)  # of this kind of data set, each reads all rows
        assert counted <= shards * (taken + 20 + (1 + num_workers * 2) * 4 + shards * 4)


class TestErrors:
    @pytest.mark.parametrize(("num_workers", "place"), [(0, "row 13 of shard 0"), (2, "row 7 of shard 0")])
    def test_a_row_that_cannot_be_read_fails_when_it_is_needed(self, num_workers: int, place: str) -> None:
        source = make(Plain(row=failing), num_workers=num_workers)
        source.fill(good := 13)
        for _ in range(2):
            with pytest.raises(SampleError, match=f"'x': {place} could not be read: KeyError: 'thirteen'") as raised:
                source.fill(good + 1)
        assert ("in __iter__" in str(raised.value)) == bool(num_workers)
        assert len(source.take(good)) == good
        source.stop()
        with pytest.raises(SampleError, match=place):
            source.fill(1)
        source.end_pass()
        assert len(take(source, 5)) == 5

    def test_a_row_that_no_worker_can_hand_over(self) -> None:
        source = make(Plain(20, lambda number: {"x": number if number != 13 else (lambda: 13)}), num_workers=1)
        assert numbers(take(source, 12)) == list(range(12))
        with pytest.raises(SampleError, match=r"'x': worker \d could not send rows 12 to 14 of shard 0"):
            source.fill(1)

    @pytest.mark.parametrize("num_workers", [0, 1])
    def test_a_data_set_that_cannot_be_begun(self, num_workers: int) -> None:
        with pytest.raises(SampleError, match="'x': row 0 of shard 0 could not be read: TypeError"):
            make(3, num_workers=num_workers).fill(1)

    def test_a_worker_that_is_killed_is_told_of_and_can_be_replaced(self) -> None:
        source, whole = make(EXACT["noisy map"](), num_workers=1), make(EXACT["noisy map"]())
        rows = take(source, 4)
        (worker,) = children()
        os.kill(worker, signal.SIGKILL)
        with pytest.raises(SampleError, match="'x': a worker process failed or died"):
            source.fill(NUM_ROWS)
        assert comparable(rows + rest(source)) == comparable(rest(whole))
