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


class Rows:
    def __init__(self, get: Callable[[int], Any] = int):
        self.get = get

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> Any:
        return self.get(index)


class Batches(Rows):
    """Hands out samples in batches."""

    def __init__(self, get: Callable[[int], Any] = int, batch: Callable[[list[int]], Any] | None = None):
        super().__init__(get)
        self.batch = batch or (lambda indices: list(map(get, indices)))

    def __getitems__(self, indices: list[int]) -> Any:
        return self.batch(indices)


def noisy(index: int) -> tuple[Any, ...]:
    """A sample with a number of each generator."""
    return index, random.random(), np.random.normal(), torch.randn(()).item()


def sometimes_noisy(index: int) -> tuple[Any, ...]:
    return (index, random.random()) if index % 5 == 0 else (index, 0.0)


def picky(index: int) -> tuple[Any, ...]:
    drawn = noisy(index)
    if index == 7:
        raise OSError("disk on fire")
    return drawn


def augmented() -> datasets.Dataset:
    rows = datasets.Dataset.from_dict({"x": list(range(20))})
    return rows.with_transform(lambda batch: {"x": [value + random.random() for value in batch["x"]]})


def share_of(stream_id: int, positions: Sequence[int]) -> StreamShare:
    """Positions of a stream whose order is 3 p modulo 20."""
    own = np.array(positions, dtype=np.int64)
    return StreamShare(stream_id, own, 3 * own % 20)


def reader_of(*sources: Any, is_random: list[bool] | None = None) -> StreamReader:
    names = ["good", "bad", "other"] if len(sources) > 1 else ["s"]
    numbers = range(1, 1 + len(sources))
    return StreamReader(names[: len(sources)], list(sources), list(numbers), *([is_random] if is_random else []))


def read(dataset: Any, *batches: Sequence[int], key: int = 5) -> dict[int, Any]:
    reader = StreamReader(["s"], [dataset], [key])
    found = [zip(batch, reader.read([share_of(0, batch)]), strict=True) for batch in batches]
    return dict(itertools.chain(*found))


@pytest.fixture(autouse=True)
def state() -> Iterator[RandomState]:
    """What every test but those that draw themselves must leave alone."""
    np.random.normal()
    state = RandomState.capture()
    yield state
    assert state.is_current()


RANDOM: dict[str, Callable[[], Any]] = {
    "all": lambda: Rows(noisy),
    "numpy": lambda: Rows(lambda index: (index, np.random.normal())),
    "torch": lambda: Rows(lambda index: (index, torch.randn(()).item())),
    "sometimes": lambda: Rows(sometimes_noisy),
    "batches": lambda: Batches(noisy),
    "concatenated-transform": lambda: ConcatDataset([augmented(), Subset(Rows(noisy), range(5))]),
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
    reader = reader_of(list(range(20)), Rows(noisy), Rows())
    expected = [12, 1, *read(Rows(noisy), [3, 5], key=2).values(), 3]
    for _ in range(2):
        assert reader.read([share_of(0, [4, 7]), share_of(1, [3, 5]), share_of(2, [1])]) == expected


def test_a_stream_that_turns_random_late_is_seeded_from_then_on_and_nothing_is_read_twice_once_it_is_known() -> None:
    calls: list[int] = []
    reader = StreamReader(["s"], [Rows(lambda index: calls.append(index) or sometimes_noisy(index))], [5])
    reader.read([share_of(0, [p for p in range(20) if 3 * p % 5])])
    found = reader.read([share_of(0, range(20))])
    assert found == list(read(Rows(sometimes_noisy), range(20)).values())
    calls.clear()
    reader.read([share_of(0, [2, 3])])
    assert calls == [6, 9]


def test_a_data_set_that_hides_its_drawing_is_seeded_if_the_stream_says_so() -> None:
    def hidden(index: int) -> float:
        with torch.random.fork_rng(devices=[]):
            return float(torch.rand(()))

    reader = reader_of(Rows(hidden), is_random=[True])
    together = reader.read([share_of(0, range(4))])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(99)
        alone = [reader.read([share_of(0, [place])])[0] for place in range(4)]
    assert together == alone
    assert len(set(together)) == 4
    assert len(set(reader_of(Rows(hidden), is_random=[False]).read([share_of(0, range(4))]))) == 1  # is read as it is


class TestPlainSamples:
    def test_the_generators_are_not_even_looked_at(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(RandomState, "capture", lambda: pytest.fail("looked at"))
        for dataset in (list(range(20)), datasets.Dataset.from_dict({"x": range(20)})):
            assert len(read(dataset, range(10))) == 10
        monkeypatch.undo()

    @pytest.mark.parametrize("make", [list, np.asarray, torch.tensor, tuple])
    def test_they_are_read_in_one_call_to_any_sequence(self, make: Callable[[list[int]], Any]) -> None:
        calls: list[list[int]] = []
        data = Batches(batch=lambda indices: calls.append(indices) or make(indices))
        assert [int(sample) for sample in read(data, [2, 3, 9]).values()] == [6, 9, 7]
        assert calls == [[6, 9, 7]]

    def test_data_sets_and_collators_that_are_told_apart(self) -> None:
        from transformers import DataCollatorForLanguageModeling, default_data_collator

        class Tokenizer:
            mask_token, pad_token = "m", "p"

        rows = datasets.Dataset.from_dict({"x": range(20)})
        for plain in (rows, rows.with_format("torch"), ConcatDataset([rows, rows]), Subset(rows, [1]), [1], range(9)):
            assert reads_without_randomness(plain)
        assert reads_without_randomness(TensorDataset(torch.zeros(3)))
        custom = rows.with_transform(lambda batch: batch)
        for other in (custom, ConcatDataset([rows, custom]), Subset(custom, [1]), Rows(), type("L", (list,), {})([1])):
            assert not reads_without_randomness(other)
        for is_masking in (True, False):
            collator = DataCollatorForLanguageModeling(Tokenizer(), mlm=is_masking)
            assert collates_without_randomness(collator) != is_masking
        assert collates_without_randomness(default_data_collator)
        assert not collates_without_randomness(lambda samples: samples)


def too_much(indices: list[int]) -> list[Any]:
    raise MemoryError("too much")


class TestFailures:
    @pytest.mark.parametrize("dataset", [Rows(picky), Batches(picky), ConcatDataset([Rows(picky)])])
    @pytest.mark.parametrize("is_known", [False, True])
    def test_the_stream_and_the_index_are_named(self, dataset: Any, is_known: bool) -> None:
        reader = reader_of(Rows(noisy), dataset)
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
            (Batches(noisy, too_much), r"one of the samples \[3, 7\] could not be loaded: MemoryError"),
            (Batches(noisy, lambda indices: indices[1:]), "__getitems__ returned 1 samples for 2 indices"),
        ],
    )
    def test_of_plain_samples_and_of_whole_batches_too(self, dataset: Any, message: str) -> None:
        with pytest.raises(SampleError, match=f"Stream 's': {message}"):
            read(dataset, [1, 9])


