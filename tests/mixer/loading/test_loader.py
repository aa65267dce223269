from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pytest
import torch

from mixer import Decision, Fixed, Mixture, Observation, Order, Policy
from mixer.loading.loader import MixingLoader
from mixer.loading.reader import SampleError
from mixer.loading.step import MicroBatch, StepBatch
from tests.mixer.loaders import Counted, Failing, Noisy, Numbers, batches_of, make_loader, stacking_collator


class Batches(Counted):
    def __getitems__(self, indices: list[int]) -> list[dict[str, Any]]:
        self.read.append(-1)
        return [Numbers.__getitem__(self, index) for index in indices]


class Columns(Numbers):
    def read_columns(self, indices: np.ndarray) -> dict[str, torch.Tensor]:
        return {"x": torch.stack([self[index]["x"] for index in indices.tolist()])}


class OtherColumns(Columns):
    def read_columns(self, indices: np.ndarray) -> dict[str, torch.Tensor]:
        return {"y": torch.zeros(len(indices))}


class FailingBatches(Numbers):
    def __getitems__(self, indices: list[int]) -> list[dict[str, Any]]:
        raise KeyError("lost")


class Short(Numbers):
    def __getitems__(self, indices: list[int]) -> list[dict[str, Any]]:
        return []


class Weighing(Policy):
    def start(self, mixture: Mixture) -> Decision:
        return Decision(np.ones(len(mixture.names)), np.ones(len(mixture.names)))

    def update(self, observation: Observation) -> Decision:
        raise NotImplementedError


def first_of(
    datasets: Sequence[Any] = tuple(Numbers(k, n) for k, n in enumerate((20, 11, 6))),
    rank: int = 0,
    world_size: int = 1,
    columns: bool = False,
    by_stream: bool = False,
    **options: Any,
) -> tuple[StepBatch, MixingLoader]:
    options = {"collator": stacking_collator, "stack_columns": dict if columns else None, **options}
    loader = make_loader(0, rank, world_size, datasets, **options)
    loader.by_stream = by_stream
    batch = loader.next_batch()
    assert batch is not None
    return batch, loader


def rows_of(batch: StepBatch) -> list[tuple[int, ...]]:
    return [tuple(row) for m in batch.micro_batches if not m.is_padding for row in m.inputs["x"].tolist()]


@pytest.mark.parametrize("world_size", [1, 2, 5])
@pytest.mark.parametrize("by_stream", [False, True])
def test_the_ranks_together_load_the_plan_and_say_where_each_row_comes_from(world_size: int, by_stream: bool) -> None:
    found = [first_of(rank=rank, world_size=world_size, by_stream=by_stream) for rank in range(world_size)]
    assert len({len(batch.micro_batches) for batch, _ in found}) == 1
    plan, planner = found[0][0].plan, found[0][1].mixing.planner
    expected = []
    for k, stream in enumerate(planner.streams):
        order = Order(len(stream.dataset), stream.order_key(0))
        expected += [(k, int(index)) for index in order.indices(int(plan.starts[k]), int(plan.counts[k]))]
    assert sorted(row for batch, _ in found for row in rows_of(batch)) == sorted(expected)
    for batch, _ in found:
        for micro in batch.micro_batches:
            assert micro.is_padding or micro.inputs["x"][:, 0].tolist() == micro.stream_ids.tolist()


def test_a_rank_without_samples_gets_a_micro_batch_that_counts_for_nothing() -> None:
    batch, _ = first_of([Numbers(0, 4), Numbers(1, 4)], 2, 3, batch_size=2)
    assert [micro.is_padding for micro in batch.micro_batches] == [True]
    assert batch["x"].numel() == 0


def test_loss_weights_make_micro_batches_of_one_stream() -> None:
    batch, _ = first_of(policy=Weighing(), micro_batch_size=64)
    assert [set(micro.stream_ids) for micro in batch.micro_batches] == [{0}, {1}, {2}]


def test_one_call_a_stream_where_a_data_set_reads_batches() -> None:
    data = [Batches(0, 8), Batches(1, 8)]
    first_of(data, batch_size=8)
    assert [own.read for own in data] == [[-1], [-1]]


