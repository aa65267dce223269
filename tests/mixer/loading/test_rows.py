import itertools
import json
import os
import random
import re
import signal
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from datasets import Dataset, load_dataset
from hypothesis import example, given, settings, strategies as st
from torch.utils.data import IterableDataset, get_worker_info

from mixer.loading.iterable.shards import _GIVES_BUFFER_OF_ONE
from mixer.loading.iterable.source import RowSource
from mixer.loading.reader import SampleError
from mixer.loading.workers import WorkerOptions
from mixer.utils.random_state import RandomState
from tests.mixer.loaders import quick_and_full
from tests.refusals import refused

datasets.disable_progress_bars()
NUM_ROWS = 41
MADE: list[RowSource] = []
WORKERS = quick_and_full([0], [2])


@pytest.fixture(autouse=True)
def stopped(children: Callable[[], list[int]]) -> Iterator[None]:
    yield
    while MADE:
        MADE.pop().stop()


def shard_rows(shards: list[int]) -> Iterator[dict[str, int]]:
    for shard in shards:
        yield from ({"x": number} for number in range(NUM_ROWS * shard // 6, NUM_ROWS * (shard + 1) // 6))


def add_noise(row: dict[str, Any]) -> dict[str, Any]:
    return {"noise": [random.random(), float(np.random.rand()), float(torch.rand(()))]}  # noqa: NPY002


class Plain:
    """Has only `__iter__`."""

    def __init__(self, num_rows: int = NUM_ROWS, fails_at: int = -1):
        self.num_rows, self.fails_at, self.num_read = num_rows, fails_at, torch.zeros(()).share_memory_()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for number in range(self.num_rows):
            if number == self.fails_at:
                raise KeyError(number)
            self.num_read += 1
            yield {"x": number, "noise": random.random()}


class Shuffled(IterableDataset[Any]):
    """Draws its order anew for each pass."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for number in random.sample(range(NUM_ROWS), NUM_ROWS):
            yield {"x": number, "noise": torch.rand(2)}


class Aware(IterableDataset[Any]):
    """Shares its rows out among the workers of a loader by itself."""

    def __iter__(self) -> Iterator[dict[str, int]]:
        info = get_worker_info()
        step, first = (info.num_workers, info.id) if info is not None else (1, 0)
        yield from ({"x": number} for number in range(first, NUM_ROWS, step))


class Stateful(IterableDataset[Any]):
    """Can go on from where it was; its epoch shifts the rows."""

    def __init__(self, note: Any = None) -> None:
        self.next, self.epoch, self.num_read, self.note = 0, 0, 0, note

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[dict[str, Any]]:
        while self.next < NUM_ROWS:
            self.next += 1
            self.num_read += 1
            yield {"x": (self.next - 1 + self.epoch) % NUM_ROWS, "noise": random.random()}
        self.next = 0

    def state_dict(self) -> dict[str, Any]:
        return {"next": self.next, "epoch": self.epoch, "note": self.note}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.next, self.epoch = state["next"], state["epoch"]


def hugging_face(num_shards: int = 6) -> Any:
    return datasets.IterableDataset.from_generator(shard_rows, gen_kwargs={"shards": list(range(num_shards))})


def from_map_style(num_shards: int = 3) -> Any:
    return Dataset.from_dict({"x": list(range(NUM_ROWS))}).to_iterable_dataset(num_shards=num_shards)


EXACT: dict[str, Callable[[], Any]] = {
    "generator": hugging_face,
    "noisy map": lambda: hugging_face().map(add_noise),
    "noisy map of batches": lambda: hugging_face().map(
        lambda rows: {"noise": [random.random() for _ in rows["x"]]}, batched=True, batch_size=4
    ),
    "map of batches": lambda: hugging_face().map(dict, batched=True, batch_size=4).filter(lambda row: row["x"] % 3 < 2),
    "arrow": from_map_style,
    "arrow tensors": lambda: from_map_style().with_format("torch").map(add_noise),
    "arrow tables": lambda: from_map_style().with_format("arrow").map(lambda rows: rows, batched=True, batch_size=4),
    "interleaved": lambda: datasets.interleave_datasets(
        [hugging_face(3), from_map_style()], [0.4, 0.6], seed=1, stopping_strategy="all_exhausted"
    ),
    "noisy shuffled shards": lambda: hugging_face().map(add_noise).shuffle(seed=3, buffer_size=1),
    "noisy interleaved": lambda: datasets.interleave_datasets([hugging_face(3).map(add_noise), hugging_face(4)]),
    "concatenated": lambda: datasets.concatenate_datasets([hugging_face(3), from_map_style()]),
    "skip and take": lambda: hugging_face().skip(3).take(30),
    "repeated": lambda: hugging_face().repeat(2),
    "stateful": Stateful,
    "plain": Plain,
    "list": lambda: list(range(NUM_ROWS)),
    "shuffled": Shuffled,
    "aware": Aware,
    "empty": list,
}
if not _GIVES_BUFFER_OF_ONE:  # such a buffer is refused like any other
    EXACT = {name: make_dataset for name, make_dataset in EXACT.items() if "shuffled shards" not in name}
WHOLE = ["generator", "noisy map", "arrow", "arrow tensors", "stateful", "plain", "shuffled"]


def make(dataset: Any, rank: int = 0, world_size: int = 1, num_workers: int = 0, **options: Any) -> RowSource:
    workers = WorkerOptions(num_workers)
    source = RowSource("x", dataset, 7, rank, world_size, workers, **{"chunk_size": 3, **options})
    MADE.append(source)
    return source


def take(source: RowSource, num_rows: int) -> list[Any]:
    """Takes so many rows, or those that are left."""
    source.fill(num_rows)
    return source.take(min(num_rows, source.num_ready))


def rest(source: RowSource) -> list[Any]:
    rows = []
    while part := take(source, 5):
        rows += part
    assert source.remaining == 0
    return rows


def comparable(rows: list[Any]) -> str:
    return json.dumps(rows, default=lambda value: (getattr(value, "to_pylist", None) or value.tolist)(), sort_keys=True)


def numbers(rows: Iterable[Any]) -> list[int]:
    return [int(row["x"]) for row in rows]


def saved(*sources: RowSource) -> list[Any]:
    return [json.loads(json.dumps(source.state_dict())) for source in sources]


def passes(dataset: Any, num_passes: int, **kwargs: Any) -> list[list[Any]]:
    state, source, found = RandomState.capture(), make(dataset, **kwargs), []
    for number in range(num_passes):
        assert source.pass_number == number
        found.append(rest(source))
        assert source.num_taken == len(found[-1])
        source.end_pass()
    source.stop()
    assert state.is_current()
    return found


class TestEachRowGoesToOneRankOnce:
    def check(self, make_dataset: Any, world_size: int, num_workers: int, num_rows: int = NUM_ROWS) -> None:
        sharing = {"world_size": world_size, "num_workers": num_workers}
        parts = [passes(make_dataset(rank), 2, rank=rank, **sharing) for rank in range(world_size)]
        for one_pass in zip(*parts, strict=True):
            assert sorted(numbers(itertools.chain(*one_pass))) == list(range(num_rows))

    @pytest.mark.parametrize(
        ("name", "world_size", "num_workers"),
        quick_and_full(
            [*((name, 3, 0) for name in WHOLE), ("plain", 1, 0), ("aware", 2, 0), ("generator", 1, 2)],
            [("generator", 2, 2), ("arrow", 2, 1), ("shuffled", 3, 1), ("stateful", 2, 2), ("aware", 2, 2)],
        ),
    )
    def test_whatever_the_kind(self, name: str, world_size: int, num_workers: int) -> None:
        self.check(lambda rank: EXACT[name](), world_size, num_workers)
        for num_rows in (0, 1, 3) if name == "plain" else ():  # fewer than shards
            self.check(lambda rank: Plain(num_rows), 4, 0, num_rows)  # noqa: B023

    @pytest.mark.parametrize(
        ("kind", "world_size", "num_workers"), quick_and_full([("parquet", 2, 0)], [("json", 3, 0), ("json", 1, 2)])
    )
    def test_streamed_files(self, kind: str, world_size: int, num_workers: int, tmp_path: Path) -> None:
        for shard in range(4):
            part = Dataset.from_dict({"x": list(range(NUM_ROWS))[shard::4]})
            path = str(tmp_path / f"{shard}.{kind}")
            part.to_json(path) if kind == "json" else part.to_parquet(path, batch_size=3)
        streamed = load_dataset(kind, data_files=str(tmp_path / "*"), streaming=True, split="train")
        self.check(lambda rank: streamed, world_size, num_workers)
        source, resumed = (make(streamed, num_workers=num_workers) for _ in range(2))
        take(source, 7)
        resumed.load_state_dict(saved(source))
        assert numbers(rest(resumed)) == numbers(rest(source))

    @pytest.mark.parametrize("num_workers", WORKERS)
    def test_a_data_set_that_is_split_by_ranks_already(self, num_workers: int) -> None:
        split = datasets.distributed.split_dataset_by_node
        for dataset in (from_map_style(5), from_map_style(6)):
            self.check(lambda rank: split(dataset, rank, 2), 2, num_workers)  # noqa: B023


class TestOrder:
    def test_goes_round_the_shards_by_chunks_and_leaves_out_those_that_ended(self) -> None:
        rows = rest(make(Plain(20), num_workers=2))
        assert numbers(rows) == [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11, 12, 14, 16, 13, 15, 17, 18, 19]

    def test_differs_between_passes_and_so_do_random_numbers_between_rows_passes_and_shards(self) -> None:
        by_number = [numbers(part) for part in passes(Stateful(), 3)]
        assert by_number == [[(number + k) % NUM_ROWS for number in range(NUM_ROWS)] for k in range(3)]
        parts = [passes(EXACT["noisy map"](), 2, rank=rank, world_size=2) for rank in range(2)]
        found = [row["noise"][0] for passes_of_rank in parts for part in passes_of_rank for row in part]
        assert len(set(found)) == len(found) == 2 * NUM_ROWS


class TestResuming:
    def check(self, name: str, world_size: int, num_workers: int, sizes: list[int], num_passes: int = 0) -> None:
        """What is left of the pass, and the next pass, are the same for fresh sources."""
        ranks, dataset = range(world_size), EXACT[name]
        sources, resumed = ([make(dataset(), rank, world_size, num_workers) for rank in ranks] for _ in range(2))
        for source in sources:
            for _ in range(num_passes):
                take(source, 4)
                source.end_pass()
            for size in sizes:
                take(source, size)
        states = saved(*sources)
        for old, new in zip(sources, resumed, strict=True):
            new.load_state_dict(states)
            assert saved(new) == saved(old)
            for _ in range(2):
                assert (new.pass_number, new.num_taken) == (old.pass_number, old.num_taken)
                assert comparable(rest(new)) == comparable(rest(old))
                new.end_pass()
                old.end_pass()

    @pytest.mark.parametrize("name", EXACT)
    @settings(max_examples=3)
    @given(sizes=st.lists(st.integers(0, 9), max_size=5), world_size=st.integers(1, 3), num_passes=st.integers(0, 2))
    @example(sizes=[4, 1, 3], world_size=2, num_passes=1)
    def test_gives_the_very_next_rows_from_anywhere(self, name, sizes, world_size, num_passes) -> None:
        self.check(name, world_size, 0, sizes, num_passes)

    @pytest.mark.parametrize(
        ("name", "num_workers", "sizes", "num_passes"),
        quick_and_full(
            [*(("generator", 0, [size], 0) for size in (38, 39, 40, 41)), ("noisy map", 2, [3, 1, 9], 1)],
            [("noisy map of batches", 2, [22, 1], 0), ("stateful", 2, [3, 1, 9], 1), ("generator", 2, [39], 0)],
        ),
    )
    def test_with_workers_and_near_the_end(self, name, num_workers, sizes, num_passes) -> None:
        self.check(name, 1, num_workers, sizes, num_passes)

    def test_one_worker_gives_and_saves_what_none_does(self) -> None:
        old, new, alone = (make(EXACT["noisy map"](), num_workers=number) for number in (1, 0, 0))
        assert comparable(take(old, 8)) == comparable(take(alone, 8))
        new.load_state_dict(saved(old))
        assert comparable(rest(new)) == comparable(rest(old)) == comparable(rest(alone))

    @pytest.mark.parametrize(
        ("make_dataset", "num_read", "words"),
        [
            (Stateful, NUM_ROWS - 30, []),  # goes on from its own state
            (Plain, NUM_ROWS, ["'x'.* 31 rows"]),
            (lambda: Stateful({1, 2}), NUM_ROWS, ["TypeError", "'x'.* 31 rows", "TypeError"]),  # its state is no JSON
        ],
    )
    def test_without_a_state_it_is_read_again_and_says_so_before(self, make_dataset, num_read, words, caplog) -> None:
        old, dataset = make(make_dataset()), make_dataset()
        take(old, 31)
        new = make(dataset)
        new.load_state_dict(saved(old))
        new.fill(1)
        assert len(caplog.messages) == len(words)
        assert all(map(re.search, words, caplog.messages))
        assert comparable(rest(new)) == comparable(rest(old))
        assert dataset.num_read == num_read


class TestRefusals:
    @pytest.mark.parametrize(
        ("old", "new"), quick_and_full([([(0, 2, 0), (1, 2, 0)], (0, 1, 0))], [([(0, 1, 2)], (1, 2, 0))])
    )
    def test_another_sharing_out(self, old: Any, new: Any, caplog: pytest.LogCaptureFixture) -> None:
        sources = [make(hugging_face(), *args) for args in old]
        for source in sources:
            take(source, 10)
            source.end_pass()
            take(source, 12 // len(old))
        fresh, whole = (make(hugging_face(), *new) for _ in range(2))
        with refused("allow_inexact", stream="x"):
            fresh.load_state_dict(saved(*sources))
        fresh.load_state_dict(saved(*sources), allow_inexact=True)
        num_workers = max(1, new[2])
        num_each = 12 // (new[1] * num_workers)
        assert (fresh.pass_number, fresh.num_taken) == (1, num_each * num_workers)
        assert any(f" {num_each} rows" in warning for warning in caplog.messages)
        whole.end_pass()
        expected = numbers(rest(whole))
        assert set(numbers(rest(fresh))) < set(expected)
        assert fresh.num_taken == len(expected)

    @pytest.mark.parametrize("buffer_size", [1, 10])
    @pytest.mark.parametrize("seeds", [(3, 4), (None, None)])
    def test_another_order(self, seeds: Any, buffer_size: int, caplog: pytest.LogCaptureFixture) -> None:
        old, new = (make(hugging_face().shuffle(seed=seed, buffer_size=buffer_size)) for seed in seeds)
        new.load_state_dict(saved(old))  # nothing was taken yet
        take(old, 12)
        with refused("allow_inexact", stream="x"):
            new.load_state_dict(saved(old))
        new.load_state_dict(saved(old), allow_inexact=True)
        assert any("another order" in warning for warning in caplog.messages)
        assert 0 < len(rest(new)) < NUM_ROWS
        new.end_pass()
        assert sorted(numbers(rest(new))) == list(range(NUM_ROWS))  # the next pass is whole again

    def test_a_shuffle_buffer_is_filled_again(self, caplog: pytest.LogCaptureFixture) -> None:
        whole, old, new = (make(hugging_face().map(add_noise).shuffle(seed=3, buffer_size=10)) for _ in range(3))
        expected = [take(whole, 12), rest(whole)]
        assert comparable(take(old, 12)) == comparable(expected[0])
        new.load_state_dict(saved(old))
        assert comparable(rest(new)) == comparable(expected[1])
        assert any("reshard()" in warning for warning in caplog.messages)

    def test_fewer_shards_than_readers_offer_reshard(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        table = datasets.Dataset.from_list([{"x": number} for number in range(NUM_ROWS)])
        table.to_parquet(tmp_path / "rows.parquet", batch_size=10)  # a row group each
        streamed = datasets.load_dataset("parquet", data_files=str(tmp_path / "rows.parquet"), streaming=True)["train"]
        make(streamed, world_size=4)
        assert "1 shards for 4 readers" in caplog.messages[0]
        assert "reshard()" in caplog.messages[0]
        more = [make(streamed.reshard(), rank, world_size=4) for rank in range(4)]
        assert len(caplog.messages) == 1
        assert sorted(numbers(row for source in more for row in rest(source))) == list(range(NUM_ROWS))


class TestPasses:
    @pytest.mark.parametrize(
        ("name", "num_workers"),
        quick_and_full([("generator", 0), ("stateful", 0), ("plain", 0)], [("generator", 2), ("plain", 2)]),
    )
    def test_after_an_early_end_the_next_is_whole(self, name, num_workers, children) -> None:
        source = make(EXACT[name](), num_workers=num_workers)
        take(source, 6)
        workers = children()
        source.fill(4)
        source.end_pass()
        take(source, 2)
        source.end_pass()
        assert sorted(numbers(rest(source))) == list(range(NUM_ROWS))
        assert children() == workers
        assert len(workers) == num_workers

    @pytest.mark.parametrize("num_workers", WORKERS)
    def test_no_more_is_held_than_was_asked_for(self, num_workers: int) -> None:
        dataset = Plain(10_000)
        source = make(dataset, num_workers=num_workers, chunk_size=4)
        taken = sum(len(take(source, size)) for size in (3, 50, 1))
        source.fill(20)
        source.stop()
        shards = max(1, num_workers)  # of this kind of data set, each reads all rows
        assert dataset.num_read <= shards * (taken + 20 + (1 + num_workers * 2) * 4 + shards * 4)


class TestErrors:
    @pytest.mark.parametrize(("num_workers", "row"), quick_and_full([(0, 13), (2, 7)], [(1, 13)]))
    def test_a_row_that_cannot_be_read_fails_when_it_is_needed(self, num_workers: int, row: int) -> None:
        source = make(Plain(fails_at=13), num_workers=num_workers)
        source.fill(13)
        for _ in range(2):
            with pytest.raises(
                SampleError, match=f"'x': row {row} of shard 0 could not be read: KeyError: 13"
            ) as raised:
                source.fill(14)
        assert ("in __iter__" in str(raised.value)) == bool(num_workers)
        assert len(source.take(13)) == 13
        source.stop()
        with pytest.raises(SampleError):
            source.fill(1)
        source.end_pass()
        assert len(take(source, 5)) == 5
        with pytest.raises(SampleError):
            make(3, num_workers=num_workers).fill(1)

    @pytest.mark.full
    def test_a_row_that_no_worker_can_hand_over(self) -> None:
        source = make([{"x": n if n != 13 else lambda: 13} for n in range(20)], num_workers=1)
        assert numbers(take(source, 12)) == list(range(12))
        with pytest.raises(SampleError, match=r"'x': worker \d could not send rows 12 to 14 of shard 0"):
            source.fill(1)

    def test_a_worker_that_is_killed_is_told_of_and_can_be_replaced(self, children: Callable[[], list[int]]) -> None:
        source, whole = (make(EXACT["noisy map"](), num_workers=2) for _ in range(2))
        rows = take(source, 4)
        os.kill(children()[0], signal.SIGKILL)
        with pytest.raises(SampleError, match=r"'x': a worker process failed or died.* shard .*memory ran out"):
            source.fill(NUM_ROWS)
        source.stop()
        assert comparable(rows + rest(source)) == comparable(rest(whole))