def test_the_place_is_where_a_reader_is() -> None:
    places: list[list[int]] = []
    place = np.zeros(2, dtype=np.int64)

    def look(wanted: Any) -> Any:
        places.append(place.tolist())
        return wanted

    reader = reader_of(Rows(look), Batches(batch=look))
    reader.place = place
    reader.read(share := [share_of(0, [1, 2]), share_of(1, [1, 2])])
    assert places == [[0, 3], [0, 6], [1, -1]]
    assert reader.describe_place(0, 6) == "stream 'good', sample 6"
    assert reader.describe_place(1, -1) == "stream 'bad', several samples"
    assert reader.describe(share) == "stream 'good', samples [3, 6]; stream 'bad', samples [3, 6]"


class Columns(Rows):
    def __init__(self, **widths: int):
        super().__init__()
        self.widths = widths

    def read_columns(self, indices: np.ndarray) -> dict[str, torch.Tensor]:
        if 7 in indices:
            raise OSError("disk on fire")
        others = {name: torch.zeros(len(indices), width) for name, width in self.widths.items()}
        return {"x": torch.from_numpy(indices), **others}


class TestColumns:
    def test_they_are_read_stream_after_stream_where_all_data_sets_have_them(self) -> None:
        reader = reader_of(Columns(y=2), Columns(y=2))
        columns = reader.read_columns([share_of(0, [1, 2]), share_of(1, [4])])
        assert reader.has_columns
        assert columns["x"].tolist() == [3, 6, 12]
        assert columns["y"].shape == (3, 2)
        assert not reader_of(Columns(y=2), Rows()).has_columns

    @pytest.mark.parametrize(
        ("other", "positions", "message"),
        [
            (Columns(y=2), [1, 9], r"Stream 'bad': .*\[3, 7\] could not be loaded: OSError: disk on fire"),
            (Columns(), [1], r"columns of the streams \['good', 'bad'\] cannot be stacked"),
            (Columns(y=3), [1], r"columns of the streams \['good', 'bad'\] cannot be stacked"),
        ],
    )
    def test_failures_and_what_does_not_fit_together_are_named(
        self, other: Any, positions: list[int], message: str
    ) -> None:
        share = [share_of(0, [1]), share_of(1, positions)]
        with pytest.raises(SampleError, match=message):
            reader_of(Columns(y=2), other).read_columns(share)