def test_an_epoch_is_as_long_as_it_says() -> None:
    loader = make_loader(num_epochs=1)
    batches = list(batches_of(loader))
    assert len(batches) == len(loader) == 5
    assert sum(len(rows_of(batch)) for batch in batches) == 37


def batch_of(*inputs: dict[str, Any], padding: tuple[int, ...] = ()) -> StepBatch:
    ids = np.zeros(1, dtype=np.int64)
    micro_batches = [MicroBatch(own, ids, number in padding) for number, own in enumerate(inputs)]
    return StepBatch(cast(Any, None), tuple(micro_batches))


class TestAsMapping:
    def test_rows_as_long_are_put_together_and_others_flattened(self) -> None:
        batch = batch_of({"x": torch.ones(2, 3)}, {"x": torch.ones(1, 3), "y": torch.tensor(5)})
        assert batch["x"].shape == (3, 3)
        assert batch["y"].tolist() == [5]
        assert (list(batch), len(batch), "y" in batch, batch.get("z", 7)) == (["x", "y"], 2, True, 7)
        assert batch_of({"x": torch.ones(2, 3)}, {"x": torch.ones(1, 4)})["x"].shape == (10,)

    def test_lists_are_one_and_other_things_stay_apart(self) -> None:
        batch = batch_of({"names": ["a", "b"], "width": 3}, {"names": ["c"], "width": 4})
        assert dict(batch) == {"names": ["a", "b", "c"], "width": (3, 4)}

    def test_what_keeps_a_rank_in_step_is_no_part_of_it(self) -> None:
        inputs = {"x": torch.ones(1, 3), "names": ["a"], "width": 3}
        assert batch_of(inputs, inputs, padding=(1,))["x"].shape == (1, 3)
        alone = batch_of(inputs, padding=(0,))
        assert (alone["x"].shape, alone["names"], alone["width"]) == ((0, 3), [], ())

    def test_it_cannot_be_changed(self) -> None:
        batch: Any = batch_of({"x": torch.ones(1)})
        with pytest.raises(KeyError, match="y"):
            batch["y"]
        with pytest.raises(TypeError, match="does not support item assignment"):
            batch["x"] = 1


@pytest.mark.parametrize(
    ("datasets", "message"),
    [
        ([Failing(0, 5)], r"Stream 's0': sample 3 could not be loaded: OSError: disk on fire"),
        ([FailingBatches(0, 5)], r"Stream 's0': one of the samples \[.*\] could not be loaded: KeyError"),
        ([Short(0, 5)], r"Stream 's0': __getitems__ returned 0 samples for 5 indices"),
        ([Columns(0, 9), OtherColumns(1, 9)], r"columns of the streams \['s0', 's1'\] cannot be stacked"),
    ],
)
def test_a_sample_that_cannot_be_loaded_is_named(datasets: list[Any], message: str) -> None:
    with pytest.raises(SampleError, match=message):
        first_of(datasets, columns=len(datasets) > 1)


@pytest.mark.parametrize(("rank", "world_size"), [(0, 1), (1, 3), (9, 11)])
def test_columns_give_the_micro_batches_of_the_collator(rank: int, world_size: int) -> None:
    datasets = [Columns(k, n) for k, n in enumerate([20, 11, 6])]
    found, expected = (first_of(datasets, rank, world_size, columns)[0] for columns in (True, False))
    for mine, theirs in zip(found.micro_batches, expected.micro_batches, strict=True):
        assert (mine.is_padding, mine.stream_ids.tolist()) == (theirs.is_padding, theirs.stream_ids.tolist())
        assert mine.inputs.keys() == theirs.inputs.keys()
        assert all(torch.equal(mine.inputs[name], theirs.inputs[name]) for name in theirs.inputs)


def test_columns_are_not_read_where_one_data_set_has_none() -> None:
    batch, _ = first_of([Columns(0, 9), Noisy(1, 9)], columns=True, policy=Fixed([1, 1]))
    assert len(rows_of(batch)) == 9
