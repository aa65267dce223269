"""Iterable streams in a mixture: what ranks are given, where rows end, and how they go on."""

import random
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from mixer import Decision, Fixed, Mixture, Observation, Policy, Stream
from mixer.distributed.collectives import OtherRankError
from mixer.loading.iterable.source import RowSource
from mixer.loading.reader import SampleError
from mixer.utils.files import write_json
from tests.mixer.loading.rows_on_ranks import (
    Meeting,
    Rows,
    make_loader,
    outcomes_of,
    places,
    rows_of,
    run_ranks,
    shards,
)


def beside(rows: Any, length: int = 50, **options: Any) -> list[Stream]:
    """Rows, and a stream that can be indexed."""
    return [Stream("rows", rows, **options), Stream("map", places(length, 1))]


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_passes_give_each_row_once_and_follow_each_other(world_size: int) -> None:
    ranks = run_ranks(lambda: [Stream("rows", Rows(30), max_epochs=1)], world_size, 100)
    assert sorted(row for _, batches in ranks for row in rows_of(batches)) == list(range(30))
    for loader, batches in ranks:
        assert len(batches) == 5
        assert loader.mixing.is_exhausted
        assert loader.mixing.seen.tolist() == [30]
    ranks = run_ranks(lambda: [Stream("rows", Rows(12))], world_size, 9)
    together = np.bincount([row for _, batches in ranks for row in rows_of(batches)], minlength=12)
    assert together.sum() == 54
    assert together.max() - together.min() <= 1
    assert ranks[0][0].mixing.unique.tolist() == [12]


def test_a_shard_that_ends_first_ends_the_stream_for_all_at_the_same_step() -> None:
    ranks = run_ranks(lambda: beside(shards([9, 40]), max_epochs=1), 2, 40)
    counts = [[batch.plan.counts.tolist() for batch in batches] for _, batches in ranks]
    assert counts[0] == counts[1]
    given = [rows_of(batches) for _, batches in ranks]
    assert given[0] == list(range(9))
    assert given[1] == list(range(1000, 1000 + len(given[1])))
    assert abs(len(given[0]) - len(given[1])) <= 1
    undelivered = ranks[0][0].mixing.planner.undelivered.tolist()
    assert undelivered == [49 - len(given[0]) - len(given[1]), 0]
    assert all(total == [0, 6] for total in counts[0][-5:])  # the others have taken over


def test_a_row_that_cannot_be_read_leaves_no_rank_waiting() -> None:
    errors = outcomes_of(lambda: [Stream("rows", Rows(30, fails_at=13), max_epochs=1)], 2, 5, leaves=SampleError)
    assert any("'rows'" in str(error) and "OSError: gone" in str(error) for error in errors)
    assert all(isinstance(error, Exception) for error in errors)


def test_a_pass_that_cannot_be_ended_on_one_rank_leaves_no_other_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    end_pass = RowSource.end_pass

    def fail_on_one(source: RowSource, most: int = 10_000) -> int:
        if source._rank == 1:
            raise OSError("gone")
        return end_pass(source, most)

    monkeypatch.setattr(RowSource, "end_pass", fail_on_one)
    errors = outcomes_of(lambda: beside(Rows(9)), 2, 20)
    assert [(type(error), str(error)) for error in errors] == [
        (OtherRankError, "Another rank could not end a pass over its rows."),
        (OSError, "gone"),
    ]


class OnTop(Policy):
    """Takes twice the batch size from the first stream, on top of the batch."""

    name, is_static = "OnTop", True

    def start(self, mixture: Mixture) -> Decision:
        return Decision(np.array([0.0, 1.0]), additional=np.array([2.0, 0.0]))

    def update(self, observation: Observation) -> Decision:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("world_size", "policy", "expected"), [(1, OnTop(), 60), (3, OnTop(), 60), (1, Fixed([0, 1]), 0)]
)
def test_rows_that_come_on_top_of_a_batch_are_there_and_those_of_weight_0_are_not(
    world_size: int, policy: Policy, expected: int
) -> None:
    ranks = run_ranks(lambda: beside(Rows(40)), world_size, 5, policy=policy)
    assert sum(len(rows_of(batches)) for _, batches in ranks) == expected


def test_fewer_rows_than_ranks_is_an_error_and_no_endless_search() -> None:
    message = r"least one of 3 ranks received no row in a whole pass over the iterable streams \['rows'\]"
    with pytest.raises(ValueError, match=message):
        run_ranks(lambda: beside(Rows(2)), 3, 20)


def test_loading_a_step_again_gives_the_same_rows() -> None:
    loader = make_loader([Stream("rows", Rows(30))], 0, 1, Meeting(1))
    batch = loader.next_batch()
    assert batch is not None
    assert rows_of([loader.load(batch.plan)]) == rows_of([batch]) == list(range(6))


