import itertools
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from mixer import Fixed, Uniform
from mixer.loading.reader import SampleError
from tests.mixer.loaders import (
    Failing,
    Noisy,
    Numbers,
    Unpicklable,
    Wandering,
    batches_of,
    contents,
    make_loader,
    split,
    stacking_collator,
)

pytestmark = pytest.mark.usefixtures("in_process")


def hits_and_misses(loader: Any) -> list[tuple[int, int]]:
    return [loader.hits_and_misses for _ in batches_of(loader)]


@settings(max_examples=25)
@given(
    world_size=st.integers(1, 4),
    sizes=st.fixed_dictionaries({"batch_size": st.integers(1, 30), "micro_batch_size": st.integers(1, 9)}),
    policy=st.integers(0, 99).map(Wandering),
    num_workers=st.integers(1, 3),
    prefetch_factor=st.integers(1, 4),
    flags=st.tuples(st.booleans(), st.booleans()),
    data=st.data(),
)
def test_whatever_is_predicted_they_are_those_without_workers(
    world_size, sizes, policy, num_workers, prefetch_factor, flags, data
) -> None:
    rank, (is_persistent, by_stream) = data.draw(st.integers(0, world_size - 1)), flags
    fields = {"rank": rank, "world_size": world_size, "num_epochs": 2, "policy": policy, **sizes}
    ahead = make_loader(num_workers, prefetch_factor=prefetch_factor, persistent_workers=is_persistent, **fields)
    plain = make_loader(**fields)
    for loader in (ahead, plain):
        split(loader, by_stream=by_stream)
    for mine, theirs in zip(batches_of(ahead, 15), batches_of(plain, 15), strict=True):
        assert contents(mine) == contents(theirs)
        assert mine.plan.staleness == 0
        assert sum(ahead.hits_and_misses) == sum(len(m.stream_ids) for m in mine.micro_batches if not m.is_padding)
        assert plain.hits_and_misses == (0, 0)


@pytest.mark.parametrize(
    ("world_size", "by_stream", "num_jobs"), [(1, False, 1), (2, False, 8), (3, True, 2), (5, True, 1)]
)
def test_with_constant_weights_all_but_the_first_step_hit(world_size, by_stream, num_jobs) -> None:
    for rank in range(world_size):
        policy = Fixed([3.0, 2.0, 1.3])
        loader = make_loader(num_jobs, rank, world_size, policy=policy, prefetch_factor=1, persistent_workers=True)
        split(loader, by_stream=by_stream)
        first, *others = hits_and_misses(loader)
        assert first[0] == 0
        assert [misses for _, misses in others] == [0] * len(others)


class TestWork:
    """What is loaded, and how much of it is kept."""

    def loads(
        self, rank: int, world_size: int, length: int = 10**6, **options: Any
    ) -> tuple[list[tuple[int, int]], list[int]]:
        class Counted(Numbers):
            def __getitem__(self, index: int) -> dict[str, Any]:
                read.append((self.stream_id, index))
                return super().__getitem__(index)

        read: list[tuple[int, int]] = []
        options = {"collator": stacking_collator, "persistent_workers": True, **options}
        loader = make_loader(2, rank, world_size, [Counted(k, length) for k in range(3)], **options)
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
        read, _ = self.loads(0, 1, policy=Uniform())
        assert len(read) == len(set(read))
        read, _ = self.loads(1, 3, policy=Uniform())
        assert len(read) <= 200 * 3 + 9 * 5
        for is_persistent in (False, True):  # and nothing beyond the end of the run
            read, _ = self.loads(0, 1, 10, prefetch_factor=4, num_epochs=2, persistent_workers=is_persistent)
            assert sorted(read) == sorted([(k, index) for k in range(3) for index in range(10)] * 2)


class TestFailures:
    def last_words(self, loader: Any) -> tuple[int, str]:
        """How many steps come before a failure, and its first line."""
        steps = batches_of(loader)
        for number in itertools.count():
            try:
                next(steps)
            except (SampleError, StopIteration) as error:
                return number, str(error).split("\n")[0]
        raise AssertionError

    @pytest.mark.parametrize(
        ("world_size", "prefetch_factor", "seed"), [(1, 1, 0), (1, 4, 1), (2, 1, 2), (2, 4, 3), (2, 4, 4), (1, 4, 5)]
    )
    def test_a_sample_that_fails_does_so_in_the_step_that_needs_it(self, world_size, prefetch_factor, seed) -> None:
        for rank in range(world_size):
            datasets = [Noisy(0, 20), Failing(1, 11), Noisy(2, 6)]
            fields = {"datasets": datasets, "policy": Wandering(seed), "micro_batch_size": 4}
            ahead = make_loader(2, rank, world_size, prefetch_factor=prefetch_factor, **fields)
            assert self.last_words(ahead) == self.last_words(make_loader(0, rank, world_size, **fields))

    @pytest.mark.parametrize(
        ("kind", "words"),
        [
            (Failing, r"(?s)Stream 's1': sample 3 .*In worker 0:\nTraceback.*raise OSError\(\"disk on fire\"\)"),
            (Unpicklable, r"^worker 0 could not send stream 's1', samples \[3\]"),
        ],
    )
    def test_it_is_named_with_the_traceback_of_the_worker(self, kind: Any, words: str) -> None:
        loader = make_loader(2, datasets=[Noisy(0, 20), kind(1, 11)], micro_batch_size=4)
        with pytest.raises(SampleError):
            list(batches_of(loader))
        loader.stop()
        loader.mixing.set_weights([1, 0])
        assert loader.next_batch() is not None  # it can be used again
