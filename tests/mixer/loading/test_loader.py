from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pytest
import torch
from transformers import default_data_collator

from mixer import Decision, Mixture, Observation, Order, Policy, Stream, Uniform
from mixer.loading.batching import MicroBatchOptions
from mixer.loading.loader import MixingLoader
from mixer.loading.reader import SampleError
from mixer.loading.step import MicroBatch, StepBatch
from mixer.mixture.clock import Budget, Clock
from mixer.mixture.controller import Mixing
from mixer.mixture.planner import Planner


class _Numbers:
    """Samples that say where they come from."""

    def __init__(self, stream: int, length: int):
        self.stream, self.length = stream, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": torch.tensor([self.stream, index]), "labels": torch.tensor(index)}


class _Batches(_Numbers):
    calls = 0

    def __getitems__(self, indices: list[int]) -> list[dict[str, Any]]:
        type(self).calls += 1
        return [self[index] for index in indices]


class _Weighing(Policy):
    def start(self, mixture: Mixture) -> Decision:
        return Decision(np.ones(len(mixture.names)), np.ones(len(mixture.names)))

    def update(self, observation: Observation) -> Decision:
        raise NotImplementedError


def _loader(
    lengths: Sequence[int],
    batch_size: int,
    rank: int = 0,
    world_size: int = 1,
    policy: Policy | None = None,
    **options: Any,
) -> MixingLoader:
    streams = [Stream(f"s{k}", _Batches(k, n) if k % 2 else _Numbers(k, n)) for k, n in enumerate(lengths)]
    clock = Clock(batch_size, sum(lengths), Budget(epochs=1))
    mixing = Mixing(Planner(streams, seed=0), policy or Uniform(), clock)
    datasets = [stream.dataset for stream in streams]
    return MixingLoader(mixing, datasets, default_data_collator, rank, world_size, **options)


def _rows(batch: StepBatch) -> list[tuple[int, int]]:
    micro_batches = [micro for micro in batch.micro_batches if not micro.is_padding]
    return [tuple(row) for micro in micro_batches for row in micro.inputs["x"].tolist()]


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
@pytest.mark.parametrize("by_stream", [False, True])
def test_the_ranks_together_load_the_plan(world_size: int, by_stream: bool) -> None:
    batches = []
    for rank in range(world_size):
        loader = _loader([20, 11, 6], 9, rank, world_size, micro_batches=MicroBatchOptions(2))
        loader.by_stream = by_stream
        batch = loader.next_batch()
        assert batch is not None
        batches.append(batch)
    assert len({len(batch.micro_batches) for batch in batches}) == 1
    together = sorted(row for batch in batches for row in _rows(batch))
    plan = batches[0].plan
    expected = []
    for k, stream in enumerate(loader.mixing.planner.streams):
        order = Order(len(stream.dataset), stream.order_key(0))
        expected += [(k, int(index)) for index in order.indices(int(plan.starts[k]), int(plan.counts[k]))]
    assert together == sorted(expected)


def test_stream_ids_say_where_each_row_comes_from() -> None:
    batch = _loader([20, 11, 6], 9, micro_batches=MicroBatchOptions(4)).next_batch()
    assert batch is not None
    for micro in batch.micro_batches:
        assert micro.inputs["x"][:, 0].tolist() == micro.stream_ids.tolist()


def test_a_rank_without_samples_gets_a_micro_batch_that_counts_for_nothing() -> None:
    batch = _loader([4, 4], 2, rank=2, world_size=3).next_batch()
    assert batch is not None
    assert [micro.is_padding for micro in batch.micro_batches] == [True]
    assert batch["x"].numel() == 0


def test_loss_weights_make_micro_batches_of_one_stream() -> None:
    batch = _loader([20, 11, 6], 9, micro_batches=MicroBatchOptions(64), policy=_Weighing()).next_batch()
    assert batch is not None
    assert [set(micro.stream_ids) for micro in batch.micro_batches] == [{0}, {1}, {2}]


def test_one_call_a_stream_where_a_data_set_reads_batches() -> None:
    _Batches.calls = 0
    _loader([8, 8], 8).next_batch()
    assert _Batches.calls == 1


def test_an_epoch_is_as_long_as_it_says() -> None:
    loader = _loader([20, 11, 6], 9)
    batches = []
    for batch in loader:
        batches.append(batch)
        loader.mixing.observe(batch.plan, np.full(3, np.nan), np.zeros(3, dtype=np.int64))
    assert len(batches) == len(loader) == 5
    assert sum(len(_rows(batch)) for batch in batches) == 37


def test_a_step_gives_the_tensors_of_its_samples() -> None:
    batch = _loader([20, 11, 6], 9, micro_batches=MicroBatchOptions(4)).next_batch()
    assert batch is not None
    assert "x" in batch
    assert "y" not in batch
    assert batch["x"].numel() == 18


def _batch_of(*inputs: dict[str, Any], padding: tuple[int, ...] = ()) -> StepBatch:
    ids = np.zeros(1, dtype=np.int64)
    micro_batches = [MicroBatch(own, ids, number in padding) for number, own in enumerate(inputs)]
    return StepBatch(cast(Any, None), tuple(micro_batches))