@pytest.mark.parametrize(("length", "world_size"), [(4, 1), (7, 2), (10, 3)])
def test_the_end_of_a_pass_costs_a_stream_nothing_of_its_share(length: int, world_size: int) -> None:
    ranks = run_ranks(lambda: beside(Rows(length), 1000), world_size, 20)
    assert all(batch.plan.counts.tolist() == [3, 3] for _, batches in ranks for batch in batches)
    times = np.bincount([row for _, batches in ranks for row in rows_of(batches)], minlength=length)
    assert times.sum() == 60
    assert times.max() - times.min() <= 1 + int(ranks[0][0].mixing.planner.undelivered[0])


def test_a_pass_may_be_shorter_than_a_step() -> None:
    ((_, batches),) = run_ranks(lambda: [Stream("rows", Rows(5))], 1, 4, batch_size=12)
    assert rows_of(batches) == [number % 5 for number in range(48)]


def test_a_look_ahead_goes_beyond_the_end_of_a_pass_and_coverage_of_rows_is_no_share() -> None:
    ((loader, _),) = run_ranks(lambda: beside(Rows(8), 12), 1, 3)
    assert np.isnan(loader.mixing.coverage["rows"])
    assert loader.mixing.coverage["map"] == pytest.approx(9 / 12)
    loader.mixing.next_plan()
    ahead = [plan.counts.tolist() for _, plan in zip(range(5), loader.mixing.forecast(), strict=False)]
    assert ahead == [[3, 3]] * 5


@pytest.mark.parametrize("rows", [lambda: Rows(25), lambda: shards([12, 13])], ids=["torch", "datasets"])
@pytest.mark.parametrize("num_steps", [2, 7])
def test_the_feed_goes_on_where_it_was(rows: Any, num_steps: int, tmp_path: Path) -> None:
    def streams() -> list[Stream]:
        return beside(rows())

    ((_, whole),) = run_ranks(streams, 1, 12)
    ((_, before),) = run_ranks(streams, 1, num_steps, save=tmp_path)
    ((_, after),) = run_ranks(streams, 1, 12 - num_steps, resume=tmp_path)
    assert [rows_of(before + after, stream) for stream in (0, 1)] == [rows_of(whole, stream) for stream in (0, 1)]


class TestFiles:
    def saved(self, folder: Path) -> None:
        run_ranks(lambda: [Stream("rows", Rows(30))], 1, 2, save=folder)

    def load(self, folder: Path, world_size: int = 1, **options: Any) -> None:
        make_loader([Stream("rows", Rows(30))], 0, world_size, Meeting(1))._feed.load(folder, 0, **options)

    def test_a_torn_or_missing_file_of_rows_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match=r"has no position of stream 'rows': a file rows-RANK\.json is missing"):
            self.load(tmp_path)
        (tmp_path / "rows-0.json").write_text("{torn")
        with pytest.raises(ValueError, match=r"rows-0\.json is torn"):
            self.load(tmp_path)

    def test_another_number_of_ranks_is_refused_unless_told_otherwise(self, tmp_path: Path) -> None:
        self.saved(tmp_path)
        with pytest.raises(ValueError, match=r"'rows'.*allow_inexact=True"):
            self.load(tmp_path, 2)
        self.load(tmp_path, 2, allow_inexact=True)

    def test_files_of_other_names_are_left_alone(self, tmp_path: Path) -> None:
        self.saved(tmp_path)
        for name in ("rows-x.json", "rows-.json", "rows-1-2.json", "rows-9999999999.json"):
            (tmp_path / name).write_text("{}")
        self.load(tmp_path)

    @pytest.mark.parametrize("value", [3, None, [], {}, {"lanes": 3}])
    def test_what_is_no_place_in_rows_is_refused_with_its_stream(self, value: Any, tmp_path: Path) -> None:
        write_json(tmp_path / "rows-0.json", {"rows": value})
        message = r"the position of stream 'rows' in a file rows-RANK\.json of .* is damaged"
        with pytest.raises(ValueError, match=message):
            self.load(tmp_path)


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
            Stream(f"s{k}", (Rows if is_iterable else places)(length, k), max_epochs=most)
            for k, (is_iterable, length, most) in enumerate(self.streams)
        ]

    def weigh(self, step: int) -> list[float]:
        """Weights that change with every step, some of them to 0."""
        random_weights = np.random.default_rng([self.seed or 0, step])
        weights = random_weights.random(len(self.streams)) * (random_weights.random(len(self.streams)) < 0.8)
        return [float(weight) for weight in (weights if weights.any() else weights + 1)]


_REPORTED = [
    _Case(((False, 50, None), (True, 7, None)), 2, 9, epoch_size=50),
    _Case(
        ((False, 1, None), (False, 2, None), (True, 7, None), (True, 23, None), (True, 50, None)), 2, 9, epoch_size=33
    ),
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


_CASES = {f"reported-{number}": case for number, case in enumerate(_REPORTED)}
_CASES |= {f"drawn-{seed}": _draw(seed) for seed in range(9)}


@pytest.mark.parametrize("case", _CASES.values(), ids=_CASES)
def test_ranks_do_the_same_whatever_each_has_left_and_go_on_from_anywhere(case: _Case, tmp_path: Path) -> None:
    options: dict[str, Any] = {"batch_size": case.batch_size, "epoch_size": case.epoch_size}
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
