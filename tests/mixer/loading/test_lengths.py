from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from transformers import Trainer

from mixer import LossChange, MixingTrainer, Stream, Uniform
from mixer.loading.batching import MicroBatchCap, MicroBatchOptions, Splitting, split_by_tokens
from mixer.loading.collate import Collation, Loaded, Samples
from mixer.loading.lengths import Lengths, deal_by_length, sort_by_length
from mixer.loading.loaded_step import StepBatch
from mixer.loading.loader import MixingLoader
from mixer.loading.reader import SampleError
from mixer.mixture.clock import Budget, Clock
from mixer.mixture.controller import Mixing
from mixer.mixture.planner import Planner
from mixer.mixture.resolve import check_micro_batch
from mixer.mixture.step_plan import StreamShare
from tests.helpers import InOrder, arguments, build_model
from tests.mixer.loaders import quick_and_full, split
from tests.mixer.trainer.runs import gradients_of, make
from tests.refusals import refused

lengths_lists = st.lists(st.integers(1, 50), min_size=1, max_size=60)


def _ids(lengths: list[int]) -> np.ndarray:
    return np.sort(np.arange(len(lengths)) % 3)


@given(lengths=lengths_lists)
def test_the_order_is_from_long_to_short_by_stream_or_not_and_equal_lengths_stay_in_order(lengths: list[int]) -> None:
    ids, places = _ids(lengths), range(len(lengths))
    order, by_stream = (sort_by_length(ids, np.array(lengths), is_by_stream=is_alone) for is_alone in (False, True))
    assert order.tolist() == sorted(places, key=lambda place: -lengths[place])
    assert by_stream.tolist() == sorted(places, key=lambda place: (ids[place], -lengths[place]))


@given(lengths=lengths_lists, world_size=st.integers(1, 5), max_samples=st.integers(1, 9), by_stream=st.booleans())
def test_ranks_are_dealt_each_sample_once_in_as_many_micro_batches(lengths, world_size, max_samples, by_stream) -> None:
    ids, values = _ids(lengths), np.array(lengths)
    shares = [deal_by_length(ids, values, rank, world_size, max_samples, by_stream) for rank in range(world_size)]
    assert sorted(np.concatenate(shares).tolist()) == list(range(len(lengths)))
    for stream_id in range(3) if by_stream else [-1]:
        mask = (ids == stream_id) | (stream_id < 0)
        num_rounds = -(-int(mask.sum()) // (world_size * max_samples))
        sizes = [int(mask[share].sum()) for share in shares]
        assert max(sizes) <= num_rounds * max_samples
        assert max(sizes) - min(sizes) <= num_rounds


def test_ranks_take_turns_with_neighbours_in_length() -> None:
    lengths = np.arange(16, 0, -1)
    shares = [deal_by_length(np.zeros(16, dtype=int), lengths, rank, 2, 4, False).tolist() for rank in range(2)]
    assert shares == [[0, 1, 2, 3, 12, 13, 14, 15], [4, 5, 6, 7, 8, 9, 10, 11]]


@given(lengths=lengths_lists, budget=st.integers(1, 200), by_stream=st.booleans())
def test_no_micro_batch_is_over_its_tokens_but_for_single_samples(lengths, budget, by_stream) -> None:
    ids = _ids(lengths)
    slices = split_by_tokens(ids, np.array(lengths), budget, by_stream)
    assert [place for cut in slices for place in range(cut.start, cut.stop)] == list(range(len(lengths)))
    for cut in slices:
        own = lengths[cut.start : cut.stop]
        assert max(own) * len(own) <= budget or len(own) == 1
        if by_stream:
            assert set(ids[cut.start : cut.stop].tolist()) == {cut.stream_id}


@given(lengths=lengths_lists, by_stream=st.booleans())
def test_among_sorted_samples_none_is_padded_to_more_than_twice_its_length(lengths: list[int], by_stream: bool) -> None:
    order = sort_by_length(_ids(lengths), np.array(lengths), by_stream)
    ids, own = _ids(lengths)[order], np.array(lengths)[order]
    slices = split_by_tokens(ids, own, 1_000, by_stream, is_sorted=True)
    assert [place for cut in slices for place in range(cut.start, cut.stop)] == list(range(len(lengths)))
    assert all(2 * own[cut.start : cut.stop].min() >= own[cut.start : cut.stop].max() for cut in slices)


def test_a_micro_batch_is_filled_before_the_next_one_begins() -> None:
    slices = split_by_tokens(np.zeros(5, dtype=int), np.array([4, 4, 2, 2, 2]), 8, False)
    assert [(cut.start, cut.stop) for cut in slices] == [(0, 2), (2, 5)]
    assert split_by_tokens(np.zeros(0, dtype=int), np.zeros(0, dtype=int), 8, True) == []


class _Ragged:
    def __init__(self, stream: int, length: int):
        self.sizes = np.random.default_rng(stream).integers(2, 30, length)
        self.stream = stream

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"input_ids": [self.stream + 1] * int(self.sizes[index]), "labels": index % 3, "place": index}

    def with_column(self) -> datasets.Dataset:
        return datasets.Dataset.from_list([{**self[k], "length": int(size)} for k, size in enumerate(self.sizes)])