class TestAsMapping:
    def test_rows_as_long_are_put_together(self) -> None:
        batch = _batch_of({"x": torch.ones(2, 3)}, {"x": torch.ones(1, 3), "y": torch.tensor(5)})
        assert batch["x"].shape == (3, 3)
        assert batch["y"].tolist() == [5]
        assert (list(batch), len(batch), "y" in batch, batch.get("z", 7)) == (["x", "y"], 2, True, 7)

    def test_others_are_flattened(self) -> None:
        assert _batch_of({"x": torch.ones(2, 3)}, {"x": torch.ones(1, 4)})["x"].shape == (10,)

    def test_lists_are_one_and_other_things_stay_apart(self) -> None:
        batch = _batch_of({"names": ["a", "b"], "width": 3}, {"names": ["c"], "width": 4})
        assert dict(batch) == {"names": ["a", "b", "c"], "width": (3, 4)}

    def test_what_keeps_a_rank_in_step_is_no_part_of_it(self) -> None:
        inputs = {"x": torch.ones(1, 3), "names": ["a"], "width": 3}
        assert _batch_of(inputs, inputs, padding=(1,))["x"].shape == (1, 3)
        alone = _batch_of(inputs, padding=(0,))
        assert (alone["x"].shape, alone["names"], alone["width"]) == ((0, 3), [], ())

    def test_it_cannot_be_changed(self) -> None:
        batch: Any = _batch_of({"x": torch.ones(1)})
        with pytest.raises(KeyError, match="y"):
            batch["y"]
        with pytest.raises(TypeError, match="does not support item assignment"):
            batch["x"] = 1


class _Failing(_Numbers):
    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == 3:
            raise KeyError("lost")
        return super().__getitem__(index)


class _FailingBatches(_Batches):
    def __getitems__(self, indices: list[int]) -> list[dict[str, Any]]:
        raise KeyError("lost")


class _Short(_Batches):
    def __getitems__(self, indices: list[int]) -> list[dict[str, Any]]:
        return []


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (_Failing(0, 5), r"Stream 'bad': sample 3 could not be loaded: KeyError: 'lost'"),
        (_FailingBatches(0, 5), r"Stream 'bad': one of the samples \[.*\] could not be loaded: KeyError"),
        (_Short(0, 5), r"Stream 'bad': __getitems__ returned 0 samples for 5 indices"),
    ],
)
def test_a_sample_that_cannot_be_loaded_is_named(dataset: Any, message: str) -> None:
    mixing = Mixing(Planner([Stream("bad", dataset)], seed=0), Uniform(), Clock(5, 5, Budget(epochs=1)))
    with pytest.raises(SampleError, match=message):
        MixingLoader(mixing, [dataset], default_data_collator).next_batch()


class _Columns(_Numbers):
    def read_columns(self, indices: np.ndarray) -> dict[str, torch.Tensor]:
        rows = [self[index] for index in indices.tolist()]
        return {name: torch.stack([row[name] for row in rows]) for name in ("x", "labels")}


class _OtherColumns(_Columns):
    def read_columns(self, indices: np.ndarray) -> dict[str, torch.Tensor]:
        return {"y": torch.zeros(len(indices))}


def _by_columns(datasets: Sequence[Any], rank: int, world_size: int, **options: Any) -> MixingLoader:
    streams = [Stream(f"s{k}", dataset) for k, dataset in enumerate(datasets)]
    clock = Clock(9, sum(len(dataset) for dataset in datasets), Budget(epochs=1))
    mixing = Mixing(Planner(streams, seed=0), Uniform(), clock)
    options.setdefault("micro_batches", MicroBatchOptions(2))
    return MixingLoader(mixing, datasets, default_data_collator, rank, world_size, **options)


@pytest.mark.parametrize(("rank", "world_size"), [(0, 1), (1, 3), (9, 11)])
def test_columns_give_the_micro_batches_of_the_collator(rank: int, world_size: int) -> None:
    datasets = [_Columns(k, n) for k, n in enumerate([20, 11, 6])]
    by_columns = _by_columns(datasets, rank, world_size, stack_columns=dict).next_batch()
    by_samples = _by_columns(datasets, rank, world_size).next_batch()
    assert by_columns is not None
    assert by_samples is not None
    for mine, theirs in zip(by_columns.micro_batches, by_samples.micro_batches, strict=True):
        assert mine.is_padding == theirs.is_padding
        assert mine.stream_ids.tolist() == theirs.stream_ids.tolist()
        assert mine.inputs.keys() == theirs.inputs.keys()
        assert all(torch.equal(mine.inputs[name], theirs.inputs[name]) for name in theirs.inputs)


def test_columns_that_do_not_fit_together_are_named() -> None:
    with pytest.raises(SampleError, match=r"columns of the streams \['s0', 's1'\] cannot be stacked"):
        _by_columns([_Columns(0, 9), _OtherColumns(1, 9)], 0, 1, stack_columns=dict).next_batch()


def test_columns_are_not_read_where_one_data_set_has_none() -> None:
    batch = _by_columns([_Columns(0, 9), _Numbers(1, 9)], 0, 1, stack_columns=dict).next_batch()
    assert batch is not None
    assert len(_rows(batch)) == 9
