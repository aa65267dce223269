import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from mixer.loading.collate import collates_without_randomness
from mixer.loading.reader import SampleError, StreamReader, reads_without_randomness
from mixer.mixture.step_plan import StreamShare
from mixer.utils.random_state import RandomState, seeded

# ruff: noqa: NPY002  # the global generators are what this is about


class Data:
    """Samples that are what `answer` makes of their indices."""

    def __init__(self, answer: Callable[[Any], Any] = lambda index: index, length: int = 20):
        self.answer, self.length = answer, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return self.answer(index)


class Batches(Data):
    def __getitems__(self, indices: list[int]) -> Any:
        return [self.answer(index) for index in indices]


class Calls(Data):
    """`answer` is of whole batches."""

    def __getitem__(self, index: int) -> int:
        return index

    def __getitems__(self, indices: list[int]) -> Any:
        return self.answer(indices)


def noisy(index: int) -> tuple[Any, ...]:
    return index, random.random(), np.random.normal(), torch.randn(()).item()


def sometimes_noisy(index: int) -> tuple[int, float]:
    return index, random.random() if index % 5 == 0 else 0.0


def picky(index: int) -> Any:
    drawn = noisy(index)
    if index == 7:
        raise OSError("disk on fire")
    return drawn


def share_of(stream_id: int, positions: Sequence[int]) -> StreamShare:
    """Positions of a stream whose order is 3 p modulo 20."""
    own = np.array(positions, dtype=np.int64)
    return StreamShare(stream_id, own, 3 * own % 20)


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


ROWS = datasets.Dataset.from_dict({"x": list(range(20))})
AUGMENTED = ROWS.with_transform(lambda batch: {"x": [value + random.random() for value in batch["x"]]})
RANDOM = {
    "python": lambda: Data(lambda index: (index, random.random())),
    "numpy": lambda: Data(lambda index: (index, np.random.normal())),
    "torch": lambda: Data(lambda index: (index, torch.randn(()).item())),
    "sometimes": lambda: Data(sometimes_noisy),
    "batches": lambda: Batches(noisy),
    "subset": lambda: Subset(Data(noisy), range(20)),
    "concatenated": lambda: ConcatDataset([Data(noisy, 7), Data(noisy, 13)]),
    "concatenated-transform": lambda: ConcatDataset([AUGMENTED, Data(noisy, 5)]),
}


@pytest.mark.parametrize("make", RANDOM.values(), ids=RANDOM)
class TestRandomSamples:
    @settings(max_examples=5)
    @given(cuts=st.lists(st.integers(1, 29), unique=True).map(sorted), is_backwards=st.booleans())
    def test_they_are_the_same_in_whichever_batches_they_are_read(self, make, cuts, is_backwards) -> None:
        dataset = make()
        edges = [0, *cuts, 30]
        batches = [range(start, stop) for start, stop in itertools.pairwise(edges)]
        found = read(dataset, *(batches[::-1] if is_backwards else batches))
        assert found == read(dataset, range(30)) == read(dataset, *[[position] for position in range(30)])

    def test_they_are_drawn_by_stream_and_position_whatever_the_surrounding_state(self, make, state) -> None:
        dataset = make()
        torch.manual_seed(1)
        random.seed(2)
        np.random.seed(3)
        found = read(dataset, range(30), key=-9)
        state.restore()
        for position, sample in found.items():
            with seeded(-9, position):
                assert sample == dataset[3 * position % 20]
        others = [found[0], found[20], read(dataset, [0], key=2)[0]]  # of another epoch and of another stream
        assert len(set(map(repr, others))) == 3


def test_streams_of_both_kinds_are_read_together() -> None:
    share = [share_of(0, [4, 7]), share_of(1, [3, 5]), share_of(2, [1])]
    reader = StreamReader(["a", "b", "c"], [list(range(20)), Data(noisy), Data()], [1, 2, 3])
    expected = [12, 1, *read(Data(noisy), [3, 5], key=2).values(), 3]
    assert reader.read(share) == expected == reader.read(share)
    assert reader.describe(share[:2]) == "stream 'a', samples [12, 1]; stream 'b', samples [9, 15]"


def test_a_stream_that_turns_random_late_is_seeded_from_then_on_and_no_sample_is_read_twice() -> None:
    calls: list[int] = []
    reader = StreamReader(["s"], [Data(lambda index: calls.append(index) or sometimes_noisy(index))], [5])
    positions = [p for p in range(20) if 3 * p % 5], list(range(20))
    found = [reader.read([share_of(0, batch)]) for batch in positions]
    assert found[1] == list(read(Data(sometimes_noisy), range(20)).values())
    calls.clear()
    reader.read([share_of(0, [2, 3])])
    assert calls == [6, 9]