def _pad(samples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    width = max(len(sample["input_ids"]) for sample in samples)
    rows = [sample["input_ids"] + [0] * (width - len(sample["input_ids"])) for sample in samples]
    columns = {
        name: torch.tensor([sample[name] for sample in samples]) for name in ("labels", "place") if name in samples[0]
    }
    return {"input_ids": torch.tensor(rows), "attention_mask": (torch.tensor(rows) > 0).long(), **columns}


def _loader(rank: int = 0, world_size: int = 1, has_column: bool = False, **options: Any) -> MixingLoader:
    sources: list[Any] = [_Ragged(stream, length) for stream, length in enumerate((40, 25, 30))]
    if has_column:
        sources = [source.with_column() for source in sources]
    streams = [Stream(f"s{number}", source) for number, source in enumerate(sources)]
    mixing = Mixing(Planner(streams, seed=0), Uniform(), Clock(24, 95, Budget(epochs=2)))
    options = {"max_samples": 4, "lengths": Lengths(sources), **options}
    return MixingLoader(mixing, sources, Collation(_pad, mixing.names), rank, world_size, MicroBatchOptions(**options))


def _first(loader: MixingLoader, by_stream: bool = False, keeps_samples: bool = False) -> StepBatch:
    split(loader, by_stream=by_stream, keeps_samples=keeps_samples)
    batch = loader.next_batch()
    assert batch is not None
    return batch


def _samples(batch: StepBatch) -> list[tuple[int, int]]:
    return sorted(
        (int(stream_id), int(place))
        for micro in batch.micro_batches
        if not micro.is_padding
        for stream_id, place in zip(micro.stream_ids, micro.inputs["place"], strict=True)
    )


class TestLoader:
    @pytest.mark.parametrize("by_stream", [False, True])
    def test_grouping_changes_no_sample_of_the_step_and_saves_padding(self, by_stream: bool) -> None:
        one, other = _first(_loader(lengths=None), by_stream), _first(_loader(groups_by_length=True), by_stream)
        assert _samples(one) == _samples(other)
        padded = [
            sum(int((micro.inputs["input_ids"] == 0).sum()) for micro in step.micro_batches) for step in (other, one)
        ]
        assert padded[0] < padded[1]
        for micro in other.micro_batches:
            ids = micro.inputs["input_ids"][:, 0] - 1
            assert ids.tolist() == micro.stream_ids.tolist()
            assert not by_stream or len(set(ids.tolist())) == 1

    @pytest.mark.parametrize(
        ("has_column", "by_stream", "cap"), [(False, False, 1), (False, True, 3), (True, False, 3), (True, True, 1)]
    )
    def test_the_ranks_together_have_the_step_and_keep_their_samples_when_cut(self, has_column, by_stream, cap) -> None:
        numbers, rows = set(), []
        for rank in range(3):
            loader = _loader(rank, 3, has_column, groups_by_length=True)
            splitting = Splitting(MicroBatchCap(4), by_stream, keeps_samples=True)
            batch = _first(loader, by_stream, keeps_samples=True)
            again = loader.resplit(batch, replace(splitting, cap=MicroBatchCap(cap)))
            assert _samples(again) == _samples(batch)
            assert max(len(micro.stream_ids) for micro in again.micro_batches) <= cap
            numbers.add((len(batch.micro_batches), len(again.micro_batches)))
            rows += _samples(batch)
        assert len(numbers) == 1
        assert sorted(rows) == _samples(_first(_loader(lengths=None)))

    def test_micro_batches_have_so_many_tokens_and_ranks_with_fewer_get_empty_ones(self) -> None:
        asked: list[int] = []
        batch = _first(_loader(max_tokens=64, groups_by_length=True))
        assert all(micro.inputs["input_ids"].numel() <= 64 for micro in batch.micro_batches)
        assert sum(len(micro.stream_ids) for micro in batch.micro_batches) == 24
        loader = _loader(0, 2, max_tokens=64, agree_on_most=lambda number: asked.append(number) or 9)
        paddings = [micro.is_padding for micro in _first(loader).micro_batches]
        assert paddings == [False] * asked[0] + [True] * (9 - asked[0])
        loader._reader._datasets[1].sizes = None  # every sample of it fails now
        with pytest.raises(SampleError):
            loader.next_batch()
        assert asked[1:] == [0]  # told before the others wait


@pytest.mark.parametrize(
    ("lengths", "samples", "expected"),
    [
        (Lengths([[]], "size"), Samples(None, [{"size": 7, "input_ids": [1]}, {"input_ids": [1, 2]}]), [7, 2]),
        (Lengths([datasets.Dataset.from_dict({"length": [5, 9]})]), Samples(None, [{"pixels": 1}] * 2), [5, 9]),
        (Lengths([[]]), Samples({"input_ids": torch.zeros(3, 5)}), [5, 5, 5]),
    ],
)
def test_a_length_is_that_of_its_column_or_else_of_the_input(lengths: Any, samples: Any, expected: list[int]) -> None:
    count = len(expected)
    share = [StreamShare(0, range(count), np.arange(count))]
    assert lengths.measure(share, Loaded(samples.references(count))).tolist() == expected


def test_samples_without_a_length_and_a_token_budget_that_is_none_are_refused() -> None:
    lengths = Lengths([range(3)], "length", "pixels")
    with refused("length_column_name"):
        lengths.measure([StreamShare(0, range(1), np.arange(1))], Loaded(Samples(None, [{"a": 1}]).references(1)))
    for value in (0, True, 1.5):
        with refused("max_tokens_per_micro_batch", kind=(ValueError, TypeError)):
            check_micro_batch(None, value)


@pytest.mark.parametrize(
    ("strategy", "max_tokens"), quick_and_full([("group_by_length", 48)], [("random", 48), ("group_by_length", None)])
)
def test_the_gradient_is_the_one_without_grouping(tmp_path: Path, max_tokens: int | None, strategy: str) -> None:
    def gradients(strategy: str, max_tokens: int | None) -> torch.Tensor:
        sources = {name: _Ragged(number, 30).with_column().remove_columns("place") for number, name in enumerate("ab")}
        # Both epochs in one step each: which samples a step has does not depend on their order then.
        options = {"per_device_train_batch_size": 4, "batch_size": 60, "mixing": LossChange(), "data_collator": _pad}
        options |= {"train_sampling_strategy": strategy, "max_tokens_per_micro_batch": max_tokens}
        return gradients_of(tmp_path, "bert-classifier", train_dataset=sources, **options)

    torch.testing.assert_close(gradients(strategy, max_tokens), gradients("random", None), rtol=0, atol=1e-6)


def test_one_stream_has_the_padding_of_the_trainer_where_a_step_is_one_micro_batch(tmp_path: Path) -> None:
    data, shares = _Ragged(0, 400).with_column().remove_columns("place"), {}
    for kind in (Trainer, MixingTrainer):
        batches: list[torch.Tensor] = []
        options = {"per_device_train_batch_size": 4, "max_steps": 100, "train_sampling_strategy": "group_by_length"}
        trainer = kind(build_model("bert-classifier"), arguments(tmp_path, **options), train_dataset=data)
        trainer.data_collator = lambda rows, batches=batches: batches.append(one := _pad(rows)) or one
        for _ in trainer.get_train_dataloader():
            pass
        masks = [one["attention_mask"] for one in batches]
        assert sum(len(mask) for mask in masks) >= 400
        shares[kind] = 1 - float(sum(mask.sum() for mask in masks)) / sum(mask.numel() for mask in masks)
    assert shares[MixingTrainer] < 1.1 * shares[Trainer] < 0.1


def test_streams_whose_order_is_kept_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = _Ragged(0, 20).with_column().remove_columns("place")
    sources = [Stream("mixed", rows), Stream("kept", rows, shuffle=False), Stream("rows", InOrder(rows))]
    options = {"train_sampling_strategy": "group_by_length", "mixing": [1, 1, 1], "data_collator": _pad}
    make(tmp_path, "bert-classifier", train_dataset=sources, **options)
    told = [record.args for record in caplog.records if "group_by_length" in str(record.msg)]
    assert told == [("['kept', 'rows']",)]
