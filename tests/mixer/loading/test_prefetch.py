from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mixer import Fixed, Uniform
from mixer.loading.prefetch import Prefetcher
from mixer.loading.reader import SampleError
from tests.mixer.loaders import (
    InProcess,
    Noisy,
    Numbers,
    Wandering,
    batches_of,
    contents,
    make_loader,
    num_own,
    stacking_collator,
)


@pytest.fixture
def in_process() -> Iterator[None]:
    """Workers whose jobs are loaded in this process, one after the other."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mixer.loading.workers.DataLoader", InProcess)
        patch.setattr("mixer.loading.workers.get_worker_info", lambda: InProcess.worker)
        yield


def hits_and_misses(loader: Any, limit: int = 10_000) -> list[tuple[int, int]]:
    return [loader.hits_and_misses for _ in batches_of(loader, limit)]


def prefetcher_of(loader: Any) -> Prefetcher:
    return loader._prefetcher


@pytest.mark.usefixtures("in_process")
class TestSamples:
    @given(
        seed=st.integers(0, 99),
        world_size=st.integers(1, 4),
        num_workers=st.integers(1, 3),
        prefetch_factor=st.integers(1, 4),
        batch_size=st.integers(1, 30),
        micro_batch_size=st.integers(1, 9),
        persistent_workers=st.booleans(),
        by_stream=st.booleans(),
        data=st.data(),
    )
    def test_whatever_is_predicted_they_are_those_without_workers(
        self,
        seed,
        world_size,
        num_workers,
        prefetch_factor,
        batch_size,
        micro_batch_size,
        persistent_workers,
        by_stream,
        data,
    ) -> None:
        fields = {
            "policy": Wandering(seed),
            "rank": data.draw(st.integers(0, world_size - 1)),
            "world_size": world_size,
            "batch_size": batch_size,
            "micro_batch_size": micro_batch_size,
            "num_epochs": 2,
        }
        ahead = make_loader(
            num_workers, prefetch_factor=prefetch_factor, persistent_workers=persistent_workers, **fields
        )
        plain = make_loader(0, **fields)
        ahead.by_stream = plain.by_stream = by_stream
        for mine, theirs in zip(batches_of(ahead, 15), batches_of(plain, 15), strict=True):
            assert contents(mine) == contents(theirs)
            assert mine.plan.staleness == 0
            assert sum(ahead.hits_and_misses) == num_own(mine)
            assert plain.hits_and_misses == (0, 0)

    def test_weights_set_by_hand_rule_at_once(self) -> None:
        ahead, plain = make_loader(2, collator=stacking_collator), make_loader(0, collator=stacking_collator)
        found = []
        for loader in (ahead, plain):
            batches = []
            for batch in batches_of(loader, 8):
                batches.append(contents(batch))
                if len(batches) == 3:
                    loader.mixing.set_weights({"s0": 0, "s1": 0, "s2": 1})
            found.append(batches)
        assert found[0] == found[1]

    def test_a_step_can_be_loaded_anew_by_stream(self) -> None:
        ahead, plain = make_loader(2), make_loader(0)
        for loader in (ahead, plain):
            batch = loader.next_batch()
            loader.by_stream = True
            loader.found = contents(loader.load(batch.plan))
        assert ahead.found == plain.found
        assert ahead.hits_and_misses == (0, 9)


@pytest.mark.usefixtures("in_process")
class TestHits:
    @pytest.mark.parametrize("world_size", [1, 2, 3, 5])
    @pytest.mark.parametrize("by_stream", [False, True])
    @pytest.mark.parametrize("num_jobs", [1, 2, 8])
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
        from mixer import Stream
        from mixer.loading.loader import MixingLoader
        from mixer.loading.workers import WorkerOptions
        from mixer.mixture.clock import Budget, Clock
        from mixer.mixture.controller import Mixing
        from mixer.mixture.planner import Planner

        mixing = Mixing(
            Planner([Stream("only", Numbers(0, 10))], 1), Uniform(), Clock(4, 10, Budget(epochs=5), drop_unit=4)
        )
        workers = WorkerOptions(1, persistent_workers=True)
        loader = MixingLoader(mixing, [Numbers(0, 10)], stacking_collator, workers=workers)
        assert hits_and_misses(loader) == [(0, 4)] + [(4, 0)] * 9
        assert len(prefetcher_of(loader)._pool) == 0

    def test_weights_that_change_a_little_hit_nearly_always(self) -> None:
        class Drifting(Wandering):
            def decision(self, step: int, num_streams: int) -> Any:
                from mixer import Decision

                return Decision(super().decision(0, num_streams).weights + 1 + 0.001 * step)

        datasets = [Numbers(k, 500) for k in range(3)]
        for rank in range(3):
            loader = make_loader(2, rank, 3, datasets, Drifting(), 60, 1, 8, stacking_collator, persistent_workers=True)
            found = hits_and_misses(loader)[1:]
            assert sum(misses for _, misses in found) <= 0.1 * sum(map(sum, found))

    def test_they_are_the_same_in_every_repetition(self) -> None:
        runs = [hits_and_misses(make_loader(2, 1, 2, policy=Wandering(), persistent_workers=True)) for _ in range(2)]
        assert runs[0] == runs[1]
        assert any(hits for hits, _ in runs[0])
        assert any(misses for _, misses in runs[0][1:])

    def test_without_workers_there_are_none(self) -> None:
        assert set(hits_and_misses(make_loader(0))) == {(0, 0)}


@pytest.mark.usefixtures("in_process")
class TestWork:
    """What is loaded, and how much of it is kept."""

    def loads(self, *args: Any, **options: Any) -> tuple[list[tuple[int, int]], list[int], Any]:
        read: list[tuple[int, int]] = []

        class Counted(Numbers):
            def __getitem__(self, index: int) -> dict[str, Any]:
                read.append((self.stream_id, index))
                return super().__getitem__(index)

        datasets = [Counted(k, 10**6) for k in range(3)]
        loader = make_loader(*args, datasets=datasets, collator=stacking_collator, **options)
        limit = options.pop("limit", 300)
        sizes = [len(prefetcher_of(loader)._pool) for _ in batches_of(loader, limit)]
        return read, sizes, loader

    @pytest.mark.parametrize("world_size", [1, 3])
    def test_what_is_kept_is_bounded(self, world_size: int) -> None:
        _, sizes, _ = self.loads(2, 0, world_size, policy=Wandering(), persistent_workers=True)
        most_of_a_stream = 9 * (2 * 2 + 2)  # it may be predicted to be all of each step that is looked ahead to
        assert max(sizes) <= 3 * most_of_a_stream
        assert max(sizes[150:]) <= max(sizes[:150]) + 9

    def test_with_constant_weights_no_sample_is_loaded_twice(self) -> None:
        read, _, _ = self.loads(2, policy=Uniform(), persistent_workers=True)
        assert len(read) == len(set(read))

    def test_with_weights_that_change_few_are_loaded_twice(self) -> None:
        read, _, _ = self.loads(2, policy=Wandering(), persistent_workers=True)
        assert len(read) <= 1.05 * len(set(read))

    def test_what_other_ranks_train_on_is_loaded_here_only_where_counts_change(self) -> None:
        read, _, _ = self.loads(2, 1, 3, policy=Uniform(), persistent_workers=True)
        assert len(read) <= 300 * 3 + 9 * 5

    def test_nothing_is_loaded_beyond_the_end_of_the_run(self) -> None:
        read: list[int] = []

        class Counted(Numbers):
            def __getitem__(self, index: int) -> dict[str, Any]:
                read.append(index)
                return super().__getitem__(index)

        options = {"datasets": [Counted(0, 20)], "collator": stacking_collator, "num_epochs": 2}
        for persistent in (False, True):
            read.clear()
            list(batches_of(make_loader(2, prefetch_factor=4, persistent_workers=persistent, **options)))
            assert sorted(read) == sorted([*range(20)] * 2)


class Failing(Noisy):
    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == 3:
            raise OSError("disk on fire")
        return super().__getitem__(index)


class Unpicklable(Noisy):
    def __getitem__(self, index: int) -> dict[str, Any]:
        return {**super().__getitem__(index), "f": (lambda: 0) if index == 3 else None}


def steps_before_failure(loader: Any) -> tuple[int, str]:
    done = 0
    try:
        for _ in batches_of(loader):
            done += 1
    except SampleError as error:
        return done, str(error)
    return done, "none"


@pytest.mark.usefixtures("in_process")
class TestFailures:
    @pytest.mark.parametrize("world_size", [1, 2])
    @pytest.mark.parametrize("prefetch_factor", [1, 4])
    @pytest.mark.parametrize("seed", range(6))
    def test_a_sample_that_fails_does_so_in_the_step_that_needs_it(self, world_size, prefetch_factor, seed) -> None:
        for rank in range(world_size):
            datasets = [Noisy(0, 20), Failing(1, 11), Noisy(2, 6)]
            fields = {"datasets": datasets, "policy": Wandering(seed), "micro_batch_size": 4}
            ahead = make_loader(2, rank, world_size, prefetch_factor=prefetch_factor, **fields)
            plain = make_loader(0, rank, world_size, **fields)
            (mine, message), (theirs, expected) = steps_before_failure(ahead), steps_before_failure(plain)
            assert mine == theirs
            assert message.split("\n")[0] == expected

    def test_the_traceback_of_the_worker_is_told(self) -> None:
        _, message = steps_before_failure(make_loader(2, datasets=[Noisy(0, 20), Failing(1, 11)], micro_batch_size=4))
        assert "In worker 0:\nTraceback" in message
        assert 'raise OSError("disk on fire")' in message

    def test_a_sample_that_cannot_be_sent_is_named(self) -> None:
        datasets = [Noisy(0, 20), Unpicklable(1, 11)]
        _, message = steps_before_failure(make_loader(2, datasets=datasets, micro_batch_size=4))
        assert message.startswith("worker 0 could not send stream 's1', samples [3]")

    def test_a_sample_that_fails_but_is_never_needed_harms_nobody(self) -> None:
        loader = make_loader(2, datasets=[Noisy(0, 20), Failing(1, 11)], prefetch_factor=4)
        for batch in batches_of(loader, 12):
            assert batch.plan.step <= 12
            loader.mixing.set_weights([1, 0])
