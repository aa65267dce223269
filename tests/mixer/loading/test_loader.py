from typing import Any, cast

import numpy as np
import pytest
import torch

from mixer import Order, Uniform
from mixer.loading.loaded_step import MicroBatch, StepBatch
from mixer.loading.loader import MixingLoader
from tests.mixer.loaders import Columns, Numbers, batches_of, contents, make_loader, split, stacking_collator

LENGTHS = (20, 11, 6)


class _OtherColumns(Columns):
    name = "y"


def _loader(rank: int = 0, world_size: int = 1, kinds: Any = (Numbers,) * 3, **options: Any) -> MixingLoader:
    datasets = [kind(k, length) for k, (kind, length) in enumerate(zip(kinds, LENGTHS, strict=False))]
    options = {"policy": Uniform(), "num_epochs": 1, "collator": stacking_collator, **options}
    return make_loader(rank=rank, world_size=world_size, datasets=datasets, **options)


def _first(loader: MixingLoader) -> StepBatch:
    return next(batches_of(loader))


def _rows(batch: StepBatch) -> list[tuple[int, int]]:
    micro_batches = [micro for micro in batch.micro_batches if not micro.is_padding]
    for micro in micro_batches:
        assert micro.inputs["x"][:, 0].tolist() == micro.stream_ids.tolist()
    return [tuple(row) for micro in micro_batches for row in micro.inputs["x"].tolist()]


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
@pytest.mark.parametrize("by_stream", [False, True])
def test_the_ranks_together_load_the_plan(world_size: int, by_stream: bool) -> None:
    batches = []
    for rank in range(world_size):
        loader = _loader(rank, world_size)
        split(loader, by_stream=by_stream)
        batches.append(_first(loader))
    assert len({len(batch.micro_batches) for batch in batches}) == 1
    plan, expected = batches[0].plan, []
    for k, stream in enumerate(loader.mixing.planner.streams):
        order = Order(len(stream.dataset), stream.order_key(0))
        expected += [(k, int(index)) for index in order.indices(int(plan.starts[k]), int(plan.counts[k]))]
    assert sorted(row for batch in batches for row in _rows(batch)) == sorted(expected)


def test_a_rank_without_samples_gets_a_micro_batch_that_counts_for_nothing() -> None:
    batch = _first(_loader(2, 3, batch_size=2))
    assert [micro.is_padding for micro in batch.micro_batches] == [True]
    assert batch["x"].numel() == 0
    assert len(list(batches_of(_loader()))) == len(_loader()) == 5


def _batch_of(*inputs: dict[str, Any], padding: tuple[int, ...] = ()) -> StepBatch:
    ids = np.zeros(1, dtype=np.int64)
    micro_batches = [MicroBatch(own, ids, number in padding) for number, own in enumerate(inputs)]
    return StepBatch(cast(Any, None), tuple(micro_batches))


def test_a_batch_is_a_mapping_with_the_rows_of_all_micro_batches_put_together() -> None:
    batch: Any = _batch_of({"x": torch.ones(2, 3)}, {"x": torch.ones(1, 3), "y": torch.tensor(5)})
    assert batch["x"].shape == (3, 3)
    assert batch["y"].tolist() == [5]
    assert (list(batch), len(batch), "y" in batch, batch.get("z", 7)) == (["x", "y"], 2, True, 7)
    with pytest.raises(KeyError):
        batch["z"]
    with pytest.raises(TypeError):
        batch["x"] = 1
    # others are flattened, lists are one, and other things stay apart
    assert _batch_of({"x": torch.ones(2, 3)}, {"x": torch.ones(1, 4)})["x"].shape == (10,)
    batch = _batch_of({"names": ["a", "b"], "width": 3}, {"names": ["c"], "width": 4})
    assert dict(batch) == {"names": ["a", "b", "c"], "width": (3, 4)}
    # what keeps a rank in step is no part of it
    inputs = {"x": torch.ones(1, 3), "names": ["a"], "width": 3}
    assert _batch_of(inputs, inputs, padding=(1,))["x"].shape == (1, 3)
    alone = _batch_of(inputs, padding=(0,))
    assert (alone["x"].shape, alone["names"], alone["width"]) == ((0, 3), [], ())


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize(
    ("rank", "world_size", "num_workers"), [(0, 1, 0), (1, 3, 0), (9, 11, 0), (0, 1, 2), (1, 3, 2)]
)
def test_columns_give_the_micro_batches_of_the_collator(rank: int, world_size: int, num_workers: int) -> None:
    options = {"rank": rank, "world_size": world_size, "kinds": (Columns,) * 3}
    by_columns = _loader(stack_columns=dict, num_workers=num_workers, **options)
    assert [*map(contents, batches_of(by_columns))] == [*map(contents, batches_of(_loader(**options)))]


def test_columns_are_read_where_all_data_sets_have_those_that_fit_together() -> None:
    for kinds in ((Columns, Numbers), (Columns, _OtherColumns)):
        assert len(_rows(_first(_loader(kinds=kinds, stack_columns=dict)))) == 9
