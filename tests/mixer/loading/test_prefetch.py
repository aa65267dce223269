from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mixer import Decision, Fixed, Stream, Uniform
from mixer.loading.loader import MixingLoader
from mixer.loading.reader import SampleError
from mixer.loading.workers import WorkerOptions
from mixer.mixture.clock import Budget, Clock
from mixer.mixture.controller import Mixing
from mixer.mixture.planner import Planner
from tests.mixer.loaders import (
    Failing,
    Noisy,
    Numbers,
    Unpicklable,
    Wandering,
    batches_of,
    contents,
    make_loader,
    num_own,
    stacking_collator,
)

pytestmark = pytest.mark.usefixtures("in_process")


def hits_and_misses(loader: Any) -> list[tuple[int, int]]:
    return [loader.hits_and_misses for _ in batches_of(loader)]


class TestSamples:
    @settings(max_examples=25)
    @given(
        shape=st.fixed_dictionaries(
            {
                "world_size": st.integers(1, 4),
                "batch_size": st.integers(1, 30),
                "micro_batch_size": st.integers(1, 9),
                "policy": st.integers(0, 99).map(Wandering),
            }
        ),
        ahead_by=st.fixed_dictionaries(
            {
                "num_workers": st.integers(1, 3),
                "prefetch_factor": st.integers(1, 4),
                "persistent_workers": st.booleans(),
            }
        ),
        by_stream=st.booleans(),
        data=st.data(),
    )
    def test_whatever_is_predicted_they_are_those_without_workers(self, shape, ahead_by, by_stream, data) -> None:
        fields = {**shape, "num_epochs": 2, "rank": data.draw(st.integers(0, shape["world_size"] - 1))}
        ahead, plain = make_loader(**fields, **ahead_by), make_loader(**fields)
        ahead.by_stream = plain.by_stream = by_stream
        for mine, theirs in zip(batches_of(ahead, 15), batches_of(plain, 15), strict=True):
            assert contents(mine) == contents(theirs)
            assert mine.plan.staleness == 0
            assert sum(ahead.hits_and_misses) == num_own(mine)
            assert plain.hits_and_misses == (0, 0)

    def test_weights_set_by_hand_rule_at_once(self) -> None:
        found = []
        for num_workers in (2, 0):
            loader, batches = make_loader(num_workers, collator=stacking_collator), []
            for batch in batches_of(loader, 8):
                batches.append(contents(batch))
                if len(batches) == 3:
                    loader.mixing.set_weights({"s0": 0, "s1": 0, "s2": 1})
            found.append(batches)
        assert found[0] == found[1]

    def test_a_step_can_be_loaded_anew_by_stream(self) -> None:
        ahead, plain = make_loader(2), make_loader(0)
        found = []
        for loader in (ahead, plain):
            batch = loader.next_batch()
            assert batch is not None
            loader.by_stream = True
            found.append(contents(loader.load(batch.plan)))
        assert found[0] == found[1]
        assert ahead.hits_and_misses == (0, 9)


class TestHits:
    @pytest.mark.parametrize(
        ("world_size", "by_stream", "num_jobs"), [(1, False, 1), (2, False, 8), (3, True, 2), (5, True, 1)]
    )
    def test_with_constant_weights_all_but_the_first_step_hit(self, world_size, by_stream, num_jobs) -> None:
        for rank in range(world_size):
            policy = Fixed([3.0, 2.0, 1.3])
            loader = make_loader(num_jobs, rank, world_size, policy=policy, prefetch_factor=1, persistent_workers=True)
            loader.by_stream = by_stream
            first, *others = hits_and_misses(loader)
            assert first[0] == 0
            assert [misses for _, misses in others] == [0] * len(others)

    def test_workers_that_end_with_an_epoch_begin_anew_with_the_next(self) -> None:
        found = hits_and_misses(make_loader(2, policy=Uniform()))
        assert [hits == 0 for hits, _ in found] == [step % 5 == 0 for step in range(20)]
        assert all(misses == 0 for hits, misses in found if hits)

    def test_where_a_single_stream_drops_the_rest_of_an_epoch_all_hit(self) -> None:
        data = Numbers(0, 10)
        mixing = Mixing(Planner([Stream("only", data)], 1), Uniform(), Clock(4, 10, Budget(epochs=5), drop_unit=4))
        loader = MixingLoader(mixing, [data], stacking_collator, workers=WorkerOptions(1, persistent_workers=True))
        assert hits_and_misses(loader) == [(0, 4)] + [(4, 0)] * 9
        assert len(loader._prefetcher._pool) == 0

    def test_weights_that_change_a_little_hit_nearly_always(self) -> None:
        class Drifting(Wandering):
            def decision(self, step: int, num_streams: int) -> Any:
                return Decision(super().decision(0, num_streams).weights + 1 + 0.001 * step)

        datasets = [Numbers(k, 500) for k in range(3)]
        loader = make_loader(2, 1, 3, datasets, Drifting(), 60, 1, 8, stacking_collator, persistent_workers=True)
        found = hits_and_misses(loader)[1:]
        assert sum(misses for _, misses in found) <= 0.1 * sum(map(sum, found))


