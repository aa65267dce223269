from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import DataCollatorWithPadding

from mixer import LossChange, MixingTrainer, Stream, Uniform
from mixer.loading.batching import MicroBatchOptions
from mixer.loading.collate import Loaded
from mixer.loading.lengths import Lengths, deal_by_length, sort_by_length, split_by_tokens
from mixer.loading.loader import MixingLoader
from mixer.loading.memory import MicroBatchCap
from mixer.loading.reader import SampleError
from mixer.loading.step import StepBatch
from mixer.loading.transport import Samples
from mixer.mixture.clock import Budget, Clock
from mixer.mixture.controller import Mixing
from mixer.mixture.cursors import StreamShare
from mixer.mixture.planner import Planner
from tests.helpers import GradientRecorder, arguments, build_model
from tests.mixer.recipe.small_tokenizers import of_words

lengths_lists = st.lists(st.integers(1, 50), min_size=1, max_size=60)


def _ids(lengths: list[int]) -> np.ndarray:
    return np.sort(np.arange(len(lengths)) % 3)


@pytest.mark.parametrize("by_stream", [False, True])
@given(lengths=lengths_lists)
def test_the_order_is_from_long_to_short_and_loses_nothing(by_stream: bool, lengths: list[int]) -> None:
    ids = _ids(lengths)
    order = sort_by_length(ids, np.array(lengths), is_by_stream=by_stream)
    assert sorted(order.tolist()) == list(range(len(lengths)))
    assert not by_stream or ids[order].tolist() == ids.tolist()
    for stream_id in set(ids.tolist()) if by_stream else [-1]:
        assert (np.diff(np.array(lengths)[order][(ids == stream_id) | (stream_id < 0)]) <= 0).all()
    assert sort_by_length(np.zeros(5, dtype=int), np.full(5, 7), by_stream).tolist() == [0, 1, 2, 3, 4]


class TestDealing:
    @given(lengths=lengths_lists, world_size=st.integers(1, 5), max_samples=st.integers(1, 9), by_stream=st.booleans())
    def test_the_ranks_have_each_sample_once_in_as_many_micro_batches(
        self, lengths: list[int], world_size: int, max_samples: int, by_stream: bool
    ) -> None:
        ids, values = _ids(lengths), np.array(lengths)
        shares = [deal_by_length(ids, values, rank, world_size, max_samples, by_stream) for rank in range(world_size)]
        assert sorted(np.concatenate(shares).tolist()) == list(range(len(lengths)))
        for stream_id in range(3) if by_stream else [-1]:
            mask = (ids == stream_id) | (stream_id < 0)
            num_rounds = -(-int(mask.sum()) // (world_size * max_samples))
            sizes = [int(mask[share].sum()) for share in shares]
            assert max(sizes) <= num_rounds * max_samples
            assert max(sizes) - min(sizes) <= num_rounds
        # Ranks take turns with neighbours in length.
        assert deal_by_length(np.zeros(4, dtype=int), np.arange(4, 0, -1), 1, 2, 1, False).tolist() == [1, 2]


class TestTokenBudget:
    @given(lengths=lengths_lists, budget=st.integers(1, 200), by_stream=st.booleans())
    def test_no_micro_batch_is_over_it_but_for_single_samples(
        self, lengths: list[int], budget: int, by_stream: bool
    ) -> None:
        ids = _ids(lengths)
        slices = split_by_tokens(ids, np.array(lengths), budget, by_stream)
        assert [place for cut in slices for place in range(cut.start, cut.stop)] == list(range(len(lengths)))
        for cut in slices:
            own = lengths[cut.start : cut.stop]
            assert max(own) * len(own) <= budget or len(own) == 1
            assert not by_stream or set(ids[cut.start : cut.stop].tolist()) == {cut.stream_id}

    @pytest.mark.parametrize(("lengths", "expected"), [([4, 4, 2, 2, 2], [(0, 2), (2, 5)]), ([], [])])
    def test_a_micro_batch_is_filled_before_the_next_one_begins(self, lengths: list[int], expected: Any) -> None:
        slices = split_by_tokens(np.zeros(len(lengths), dtype=int), np.array(lengths, dtype=int), 8, False)
        assert [(cut.start, cut.stop) for cut in slices] == expected


class _Ragged:
    def __init__(self, stream: int, length: int):
        self.sizes = np.random.default_rng(stream).integers(2, 30, length)
        self.stream = stream

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, index: int) -> dict[str, Any]:
        size = int(self.sizes[index])
        return {"input_ids": [self.stream + 1] * size, "labels": [self.stream + 1] * size, "place": index}


