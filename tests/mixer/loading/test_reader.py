import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from mixer.loading.reader import SampleError, StreamReader, collates_without_randomness, reads_without_randomness
from mixer.mixture.cursors import StreamShare
from mixer.utils.random_state import RandomState, seeded

# ruff: noqa: NPY002  # the global generators are what this is about


class Plain:
    def __init__(self, length: int = 20):
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return index


class Noisy(Plain):
    """Samples with a number of each generator."""

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        return index, random.random(), np.random.normal(), torch.randn(()).item()


class SometimesNoisy(Plain):
    def __getitem__(self, index: int) -> Any:
        return (index, random.random()) if index % 5 == 0 else (index, 0.0)


class Picky(Noisy):
    def __getitem__(self, index: int) -> Any:
        drawn = super().__getitem__(index)
        if index == 7:
            raise OSError("disk on fire")
        return drawn


def only(generator: Callable[[], Any]) -> Plain:
    class Drawing(Plain):
        def __getitem__(self, index: int) -> Any:
            return index, generator()

    return Drawing()


def augmented() -> datasets.Dataset:
    rows = datasets.Dataset.from_dict({"x": list(range(20))})
    return rows.with_transform(lambda batch: {"x": [value + random.random() for value in batch["x"]]})


def share_of(stream_id: int, positions: Sequence[int]) -> StreamShare:
    """Positions of a stream whose order is 3 p modulo 20."""
    own = np.array(positions, dtype=np.int64)
    return StreamShare(stream_id, own, 3 * own % 20)


def read(dataset: Any, *batches: Sequence[int], key: int = 5) -> dict[int, Any]:
    reader = StreamReader(["s"], [dataset], [key])
    return {
        position: sample
        for batch in batches
        for position, sample in zip(batch, reader.read([share_of(0, batch)]), strict=True)
    }


@pytest.fixture(autouse=True)
def state() -> Iterator[RandomState]:
    """What every test but those that draw themselves must leave alone."""
    np.random.normal()
    state = RandomState.capture()
    yield state
    assert state.is_current()


class ByBatches(Plain):
    """Hands out samples of a data set in batches."""

    def __init__(self, dataset: Any):
        super().__init__(len(dataset))
        self.dataset = dataset

    def __getitem__(self, index: int) -> Any:
        return self.dataset[index]

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self.dataset[index] for index in indices]


RANDOM: dict[str, Callable[[], Any]] = {
    "all": Noisy,
    "numpy": lambda: only(np.random.normal),
    "torch": lambda: only(lambda: torch.randn(()).item()),
    "sometimes": SometimesNoisy,
    "batches": lambda: ByBatches(Noisy()),
    "concatenated-transform": lambda: ConcatDataset([augmented(), Subset(Noisy(), range(5))]),
}


@pytest.mark.parametrize("make", RANDOM.values(), ids=RANDOM)
class TestRandomSamples:
    @settings(max_examples=5)
    @given(cuts=st.lists(st.integers(1, 29), unique=True).map(sorted), is_backwards=st.booleans())
    def test_they_are_the_same_in_whichever_batches_they_are_read(
        self, make: Callable[[], Any], cuts: list[int], is_backwards: bool
    ) -> None:
        dataset = make()
        batches = [range(start, stop) for start, stop in itertools.pairwise([0, *cuts, 30])]
        found = read(dataset, *(batches[::-1] if is_backwards else batches))
        assert found == read(dataset, range(30)) == read(dataset, *[[position] for position in range(30)])

    def test_they_are_drawn_by_stream_and_position(self, make: Callable[[], Any], state: RandomState) -> None:
        dataset = make()
        torch.manual_seed(1)  # the surrounding state does not matter
        random.seed(2)
        np.random.seed(3)
        found = read(dataset, range(30), key=-9)
        state.restore()
        for position, sample in found.items():
            with seeded(-9, position):
                assert sample == dataset[3 * position % 20]
        others = [found[0], found[20], read(dataset, [0], key=2)[0]]  # another epoch and another stream have others
        assert len(set(map(repr, others))) == 3


