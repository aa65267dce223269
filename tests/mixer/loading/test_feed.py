"""Iterable streams in a mixture: what ranks are given, where rows end, and how they go on."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mixer import Decision, Stream, Uniform
from mixer.distributed.collectives import OtherRankError
from mixer.loading.iterable.source import RowSource
from mixer.loading.reader import SampleError
from mixer.utils.errors import InvalidValueError
from tests.mixer.loading.rows_on_ranks import (
    Rendezvous,
    Rows,
    make_loader,
    outcomes_of,
    places,
    rows_of,
    run_ranks,
    shards,
)
from tests.refusals import refused


def test_rows_left_on_one_rank_are_given_on_all_of_them_before_the_stream_ends() -> None:
    ranks = run_ranks(lambda: [Stream("rows", shards([9, 40]), max_epochs=1), Stream("map", places(50, 1))], 2, 40)
    counts = [[batch.plan.counts.tolist() for batch in batches] for _, batches in ranks]
    assert counts[0] == counts[1]
    given = [rows_of(batches) for _, batches in ranks]
    assert sorted(given[0] + given[1]) == [*range(9), *range(1000, 1040)]
    assert abs(len(given[0]) - len(given[1])) <= 1
    assert ranks[0][0].mixing.planner.undelivered.tolist() == [0, 0]
    assert [total[0] for total in counts[0]] == [3] * 16 + [1] + [0] * 23  # 49 rows; the other stream has taken over


def test_of_a_pass_too_long_to_be_shared_out_the_rest_is_counted() -> None:
    # 6 rows a step, 3 of each rank: after 9 each, rank 0 keeps half of the 1,000 rows that may be left on some ranks.
    ranks = run_ranks(lambda: [Stream("rows", shards([3_000, 9]), max_epochs=1)], 2, 100, epoch_size=10_000)
    given = [row for _, batches in ranks for row in rows_of(batches)]
    assert sorted(given) == [*range(509), *range(1000, 1009)]
    assert 500 <= ranks[0][0].mixing.planner.undelivered[0] <= 2_491


@pytest.mark.parametrize("sizes", [[1_500, 0], [0, 0]])
def test_a_rank_without_rows_is_an_error_unless_the_others_can_share_theirs_out(sizes: list[int]) -> None:
    with refused("dataset", stream="rows"):
        run_ranks(lambda: [Stream("rows", shards(sizes)), Stream("map", places(50, 1))], 2, 20)


class _Unsendable:
    def __reduce__(self) -> Any:
        raise TypeError("holds an open file")


class _OpenRows(Rows):
    def __iter__(self) -> Any:
        return ({**row, "file": _Unsendable()} for row in super().__iter__())


def test_rows_that_cannot_be_sent_to_other_ranks_are_counted() -> None:
    # In steps of 6, each rank has 2 rows left at the end of a pass of 10.
    ranks = run_ranks(lambda: [Stream("rows", _OpenRows(10))], 2, 3)
    times = np.bincount([row for _, batches in ranks for row in rows_of(batches)], minlength=10)
    assert times.tolist() == [3] * 6 + [0] * 4
    assert ranks[0][0].mixing.planner.undelivered.tolist() == [8]
    with refused("dataset", stream="rows"):
        run_ranks(lambda: [Stream("rows", _OpenRows(3))], 2, 3)


def test_a_row_that_cannot_be_read_leaves_no_rank_waiting() -> None:
    errors = outcomes_of(lambda: [Stream("rows", Rows(30, fails_at=13), max_epochs=1)], 2, 5)
    assert all(isinstance(error, SampleError | threading.BrokenBarrierError) for error in errors)
    assert any("'rows'" in str(error) and "OSError: gone" in str(error) for error in errors)


def test_a_pass_that_cannot_be_ended_on_one_rank_leaves_no_other_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    end_pass = RowSource.end_pass

    def fail_on_one(source: RowSource) -> None:
        if source._rank == 1:
            raise FileNotFoundError
        end_pass(source)

    monkeypatch.setattr(RowSource, "end_pass", fail_on_one)
    errors = outcomes_of(lambda: [Stream("rows", Rows(9)), Stream("map", places(50, 1))], 2, 20)
    assert [type(error) for error in errors] == [OtherRankError, FileNotFoundError]
    assert str(errors[0]) == "Another rank could not end a pass over its rows."


@pytest.mark.parametrize("world_size", [1, 3])
def test_rows_that_come_on_top_of_a_batch_are_there(world_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    decision = Decision(np.array([1.0, 0.0]), additional=np.array([0.0, 2.0]))  # twice the batch, of the second stream
    monkeypatch.setattr(Uniform, "start", lambda self, mixture: decision)
    ranks = run_ranks(lambda: [Stream("map", places(50, 0)), Stream("rows", Rows(40, 1))], world_size, 5)
    assert sum(len(rows_of(batches, 1)) for _, batches in ranks) == 60


# Rows on ranks: in turn, by shards of which each rank has one, or by one shard of which each rank takes every n-th row.
_DATA = {
    "torch": lambda length: Rows(length),
    "one shard": lambda length: shards([length]),
    "a shard each": lambda length: shards([length - length // 3, length // 3, 0]),
}


@pytest.mark.parametrize("name", _DATA)
@pytest.mark.parametrize(("length", "world_size"), [(1, 3), (2, 3), (4, 3), (7, 2), (7, 3), (10, 1), (10, 3), (40, 3)])
def test_rows_come_equally_often_and_take_their_share_of_each_step(name: str, length: int, world_size: int) -> None:
    ranks = run_ranks(lambda: [Stream("rows", _DATA[name](length)), Stream("map", places(1000, 1))], world_size, 20)
    assert all(batch.plan.counts.tolist() == [3, 3] for _, batches in ranks for batch in batches)
    every_row = [f"{row}" for row in rows_of([batch for _, batches in ranks for batch in batches])]
    times = sorted(every_row.count(row) for row in set(every_row))
    whole, rest = divmod(60, length)  # 20 steps of 3 rows
    assert times == [number for number in [whole] * (length - rest) + [whole + 1] * rest if number]
    assert ranks[0][0].mixing.planner.undelivered[0] == 0


def test_a_pass_may_be_shorter_than_a_step() -> None:
    ((loader, batches),) = run_ranks(lambda: [Stream("rows", Rows(5))], 1, 4, batch_size=12)
    assert rows_of(batches) == [number % 5 for number in range(48)]
    assert rows_of([loader.load(batches[-1].plan)]) == rows_of(batches[-1:])
    assert loader.mixing.unique.tolist() == [5]


@pytest.mark.parametrize("sizes", [[9, 40], [24], [7, 0, 11], [1, 1, 1], [6, 6]])
def test_where_a_pass_is_an_epoch_its_steps_have_all_of_its_rows_and_no_others(sizes: list[int]) -> None:
    ranks = run_ranks(lambda: [Stream("rows", shards(sizes))], len(sizes), 30, epoch_size=None)
    rows = [1000 * shard + number for shard, size in enumerate(sizes) for number in range(size)]
    steps_of_pass = -(-len(rows) // 6)
    assert [loader.mixing.clock.num_epochs_done for loader, _ in ranks] == [30 // steps_of_pass] * len(sizes)
    for start in range(0, 30 - steps_of_pass + 1, steps_of_pass):
        given = [row for _, batches in ranks for row in rows_of(batches[start : start + steps_of_pass])]
        assert sorted(given) == rows


def test_a_look_ahead_goes_beyond_the_end_of_a_pass() -> None:
    ((loader, _),) = run_ranks(lambda: [Stream("rows", Rows(8)), Stream("map", places(50, 1))], 1, 2)
    loader.mixing.next_plan()
    ahead = [plan.counts.tolist() for _, plan in zip(range(5), loader.mixing.forecast(), strict=False)]
    assert ahead == [[3, 3]] * 5
    coverage = loader.mixing.coverage  # of rows it is no share
    assert np.isnan(coverage["rows"])
    assert coverage["map"] == pytest.approx(9 / 50)


class TestFiles:
    def load(self, folder: Path, world_size: int = 1, **options: Any) -> None:
        make_loader([Stream("rows", Rows(30))], 0, world_size, Rendezvous(1))._feed.load(folder, 0, **options)

    def test_another_number_of_ranks_is_refused_unless_told_otherwise_and_other_files_are_left(self, tmp_path) -> None:
        run_ranks(lambda: [Stream("rows", Rows(30))], 1, 2, save=tmp_path)
        for name in ("rows-x.json", "rows-.json", "rows-1-2.json", "rows-9999999999.json"):
            (tmp_path / name).write_text("{}")
        with refused("allow_inexact", stream="rows"):
            self.load(tmp_path, world_size=2)
        self.load(tmp_path, world_size=2, allow_inexact=True)

    @pytest.mark.parametrize(
        "text", [None, "{torn", *(f'{{"rows": {value}}}' for value in ("3", "null", "[]", "{}", '{"lanes": 3}'))]
    )
    def test_what_is_missing_torn_or_no_place_in_rows_is_refused(self, text: str | None, tmp_path: Path) -> None:
        if text is not None:
            (tmp_path / "rows-0.json").write_text(text)
        with pytest.raises(InvalidValueError):
            self.load(tmp_path)
