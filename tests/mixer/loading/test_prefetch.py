from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mixer import Fixed, Uniform
from mixer.loading.loader import MixingLoader
from mixer.loading.reader import SampleError
from tests.mixer.loaders import (
    Counted,
    Failing,
    InProcess,
    Noisy,
    Wandering,
    batches_of,
    contents,
    make_loader,
    num_own,
    stacking_collator,
)


@pytest.fixture(autouse=True, scope="module")
def in_process() -> Iterator[None]:
    """Workers whose jobs are loaded in this process, one after the other."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mixer.loading.workers.DataLoader", InProcess)
        patch.setattr("mixer.loading.workers.get_worker_info", lambda: InProcess.worker)
        yield


def hits_and_misses(loader: MixingLoader, limit: int = 10_000) -> list[tuple[int, int]]:
    return [loader.hits_and_misses for _ in batches_of(loader, limit)]


def pool_of(loader: Any) -> Any:
    return loader._prefetcher._pool


class TestSamples:
    @settings(max_examples=25)
    @given(
        options=st.fixed_dictionaries(
            {
                "policy": st.integers(0, 99).map(Wandering),
                "world_size": st.integers(1, 4),
                "batch_size": st.integers(1, 30),
                "micro_batch_size": st.integers(1, 9),
            }
        ),
        workers=st.fixed_dictionaries(
            {
                "num_workers": st.integers(1, 3),
                "prefetch_factor": st.integers(1, 4),
                "persistent_workers": st.booleans(),
            }
        ),
        by_stream=st.booleans(),
        rank=st.integers(0, 99),
    )
    def test_whatever_is_predicted_they_are_those_without_workers(
        self, options: dict[str, Any], workers: dict[str, Any], by_stream: bool, rank: int
    ) -> None:
        options = {**options, "rank": rank % options["world_size"], "num_epochs": 2}
        ahead, plain = make_loader(**options, **workers), make_loader(**options)
        ahead.by_stream = plain.by_stream = by_stream
        for mine, theirs in zip(batches_of(ahead, 12), batches_of(plain, 12), strict=True):
            assert contents(mine) == contents(theirs)
            assert mine.plan.staleness == 0
            assert sum(ahead.hits_and_misses) == num_own(mine)
            assert plain.hits_and_misses == (0, 0)

    def test_weights_set_by_hand_rule_at_once(self) -> None:
        found = []
        for num_workers in (2, 0):
            loader, batches = make_loader(num_workers), []
            for batch in batches_of(loader, 8):
                batches.append(contents(batch))
                if len(batches) == 3:
                    loader.mixing.set_weights({"s0": 0, "s1": 0, "s2": 1})
            found.append(batches)
        assert found[0] == found[1]

    def test_a_step_can_be_loaded_anew_by_stream(self) -> None:
        loaders, found = (make_loader(2), make_loader(0)), []
        for loader in loaders:
            batch = loader.next_batch()
            loader.by_stream = True
            found.append(contents(loader.load(batch.plan)))
        assert found[0] == found[1]
        assert loaders[0].hits_and_misses == (0, 9)


class TestHits:
    @pytest.mark.parametrize(("world_size", "by_stream", "num_jobs"), [(1, False, 8), (1, True, 1), (3, True, 2)])
    def test_with_constant_weights_all_but_the_first_step_hit(
        self, world_size: int, by_stream: bool, num_jobs: int
    ) -> None:
        for rank in range(world_size):
            policy = Fixed([3.0, 2.0, 1.3])
            loader = make_loader(num_jobs, rank, world_size, policy=policy, prefetch_factor=1, persistent_workers=True)
            loader.by_stream = by_stream
            first, *others = hits_and_misses(loader)
            assert first[0] == 0
            assert {misses for _, misses in others} == {0}

    def test_workers_that_end_with_an_epoch_begin_anew_with_the_next(self) -> None:
        found = hits_and_misses(make_loader(2, policy=Uniform()))
        assert [hits == 0 for hits, _ in found] == [step % 5 == 0 for step in range(20)]
        assert all(misses == 0 for hits, misses in found if hits)

    def test_they_are_the_same_in_every_repetition(self) -> None:
        runs = [hits_and_misses(make_loader(2, 1, 2, policy=Wandering(), persistent_workers=True)) for _ in range(2)]
        assert runs[0] == runs[1]
        assert all(any(found) for found in zip(*runs[0][1:], strict=True))  # some of both


class TestWork:
    """What is loaded, and how much of it is kept."""

    @pytest.mark.parametrize(
        ("policy", "rank", "world_size", "most_read"),
        [
            (Uniform(), 0, 1, lambda num_different: num_different),  # none is loaded twice
            (Wandering(), 0, 1, lambda num_different: 1.05 * num_different),
            (Uniform(), 1, 3, lambda _: 300 * 3 + 9 * 5),  # what others train on only where counts change
            (Wandering(), 0, 3, lambda _: 300 * 9),
        ],
    )
    def test_what_is_loaded_and_kept_is_bounded(self, policy: Any, rank: int, world_size: int, most_read: Any) -> None:
        datasets = [Counted(k, 10**6) for k in range(3)]
        options = {"datasets": datasets, "collator": stacking_collator, "persistent_workers": True}
        loader = make_loader(2, rank, world_size, policy=policy, **options)
        sizes = [len(pool_of(loader)) for _ in batches_of(loader, 300)]
        read = [(data.stream_id, index) for data in datasets for index in data.read]
        assert len(read) <= most_read(len(set(read)))
        most_of_a_stream = 9 * (2 * 2 + 2)  # it may be predicted to be all of each step that is looked ahead to
        assert max(sizes) <= 3 * most_of_a_stream
        assert max(sizes[150:]) <= max(sizes[:150]) + 9

    @pytest.mark.parametrize("persistent", [False, True])
    def test_nothing_is_loaded_beyond_the_end_of_the_run(self, persistent: bool) -> None:
        options = {"datasets": [data := Counted(0, 20)], "collator": stacking_collator, "num_epochs": 2}
        list(batches_of(make_loader(2, prefetch_factor=4, persistent_workers=persistent, **options)))
        assert sorted(data.read) == sorted([*range(20)] * 2)


def steps_before_failure(loader: MixingLoader) -> tuple[int, str]:
    done = 0
    try:
        for _ in batches_of(loader):
            done += 1
    except SampleError as error:
        return done, str(error)
    return done, "none"


class TestFailures:
    @pytest.mark.parametrize(("world_size", "prefetch_factor"), [(1, 4), (2, 1)])
    @pytest.mark.parametrize("seed", range(3))
    def test_a_sample_that_fails_does_so_in_the_step_that_needs_it(
        self, world_size: int, prefetch_factor: int, seed: int
    ) -> None:
        for rank in range(world_size):
            datasets = [Noisy(0, 20), Failing(1, 11), Noisy(2, 6)]
            fields = {"datasets": datasets, "policy": Wandering(seed), "micro_batch_size": 4}
            ahead = make_loader(2, rank, world_size, prefetch_factor=prefetch_factor, **fields)
            mine, message = steps_before_failure(ahead)
            assert (mine, message.split("\n")[0]) == steps_before_failure(make_loader(0, rank, world_size, **fields))

    def test_a_sample_that_fails_but_is_never_needed_harms_nobody(self) -> None:
        loader = make_loader(2, datasets=[Noisy(0, 20), Failing(1, 11)], prefetch_factor=4)
        for _ in batches_of(loader, 12):
            loader.mixing.set_weights(np.array([1, 0]))