class Counted(Numbers):
    def __init__(self, stream_id: int, length: int, read: list[tuple[int, int]]):
        super().__init__(stream_id, length)
        self.read = read

    def __getitem__(self, index: int) -> dict[str, Any]:
        self.read.append((self.stream_id, index))
        return super().__getitem__(index)


class TestWork:
    """What is loaded, and how much of it is kept."""

    def loads(self, rank: int = 0, world_size: int = 1, **options: Any) -> tuple[list[tuple[int, int]], list[int]]:
        read: list[tuple[int, int]] = []
        datasets = [Counted(k, 10**6, read) for k in range(3)]
        loader = make_loader(
            2, rank, world_size, datasets, collator=stacking_collator, persistent_workers=True, **options
        )
        return read, [len(loader._prefetcher._pool) for _ in batches_of(loader, 200)]

    @pytest.mark.parametrize("world_size", [1, 3])
    def test_with_weights_that_change_little_is_kept_or_loaded_twice(self, world_size: int) -> None:
        read, sizes = self.loads(0, world_size, policy=Wandering())
        most_of_a_stream = 9 * (2 * 2 + 2)  # it may be predicted to be all of each step that is looked ahead to
        assert max(sizes) <= 3 * most_of_a_stream
        assert max(sizes[100:]) <= max(sizes[:100]) + 9
        if world_size == 1:
            assert len(read) <= 1.05 * len(set(read))

    def test_with_constant_weights_no_sample_is_loaded_twice_nor_many_of_other_ranks(self) -> None:
        read, _ = self.loads(policy=Uniform())
        assert len(read) == len(set(read))
        read, _ = self.loads(1, 3, policy=Uniform())
        assert len(read) <= 200 * 3 + 9 * 5

    @pytest.mark.parametrize("persistent", [False, True])
    def test_nothing_is_loaded_beyond_the_end_of_the_run(self, persistent: bool) -> None:
        read: list[tuple[int, int]] = []
        options = {"datasets": [Counted(0, 20, read)], "collator": stacking_collator, "num_epochs": 2}
        list(batches_of(make_loader(2, prefetch_factor=4, persistent_workers=persistent, **options)))
        assert sorted(read) == sorted([(0, index) for index in range(20)] * 2)


def steps_before_failure(loader: Any) -> tuple[int, str]:
    done = 0
    try:
        for _ in batches_of(loader):
            done += 1
    except SampleError as error:
        return done, str(error)
    return done, "none"


class TestFailures:
    @pytest.mark.parametrize(
        ("world_size", "prefetch_factor", "seed"), [(1, 1, 0), (1, 4, 1), (2, 1, 2), (2, 4, 3), (2, 4, 4), (1, 4, 5)]
    )
    def test_a_sample_that_fails_does_so_in_the_step_that_needs_it(self, world_size, prefetch_factor, seed) -> None:
        for rank in range(world_size):
            datasets = [Noisy(0, 20), Failing(1, 11), Noisy(2, 6)]
            fields = {"datasets": datasets, "policy": Wandering(seed), "micro_batch_size": 4}
            ahead = make_loader(2, rank, world_size, prefetch_factor=prefetch_factor, **fields)
            plain = make_loader(0, rank, world_size, **fields)
            (mine, message), (theirs, expected) = steps_before_failure(ahead), steps_before_failure(plain)
            assert mine == theirs
            assert message.split("\n")[0] == expected

    @pytest.mark.parametrize(
        ("kind", "words"),
        [
            (Failing, r"(?s)Stream 's1': sample 3 .*In worker 0:\nTraceback.*raise OSError\(\"disk on fire\"\)"),
            (Unpicklable, r"^worker 0 could not send stream 's1', samples \[3\]"),
        ],
    )
    def test_it_is_named_with_the_traceback_of_the_worker(self, kind: Any, words: str) -> None:
        with pytest.raises(SampleError, match=words):
            list(batches_of(make_loader(2, datasets=[Noisy(0, 20), kind(1, 11)], micro_batch_size=4)))

    def test_a_sample_that_fails_but_is_never_needed_harms_nobody(self) -> None:
        loader = make_loader(2, datasets=[Noisy(0, 20), Failing(1, 11)], prefetch_factor=4)
        for batch in batches_of(loader, 12):
            assert batch.plan.step <= 12
            loader.mixing.set_weights([1, 0])