def test_streams_of_both_kinds_are_read_together() -> None:
    share = [share_of(0, [4, 7]), share_of(1, [3, 5]), share_of(2, [1])]
    reader = StreamReader(["a", "b", "c"], [list(range(20)), Noisy(), Plain()], [1, 2, 3])
    expected = [12, 1, *read(Noisy(), [3, 5], key=2).values(), 3]
    assert reader.read(share) == expected
    assert reader.read(share) == expected


class Counting(SometimesNoisy):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[int] = []

    def __getitem__(self, index: int) -> Any:
        self.calls.append(index)
        return super().__getitem__(index)


def test_a_stream_that_turns_random_late_is_seeded_from_then_on_and_nothing_is_read_twice_once_it_is_known() -> None:
    reader = StreamReader(["s"], [dataset := Counting()], [5])
    reader.read([share_of(0, [p for p in range(20) if 3 * p % 5])])
    found = reader.read([share_of(0, range(20))])
    assert found == list(read(SometimesNoisy(), range(20)).values())
    dataset.calls.clear()
    reader.read([share_of(0, [2, 3])])
    assert dataset.calls == [6, 9]


class TestPlainSamples:
    def test_the_generators_are_not_even_looked_at(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(RandomState, "capture", lambda: pytest.fail("looked at"))
        for dataset in (list(range(20)), datasets.Dataset.from_dict({"x": range(20)})):
            assert len(read(dataset, range(10))) == 10
        monkeypatch.undo()

    @pytest.mark.parametrize("make", [list, np.asarray, torch.tensor, tuple])
    def test_they_are_read_in_one_call_to_any_sequence(self, make: Callable[[list[int]], Sequence[int]]) -> None:
        calls: list[list[int]] = []

        class Batches(Plain):
            def __getitems__(self, indices: list[int]) -> Sequence[int]:
                calls.append(indices)
                return make(indices)

        assert [int(sample) for sample in read(Batches(), [2, 3, 9]).values()] == [6, 9, 7]
        assert calls == [[6, 9, 7]]

    def test_a_data_set_that_is_told_apart(self) -> None:
        rows = datasets.Dataset.from_dict({"x": range(20)})
        for plain in (rows, rows.with_format("torch"), ConcatDataset([rows, rows]), Subset(rows, [1]), [1], range(9)):
            assert reads_without_randomness(plain)
        assert reads_without_randomness(TensorDataset(torch.zeros(3)))
        custom = rows.with_transform(lambda batch: batch)
        for other in (custom, ConcatDataset([rows, custom]), Subset(custom, [1]), Plain(), type("L", (list,), {})([1])):
            assert not reads_without_randomness(other)

    def test_collators_that_are_told_apart(self) -> None:
        from transformers import DataCollatorForLanguageModeling, default_data_collator

        class Tokenizer:
            mask_token, pad_token = "m", "p"

        masking = DataCollatorForLanguageModeling(Tokenizer(), mlm=True)
        assert collates_without_randomness(default_data_collator)
        assert collates_without_randomness(DataCollatorForLanguageModeling(Tokenizer(), mlm=False))
        assert not collates_without_randomness(masking)
        assert not collates_without_randomness(lambda samples: samples)


class Whole(Noisy):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        raise MemoryError("too much")


class Short(Noisy):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return indices[1:]


class TestFailures:
    @pytest.mark.parametrize("dataset", [Picky(), ByBatches(Picky()), ConcatDataset([Picky()])])
    @pytest.mark.parametrize("is_known", [False, True])
    def test_the_stream_and_the_index_are_named(self, dataset: Any, is_known: bool) -> None:
        reader = StreamReader(["good", "bad"], [Noisy(), dataset], [1, 2])
        if is_known:
            reader.read([share_of(0, [1]), share_of(1, [1, 3])])
        with pytest.raises(SampleError, match=r"'bad': sample 7 could not be loaded: OSError: disk on fire") as caught:
            reader.read([share_of(0, [1]), share_of(1, [1, 9, 3])])
        assert isinstance(caught.value.__cause__, OSError)

    @pytest.mark.parametrize(
        ("dataset", "message"),
        [
            ([1] * 7, r"sample 7 could not be loaded: (IndexError|ValueError)"),
            (ConcatDataset([[1] * 7]), r"sample 7 could not be loaded: (IndexError|ValueError)"),
            (Whole(), r"one of the samples \[3, 7\] could not be loaded: MemoryError"),
            (Short(), "__getitems__ returned 1 samples for 2 indices"),
        ],
    )
    def test_of_plain_samples_and_of_whole_batches_too(self, dataset: Any, message: str) -> None:
        with pytest.raises(SampleError, match=f"Stream 's': {message}"):
            read(dataset, [1, 9])


def test_the_place_is_where_a_reader_is() -> None:
    places: list[list[int]] = []
    place = np.zeros(2, dtype=np.int64)

    class Looking(Plain):
        def __getitem__(self, index: int) -> int:
            places.append(place.tolist())
            return index

    class LookingBatches(Plain):
        def __getitems__(self, indices: list[int]) -> list[int]:
            places.append(place.tolist())
            return indices

    reader = StreamReader(["a", "b"], [Looking(), LookingBatches()], [1, 2])
    reader.place = place
    reader.read(share := [share_of(0, [1, 2]), share_of(1, [1, 2])])
    assert places == [[0, 3], [0, 6], [1, -1]]
    assert reader.describe_place(0, 6) == "stream 'a', sample 6"
    assert reader.describe_place(1, -1) == "stream 'b', several samples"
    assert reader.describe(share) == "stream 'a', samples [3, 6]; stream 'b', samples [3, 6]"


class Columns(Plain):
    def __init__(self, *shape: int):
        super().__init__()
        self.shape = shape

    def read_columns(self, indices: np.ndarray) -> dict[str, torch.Tensor]:
        if 7 in indices:
            raise OSError("disk on fire")
        columns = {"x": torch.from_numpy(indices), "y": torch.zeros(len(indices), *self.shape)}
        return columns if self.shape else {"x": columns["x"]}


class TestColumns:
    def test_they_are_read_stream_after_stream_where_all_data_sets_have_them(self) -> None:
        reader = StreamReader(["a", "b"], [Columns(2), Columns(2)], [1, 2])
        columns = reader.read_columns([share_of(0, [1, 2]), share_of(1, [4])])
        assert reader.has_columns
        assert columns["x"].tolist() == [3, 6, 12]
        assert columns["y"].shape == (3, 2)
        assert not StreamReader(["a", "b"], [Columns(2), Plain()], [1, 2]).has_columns

    @pytest.mark.parametrize(
        ("other", "positions", "message"),
        [
            (Columns(2), [1, 9], r"Stream 'b': .*\[3, 7\] could not be loaded: OSError: disk on fire"),
            (Columns(), [1], r"columns of the streams \['a', 'b'\] cannot be stacked"),
            (Columns(3), [1], r"columns of the streams \['a', 'b'\] cannot be stacked"),
        ],
    )
    def test_failures_and_what_does_not_fit_together_are_named(
        self, other: Any, positions: list[int], message: str
    ) -> None:
        with pytest.raises(SampleError, match=message):
            StreamReader(["a", "b"], [Columns(2), other], [1, 2]).read_columns(
                [share_of(0, [1]), share_of(1, positions)]
            )


class _Hides:
    """Draws, and puts the generator back."""

    def __len__(self) -> int:
        return 9

    def __getitem__(self, index: int) -> float:
        with torch.random.fork_rng(devices=[]):
            return float(torch.rand(()))


def test_a_data_set_that_hides_its_drawing_is_seeded_if_the_stream_says_so() -> None:
    reader = StreamReader(["a"], [_Hides()], [5], [True])
    together = reader.read([StreamShare(0, range(4), np.arange(4))])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(99)
        alone = [reader.read([StreamShare(0, range(place, place + 1), np.array([place]))])[0] for place in range(4)]
    assert together == alone
    assert len(set(together)) == 4
    unsaid = StreamReader(["a"], [_Hides()], [5], [False])  # is read as it is
    assert len(set(unsaid.read([StreamShare(0, range(4), np.arange(4))]))) == 1
