from collections.abc import Iterator
from typing import Any

import datasets
import pytest
import torch.utils.data

from mixer.mixture.stream import Stream
from mixer.mixture.streams import as_streams, describe
from tests.refusals import refused

NAN, INF = float("nan"), float("inf")


class Endless(torch.utils.data.IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        yield 0


class WithoutLength:
    def __getitem__(self, index: int) -> int:
        return index


class WithoutItems:
    def __len__(self) -> int:
        return 3


TEN = range(10)


class TestStream:
    @pytest.mark.parametrize(
        ("option", "values", "error"),
        [
            ("dataset", [[], datasets.Dataset.from_dict({})], ValueError),
            ("dataset", [iter([1]), (number for number in TEN)], TypeError),
            ("dataset", [WithoutLength(), WithoutItems(), None], TypeError),
            ("weight", [-1.0, NAN, INF], ValueError),
            ("max_epochs", [0, -1, 0.04, NAN, INF], ValueError),
            ("enters_at", [0.5, -0.1, NAN], ValueError),
            ("leaves_at", [True, "late"], TypeError),
        ],
    )
    def test_what_is_no_stream_is_refused(self, option: str, values: list[Any], error: type[Exception]) -> None:
        more = {"leaves_at": 0.5} if option == "enters_at" else {}
        for value in values:
            with refused(option, kind=error, stream="a"):
                Stream(**{"name": "a", "dataset": TEN, option: value, **more})

    @pytest.mark.parametrize(
        ("fields", "option"),
        [
            *[({"name": name}, "name") for name in (" \n", None)],
            *[({"dataset": Endless(), "max_epochs": most}, "max_epochs") for most in (0, 1.5, INF)],
            ({"leaves_at": 1.1}, "enters_at"),
        ],
    )
    def test_what_does_not_fit_together_is_refused(self, fields: dict[str, Any], option: str) -> None:
        with refused(option):
            Stream(**{"name": "a", "dataset": TEN, **fields})

    def test_nobody_knows_how_long_an_iterable_data_set_is(self) -> None:
        for dataset in (Endless(), datasets.Dataset.from_dict({"x": [1, 2]}).to_iterable_dataset()):
            stream = Stream("a", dataset, max_epochs=2)
            assert (stream.is_iterable, stream.num_samples, stream.end) == (True, 0, None)

    @pytest.mark.parametrize(("max_epochs", "expected"), [(1, 10), (2.5, 25), (0.1, 1), (1.04, 10), (None, None)])
    def test_max_epochs_in_samples(self, max_epochs: float | None, expected: int | None) -> None:
        stream = Stream("a", TEN, max_epochs=max_epochs)
        assert (stream.num_samples, stream.end) == (10, expected)


class TestOrderKey:
    def test_it_is_a_signed_word_that_depends_on_seed_and_name(self) -> None:
        keys = {Stream(name, [1]).order_key(seed) for name in ("a", "b", "c") for seed in range(20)}
        assert len(keys) == 60
        assert all(-(2**63) <= key < 2**63 for key in keys)
        assert Stream("a", [1]).order_key(42) == -7124130737085381230  # in every process

    def test_a_seed_of_its_own_rules(self) -> None:
        assert Stream("a", [1], seed=3).order_key(0) == Stream("b", [1], seed=3).order_key(9)
        assert Stream("a", [1], seed=3).order_key(0) != Stream("a", [1], seed=4).order_key(0)


FIRST, SECOND, DATA = Stream("a", [1]), Stream("b", [1]), datasets.Dataset.from_dict({"x": [1, 2]})


class TestAsStreams:
    @pytest.mark.parametrize(
        ("given", "expected"),
        [
            ({"b": range(3), "a": range(4)}, [("b", 3), ("a", 4)]),
            (datasets.DatasetDict({"math": DATA, "code": DATA}), [("math", 2), ("code", 2)]),
            ([FIRST, SECOND], [("a", 1), ("b", 1)]),
            (FIRST, [("a", 1)]),
            (range(5), [("train", 5)]),
            ([1, 2], [("train", 2)]),
            ({"train": [1]}, [("train", 1)]),
        ],
    )
    def test_names_and_order_are_kept(self, given: Any, expected: list[tuple[str, int]]) -> None:
        assert [(stream.name, stream.num_samples) for stream in as_streams(given)] == expected

    def test_streams_in_a_mapping_take_its_names_and_keep_the_rest(self) -> None:
        (stream,) = as_streams({"new": Stream("old", range(3), max_epochs=2, seed=5)})
        assert (stream.name, stream.max_epochs, stream.seed) == ("new", 2, 5)

    @pytest.mark.parametrize(
        ("given", "error", "option"),
        [
            ([FIRST, Stream("a", [2]), SECOND], ValueError, "name"),
            ({}, ValueError, "train_dataset"),
            ([], ValueError, "dataset"),
            ({"first": [1], "second": []}, ValueError, "dataset"),
            ([FIRST, [1, 2]], TypeError, "train_dataset"),
            ({"train": [1], "validation": [1], "test": [1]}, ValueError, "train_dataset"),
            ({"validation": [1], "dev": [1]}, ValueError, "train_dataset"),
            ({"train": [1], "test": [1], "unsupervised": [1]}, ValueError, "train_dataset"),
            ([Stream("a", [1], weight=1.0), SECOND], ValueError, "weight"),
            ([Stream(name, [1], weight=0.0) for name in "ab"], ValueError, "weight"),
        ],
    )
    def test_what_is_no_mixture_is_refused(self, given: Any, error: type[Exception], option: str) -> None:
        with refused(option, kind=error):
            as_streams(given)


def test_weights_are_normalised_and_uniform_without_any() -> None:
    mixture = describe([Stream("a", range(3), weight=3.0), Stream("b", range(5), weight=1.0)])
    assert mixture.names == ("a", "b")
    assert mixture.num_samples.tolist() == [3, 5]
    assert mixture.weights.tolist() == [0.75, 0.25]
    assert describe([Stream(name, range(3)) for name in "abcd"]).weights.tolist() == [0.25] * 4