class TestPlainSamples:
    @pytest.mark.parametrize("make", [list, np.asarray, torch.tensor, tuple])
    def test_they_are_read_in_one_call_as_any_sequence(self, make: Callable[[list[int]], Sequence[int]]) -> None:
        calls: list[list[int]] = []
        dataset = Calls(lambda indices: calls.append(indices) or make(indices))
        assert [int(sample) for sample in read(dataset, [2, 3, 9]).values()] == [6, 9, 7]
        assert calls == [[6, 9, 7]]

    def test_data_sets_and_collators_that_draw_nothing_are_told_apart(self) -> None:
        from transformers import DataCollatorForLanguageModeling, default_data_collator

        tensors = TensorDataset(torch.zeros(3))
        for plain in (ROWS, ROWS.with_format("torch"), ConcatDataset([ROWS, ROWS]), Subset(ROWS, [1]), [1], tensors):
            assert reads_without_randomness(plain)
        custom = ROWS.with_transform(lambda batch: batch)
        for other in (custom, ConcatDataset([ROWS, custom]), Subset(custom, [1]), Data(), type("L", (list,), {})([1])):
            assert not reads_without_randomness(other)
        collator, tokenizer = DataCollatorForLanguageModeling, SimpleNamespace(mask_token="m", pad_token="p")
        masking, plain = collator(tokenizer, mlm=True), collator(tokenizer, mlm=False)
        found = [collates_without_randomness(each) for each in (default_data_collator, plain, masking, list)]
        assert found == [True, True, False, False]


class TestFailures:
    @pytest.mark.parametrize("dataset", [Data(picky), Batches(picky), ConcatDataset([Data(picky)])])
    def test_the_stream_and_the_index_are_named_whether_or_not_it_is_known_to_draw(self, dataset: Any) -> None:
        reader = StreamReader(["good", "bad"], [Data(noisy), dataset], [1, 2])
        for _ in range(2):
            message = "Stream 'bad': sample 7 could not be loaded: OSError: disk on fire"
            with pytest.raises(SampleError, match=message) as error:
                reader.read([share_of(0, [1]), share_of(1, [1, 9, 3])])
            assert isinstance(error.value.__cause__, OSError)
            reader.read([share_of(0, [1]), share_of(1, [1, 3])])

    @pytest.mark.parametrize(
        ("dataset", "message"),
        [
            ([1] * 7, "sample 7 could not be loaded: IndexError"),
            (ConcatDataset([[1] * 7]), "sample 7 could not be loaded: (IndexError|ValueError)"),
            (Calls(lambda indices: 1 // 0), r"one of the samples \[3, 7\] could not be loaded: ZeroDivisionError"),
            (Calls(lambda indices: indices[1:]), "__getitems__ returned 1 samples for 2 indices"),
        ],
    )
    def test_of_plain_samples_and_whole_batches_too(self, dataset: Any, message: str) -> None:
        with pytest.raises(SampleError, match=f"'s': {message}"):
            read(dataset, [1, 9])


class Columns(Data):
    def __init__(self, **widths: int):
        super().__init__()
        self.widths = widths

    def read_columns(self, indices: np.ndarray) -> dict[str, torch.Tensor]:
        if 7 in indices:
            raise OSError("disk on fire")
        columns = {name: torch.zeros(len(indices), width) for name, width in self.widths.items()}
        return {"x": torch.from_numpy(indices), **columns}


class TestColumns:
    def test_they_are_read_stream_after_stream(self) -> None:
        reader = StreamReader(["a", "b"], [Columns(y=2)] * 2, [1, 2])
        columns = reader.read_columns([share_of(0, [1, 2]), share_of(1, [4])])
        assert reader.has_columns
        assert columns["x"].tolist() == [3, 6, 12]
        assert columns["y"].shape == (3, 2)
        assert not StreamReader(["a", "b"], [Columns(), Data()], [1, 2]).has_columns

    @pytest.mark.parametrize(("other", "stack"), [(Columns(y=2), True), (Columns(y=3), False), (Columns(), False)])
    def test_streams_whose_columns_differ_are_read_sample_by_sample(self, other: Any, stack: bool) -> None:
        assert StreamReader(["a", "b"], [Columns(y=2), other], [1, 2]).has_columns == stack

    def test_what_fails_or_does_not_fit_together_is_named(self) -> None:
        unfit = r"columns of the streams \['a', 'b'\] cannot be stacked"
        broken = r"Stream 'b': .*\[7\] could not be loaded: OSError: disk on fire"
        for other, position, message in ((Columns(y=2), 9, broken), (Columns(), 1, unfit), (Columns(y=3), 1, unfit)):
            reader = StreamReader(["a", "b"], [Columns(y=2), other], [1, 2])
            with pytest.raises(SampleError, match=message):
                reader.read_columns([share_of(0, [1]), share_of(1, [position])])


def test_a_data_set_that_hides_its_drawing_is_seeded_if_the_stream_says_so() -> None:
    def draw(index: int) -> float:
        with torch.random.fork_rng(devices=[]):  # puts the generator back
            return float(torch.rand(()))

    reader = StreamReader(["a"], [Data(draw)], [5], [True])
    together = reader.read([share_of(0, range(4))])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(99)
        alone = [reader.read([share_of(0, [place])])[0] for place in range(4)]
    assert together == alone
    assert len(set(together)) == 4
    unseeded = StreamReader(["a"], [Data(draw)], [5], [False]).read([share_of(0, range(4))])
    assert len(set(unseeded)) == 1  # it says that it draws nothing