def _pad(samples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    width = max(len(sample["input_ids"]) for sample in samples)
    padded = {
        name: torch.tensor([sample[name] + [fill] * (width - len(sample[name])) for sample in samples])
        for name, fill in (("input_ids", 0), ("labels", -100))
    }
    return {**padded, "place": torch.tensor([sample["place"] for sample in samples])}


def _loader(rank: int = 0, world_size: int = 1, has_column: bool = False, **options: Any) -> MixingLoader:
    sources: list[Any] = [_Ragged(stream, length) for stream, length in enumerate((40, 25, 30))]
    if has_column:
        rows = [[{**own[index], "length": int(own.sizes[index])} for index in range(len(own))] for own in sources]
        sources = [datasets.Dataset.from_list(own) for own in rows]
    streams = [Stream(f"s{number}", source) for number, source in enumerate(sources)]
    mixing = Mixing(Planner(streams, seed=0), Uniform(), Clock(24, 95, Budget(epochs=2)))
    options = {"max_samples": 4, "lengths": Lengths(sources), **options}
    return MixingLoader(mixing, sources, _pad, rank, world_size, micro_batches=MicroBatchOptions(**options))


def _samples(batch: StepBatch) -> list[tuple[int, int]]:
    return sorted(
        (int(stream_id), int(place))
        for micro in batch.micro_batches
        if not micro.is_padding
        for stream_id, place in zip(micro.stream_ids, micro.inputs["place"], strict=True)
    )


def _num_padded(batch: StepBatch) -> int:
    return sum(int((micro.inputs["input_ids"] == 0).sum()) for micro in batch.micro_batches)


def _share(count: int) -> list[StreamShare]:
    return [StreamShare(0, range(count), np.arange(count))]


class TestLoader:
    @pytest.mark.parametrize("by_stream", [False, True])
    def test_grouping_changes_no_sample_of_the_step_and_saves_padding(self, by_stream: bool) -> None:
        plain, grouped = _loader(lengths=None), _loader(groups_by_length=True)
        plain.by_stream = grouped.by_stream = by_stream
        one, other = plain.next_batch(), grouped.next_batch()
        assert one is not None
        assert other is not None
        assert _samples(one) == _samples(other)
        assert _num_padded(other) < _num_padded(one)
        for micro in other.micro_batches:
            ids = micro.inputs["input_ids"][:, 0] - 1
            assert ids.tolist() == micro.stream_ids.tolist()
            assert not by_stream or len(set(ids.tolist())) == 1

    @pytest.mark.parametrize(
        ("has_column", "by_stream", "max_samples"),
        [(False, False, 3), (False, True, 1), (True, False, 1), (True, True, 3)],
    )
    def test_the_ranks_together_have_the_step_also_those_that_cut_it_anew(
        self, has_column: bool, by_stream: bool, max_samples: int
    ) -> None:
        batches, again = [], []
        for rank in range(3):
            loader = _loader(rank, 3, has_column, groups_by_length=True)
            loader.by_stream, loader.keeps_samples = by_stream, True
            batches.append(loader.next_batch())
            loader.cap = MicroBatchCap(max_samples)
            again.append(loader.resplit(batches[-1]))
            assert _samples(again[-1]) == _samples(batches[-1])
            assert max(len(micro.stream_ids) for micro in again[-1].micro_batches) <= max_samples
        for found in (batches, again):
            assert len({len(batch.micro_batches) for batch in found}) == 1
        whole = _loader(lengths=None).next_batch()
        assert sorted(row for batch in batches for row in _samples(batch)) == _samples(whole)

    @pytest.mark.parametrize("fails", [False, True])
    def test_ranks_with_fewer_micro_batches_of_so_many_tokens_get_empty_ones(self, fails: bool) -> None:
        asked = []

        def most(number: int) -> int:
            asked.append(number)
            return 9 if number else 0

        loader = _loader(0, 2, max_tokens=64, agree_on_most=most)
        if fails:  # which is told before the others wait
            loader._reader._datasets[1].sizes = None
            with pytest.raises(SampleError, match="'s1'"):
                loader.next_batch()
            assert asked == [0]
            return
        batch = loader.next_batch()
        assert all(micro.inputs["input_ids"].numel() <= 64 for micro in batch.micro_batches[: asked[0]])
        assert [micro.is_padding for micro in batch.micro_batches] == [False] * asked[0] + [True] * (9 - asked[0])
        assert sum(len(micro.stream_ids) for micro in batch.micro_batches if not micro.is_padding) == 12

    @pytest.mark.parametrize(
        ("lengths", "loaded", "expected"),
        [
            (Lengths([[]], "size"), Samples(None, [{"size": 7, "input_ids": [1]}, {"input_ids": [1, 2]}]), [7, 2]),
            (Lengths([datasets.Dataset.from_dict({"length": [5, 9]})]), Samples(None, [{"pixels": 1}] * 2), [5, 9]),
            (Lengths([[]]), Samples({"input_ids": torch.zeros(3, 5)}), [5, 5, 5]),
        ],
    )
    def test_lengths_come_of_a_column_or_of_the_input(
        self, lengths: Lengths, loaded: Samples, expected: list[int]
    ) -> None:
        assert lengths.measure(_share(len(expected)), Loaded(loaded)).tolist() == expected

    def test_samples_without_a_length_are_refused(self) -> None:
        lengths = Lengths([range(3)], "length", "pixels")
        with pytest.raises(ValueError, match=r"need samples with 'pixels' or a column 'length' .* \['a'\]"):
            lengths.measure(_share(1), Loaded(Samples(None, [{"a": 1}])))


def _gradients(folder: Path, strategy: str, **options: Any) -> torch.Tensor:
    sources = {}
    for number, name in enumerate("ab"):
        own = _Ragged(number, 30)
        rows = [{**own[index], "labels": index % 3, "length": int(own.sizes[index])} for index in range(30)]
        sources[name] = datasets.Dataset.from_list(rows)
    recorder = GradientRecorder()
    args = arguments(folder, per_device_train_batch_size=4, train_sampling_strategy=strategy)
    collator = DataCollatorWithPadding(of_words("x"))
    options = {"batch_size": 16, "mixing": LossChange(), "callbacks": [recorder], **options}
    MixingTrainer(build_model("bert-classifier"), args, collator, sources, **options).train()
    return torch.stack(recorder.gradients)


def test_the_gradient_is_the_one_without_grouping(tmp_path: Path) -> None:
    expected = _gradients(tmp_path / "plain", "random")
    for strategy, options in (("group_by_length", {}), ("group_by_length", {"max_tokens_per_micro_batch": 48})):
        found = _gradients(tmp_path / "other", strategy, **options)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("value", "error"), [(0, ValueError), (True, TypeError), (1.5, TypeError)])
def test_a_token_budget_that_is_none_is_refused(tmp_path: Path, value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="max_tokens_per_micro_batch must be"):
        MixingTrainer(build_model("llama"), arguments(tmp_path), max_tokens_per_micro_batch=value)
