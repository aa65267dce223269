import json
from typing import Any

import pytest
import torch

from mixer import MixingDataLoader, Stream
from tests.mixer.loaders import Noisy, Wandering, masking_collator, quick_and_full
from tests.refusals import refused

LENGTHS = (20, 11, 6)


def _loader(num_workers: int = 0, **options: Any) -> MixingDataLoader:
    data = {f"s{k}": Noisy(k, n) for k, n in enumerate(LENGTHS)}
    defaults = {"batch_size": 9, "collate_fn": masking_collator, "num_workers": num_workers, "seed": 3}
    return MixingDataLoader(data, **{**defaults, **options})


def _run(loader: MixingDataLoader, num_batches: int, first: int = 0) -> list[Any]:
    """What batches consist of, while the size is changed by hand before each."""
    given: list[Any] = []
    while len(given) < num_batches:
        for batch in loader:
            columns = {name: values.tolist() for name, values in batch.items()}
            given.append((columns, loader.stream_ids.tolist(), loader.coverage))
            loader.set_batch_size(3 + (first + len(given)) * 5 % 7)
            if len(given) == num_batches:
                break
    return given


@pytest.mark.parametrize(("num_workers", "drop_last"), quick_and_full([(0, True), (2, False)], [(2, True)]))
def test_resumed_in_the_middle_it_gives_what_the_uninterrupted_one_gives(num_workers: int, drop_last: bool) -> None:
    options = {"mixing": Wandering(), "drop_last": drop_last}
    whole = _run(_loader(**options), 16)
    loader = _loader(num_workers, **options)
    start = _run(loader, 5)
    state = json.loads(json.dumps(loader.state_dict()))
    _run(loader, 2, first=5)  # what is loaded afterwards is no part of the state
    resumed = _loader(num_workers, **options)
    resumed.load_state_dict(state)
    assert start + _run(resumed, 11, first=5) == whole
    loader.load_state_dict(state)
    assert _run(loader, 11, first=5) == whole[5:]


def test_the_scales_of_micro_batches_sum_to_that_of_the_batch() -> None:
    loaders = [_loader(rank=rank, world_size=2, batch_size=11, micro_batch_size=2) for rank in range(2)]
    with pytest.raises(RuntimeError):
        _ = loaders[0].loss_scale
    for batches in zip(*loaders, strict=True):
        for loader, batch in zip(loaders, batches, strict=True):
            assert sum(map(loader.loss_scale_of, batch)) == pytest.approx(loader.loss_scale)
        assert sum(loader.loss_scale for loader in loaders) == pytest.approx(2)


def test_loss_weights_come_with_micro_batches_of_one_stream() -> None:
    streams = [Stream(f"s{k}", Noisy(k, n), loss_weight=1.0 + k) for k, n in enumerate(LENGTHS)]
    batch = next(iter(MixingDataLoader(streams, 9, collate_fn=masking_collator, micro_batch_size=64)))
    assert [set(micro.stream_ids) for micro in batch] == [{0}, {1}, {2}]
    with refused("mixing"):
        MixingDataLoader(streams, 9, collate_fn=masking_collator)


def test_samples_are_collated_as_a_data_loader_does() -> None:
    data = [(torch.tensor([float(k)]), k) for k in range(6)]
    loader = MixingDataLoader(data, 4, shuffle=False)
    assert len(loader) == 2
    inputs, labels = next(iter(loader))
    assert inputs.tolist() == [[0.0], [1.0], [2.0], [3.0]]
    assert labels.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("option", "given"),
    [("micro_batch_size", 0), ("num_workers", -1), ("prefetch_factor", 0), ("persistent_workers", True)],
)
def test_bad_input_is_refused(option: str, given: Any) -> None:
    with refused(option):
        MixingDataLoader(**{"data": range(9), "batch_size": 4, option: given})


def test_columns_that_only_some_streams_have_are_not_lost() -> None:
    narrow = [{"x": torch.ones(2)} for _ in range(8)]
    wide = [{"x": torch.ones(2), "y": torch.ones(1)} for _ in range(8)]
    with refused("columns"):
        list(MixingDataLoader({"narrow": narrow, "wide": wide}, batch_size=4))
