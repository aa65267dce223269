import datasets
import numpy as np
import pytest
import torch.utils.data

from mixer.mixture.stream import Stream, as_streams, describe


class Numbers(torch.utils.data.Dataset):
    def __init__(self, length: int):
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        return index


class Endless(torch.utils.data.IterableDataset):
    def __iter__(self):
        yield 0


class WithoutLength:
    def __getitem__(self, index: int) -> int:
        return index


class WithoutItems:
    def __len__(self) -> int:
        return 3


def streaming() -> datasets.IterableDataset:
    return datasets.Dataset.from_dict({"x": [1, 2]}).to_iterable_dataset()


class TestStream:
    @pytest.mark.parametrize("name", ["", "   ", "\n", None, 3])
    def test_a_name_must_say_something(self, name: object) -> None:
        with pytest.raises(ValueError, match="name must be a non-empty string"):
            Stream(name, [1])

    def test_a_name_must_not_split_log_keys(self) -> None:
        with pytest.raises(ValueError, match=r"'a/b' must not contain '/'"):
            Stream("a/b", [1])

    @pytest.mark.parametrize("dataset", [[], Numbers(0), datasets.Dataset.from_dict({"x": []})])
    def test_an_empty_data_set_is_refused(self, dataset: object) -> None:
        with pytest.raises(ValueError, match="'a': the dataset is empty"):
            Stream("a", dataset)

    @pytest.mark.parametrize("dataset", [Endless(), streaming()], ids=["torch", "datasets"])
    def test_nobody_knows_how_long_an_iterable_data_set_is(self, dataset: object) -> None:
        stream = Stream("a", dataset, max_epochs=2)
        assert (stream.is_iterable, stream.num_samples, stream.max_samples) == (True, 0, None)

    @pytest.mark.parametrize("max_epochs", [0, 0.5, 1.5, -1, float("inf"), float("nan")])
    def test_an_iterable_data_set_is_read_in_whole_passes(self, max_epochs: float) -> None:
        with pytest.raises(ValueError, match="'a': max_epochs of an iterable dataset must be a whole number"):
            Stream("a", Endless(), max_epochs=max_epochs)

    @pytest.mark.parametrize("dataset", [iter([1]), (number for number in range(3))])
    def test_an_iterator_is_refused_with_the_way_out(self, dataset: object) -> None:
        with pytest.raises(TypeError, match=r"'a': an iterator can be read only once.*from_generator"):
            Stream("a", dataset)

    @pytest.mark.parametrize("dataset", [WithoutLength(), WithoutItems(), None, 5])
    def test_a_data_set_needs_length_and_items(self, dataset: object) -> None:
        message = f"'a': a dataset needs __len__ and __getitem__, or __iter__ alone; {type(dataset).__name__}"
        with pytest.raises(TypeError, match=message):
            Stream("a", dataset)

    @pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf")])
    def test_a_weight_must_be_one(self, weight: float) -> None:
        with pytest.raises(ValueError, match="'a': weight must be a finite number of 0 or more"):
            Stream("a", [1], weight=weight)

    @pytest.mark.parametrize("max_epochs", [0, -1, 0.04, float("nan"), float("inf")])
    def test_max_epochs_must_leave_a_sample(self, max_epochs: float) -> None:
        with pytest.raises(ValueError, match="'a': max_epochs must leave at least one of its 10 samples"):
            Stream("a", range(10), max_epochs=max_epochs)

    @pytest.mark.parametrize(("max_epochs", "expected"), [(1, 10), (2.5, 25), (0.1, 1), (1.04, 10), (None, None)])
    def test_max_epochs_in_samples(self, max_epochs: float | None, expected: int | None) -> None:
        assert Stream("a", range(10), max_epochs=max_epochs).max_samples == expected

    @pytest.mark.parametrize(
        ("enters_at", "leaves_at"), [(0.5, 0.5), (0.6, 0.4), (-0.1, 1.0), (0.0, 1.1), (float("nan"), 1.0)]
    )
    def test_it_must_be_there_for_a_while(self, enters_at: float, leaves_at: float) -> None:
        with pytest.raises(ValueError, match="'a': 0 <= enters_at < leaves_at <= 1 must hold"):
            Stream("a", [1], enters_at=enters_at, leaves_at=leaves_at)

    def test_its_size_is_that_of_the_data_set(self) -> None:
        assert Stream("a", Numbers(12)).num_samples == 12


class TestOrderKey:
    def test_it_depends_on_seed_and_name(self) -> None:
        keys = {Stream(name, [1]).order_key(seed) for name in ("a", "b", "c") for seed in range(5)}
        assert len(keys) == 15

    def test_a_seed_of_its_own_rules(self) -> None:
        assert Stream("a", [1], seed=3).order_key(0) == Stream("b", [1], seed=3).order_key(9)
        assert Stream("a", [1], seed=3).order_key(0) != Stream("a", [1], seed=4).order_key(0)

    def test_it_is_the_same_in_every_process(self) -> None:
        assert Stream("a", [1]).order_key(42) == -7124130737085381230

    def test_it_is_a_signed_word(self) -> None:
        assert all(-(2**63) <= Stream("a", [1]).order_key(seed) < 2**63 for seed in range(50))


class TestAsStreams:
    def test_a_mapping_keeps_names_and_order(self) -> None:
        streams = as_streams({"b": range(3), "a": range(4)})
        assert [(stream.name, stream.num_samples) for stream in streams] == [("b", 3), ("a", 4)]

    def test_a_dataset_dict_is_a_mapping(self) -> None:
        data = datasets.Dataset.from_dict({"x": [1, 2]})
        assert [s.name for s in as_streams(datasets.DatasetDict({"math": data, "code": data}))] == ["math", "code"]

    def test_streams_in_a_mapping_take_its_names_and_keep_the_rest(self) -> None:
        (stream,) = as_streams({"new": Stream("old", range(3), max_epochs=2, seed=5)})
        assert (stream.name, stream.max_epochs, stream.seed) == ("new", 2, 5)

    def test_a_list_of_streams_and_a_single_one(self) -> None:
        first, second = Stream("a", [1]), Stream("b", [1])
        assert as_streams([first, second]) == [first, second]
        assert as_streams(first) == [first]

    @pytest.mark.parametrize("dataset", [range(5), [1, 2], Numbers(3)])
    def test_one_data_set_becomes_one_stream(self, dataset: object) -> None:
        assert [stream.name for stream in as_streams(dataset)] == ["train"]

    def test_names_that_occur_twice_are_refused(self) -> None:
        with pytest.raises(ValueError, match=r"\['a'\] occur more than once"):
            as_streams([Stream("a", [1]), Stream("a", [2]), Stream("b", [3])])

    def test_no_stream_is_refused(self) -> None:
        with pytest.raises(ValueError, match="has no streams"):
            as_streams({})

    def test_an_empty_list_is_refused(self) -> None:
        with pytest.raises(ValueError, match="the dataset is empty"):
            as_streams([])

    def test_a_list_of_streams_holds_nothing_else(self) -> None:
        with pytest.raises(TypeError, match=r"train_dataset\[1\] must be a Stream like the first entry, got list"):
            as_streams([Stream("a", [1]), [1, 2]])

    @pytest.mark.parametrize("names", [("train", "test"), ("train", "validation", "test"), ("validation", "dev")])
    def test_the_splits_of_one_data_set_are_refused(self, names: tuple[str, ...]) -> None:
        with pytest.raises(ValueError, match="look like the splits of one dataset"):
            as_streams({name: [1] for name in names})

    def test_one_split_alone_is_taken(self) -> None:
        assert [stream.name for stream in as_streams({"train": [1]})] == ["train"]

    def test_weights_are_given_to_all_or_none(self) -> None:
        with pytest.raises(ValueError, match=r"these have none: \['b'\]"):
            as_streams([Stream("a", [1], weight=1.0), Stream("b", [1])])

    def test_not_all_weights_are_zero(self) -> None:
        with pytest.raises(ValueError, match="weights of all streams are 0"):
            as_streams([Stream("a", [1], weight=0.0), Stream("b", [1], weight=0.0)])

    def test_the_empty_data_set_of_a_mapping_is_named(self) -> None:
        with pytest.raises(ValueError, match="'second'"):
            as_streams({"first": [1], "second": []})


class TestDescribe:
    def test_weights_are_normalised(self) -> None:
        mixture = describe([Stream("a", range(3), weight=3.0), Stream("b", range(5), weight=1.0)])
        assert mixture.names == ("a", "b")
        assert mixture.num_samples.tolist() == [3, 5]
        assert mixture.weights.tolist() == [0.75, 0.25]

    def test_without_weights_they_are_uniform(self) -> None:
        mixture = describe([Stream(name, range(3)) for name in "abcd"])
        np.testing.assert_array_equal(mixture.weights, np.full(4, 0.25))
