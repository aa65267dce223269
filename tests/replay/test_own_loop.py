import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mixer import AdaptiveBatchSampler, MixingDataLoader
from replay import InMemory, ReplayBuffer, ReplayRatio, Spaced

DATA = {"math": [torch.tensor([float(i)]) for i in range(60)], "code": [torch.tensor([100.0 + i]) for i in range(40)]}


def make(buffer: ReplayBuffer | None = None, **options: Any) -> tuple[MixingDataLoader, ReplayBuffer]:
    buffer = ReplayBuffer(12) if buffer is None else buffer
    mixing = options.pop("mixing", ReplayRatio(0.3, "Uniform"))
    return MixingDataLoader({**DATA, "memory": buffer}, 10, mixing=mixing, **options), buffer


def values_of(buffer: ReplayBuffer) -> list[float]:
    return [float(buffer[slot]) for slot in range(len(buffer))]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_memory_gives_what_was_trained_on_before(num_workers: int) -> None:
    loader, buffer = make(num_workers=num_workers)
    trained: set[float] = set()
    counts = []
    for batch in loader:
        ids = loader.stream_ids
        replayed = batch.flatten()[torch.from_numpy(ids == 2)].tolist()
        assert set(replayed) <= trained
        assert len(set(replayed)) == len(replayed)
        trained |= set(batch.flatten()[torch.from_numpy(ids != 2)].tolist())
        counts.append(len(replayed))
    assert counts[0] == 0
    assert counts[2:] == [3] * len(counts[2:])
    loader.state_dict()  # counts the last batch
    assert set(values_of(buffer)) <= trained
    assert buffer.num_offered == sum(10 - count for count in counts)


def test_a_loop_on_two_ranks_has_one_buffer() -> None:
    parts = [make(rank=rank, world_size=2) for rank in range(2)]
    alone, expected = make()
    for batch, *own in zip(alone, *(loader for loader, _ in parts), strict=True):
        assert sorted(torch.cat(own).flatten().tolist()) == sorted(batch.flatten().tolist())
    for loader, _ in (*parts, (alone, expected)):
        loader.state_dict()
    assert values_of(parts[0][1]) == values_of(parts[1][1]) == values_of(expected)


def test_a_loop_goes_on_with_its_buffer(tmp_path: Path) -> None:
    whole, _ = make()
    batches = [batch.flatten().tolist() for batch in whole]
    first, buffer = make()
    given = [batch.flatten().tolist() for _, batch in zip(range(4), first, strict=False)]
    state = json.loads(json.dumps(first.state_dict()))
    buffer.save(tmp_path / "buffer")
    second, other = make()
    with pytest.raises(
        ValueError,
        match="9 samples had been drawn from the buffer and 31 offered to it when the run was saved, 0 and 0",
    ):
        second.load_state_dict(state)
    second, other = make()
    other.load(tmp_path / "buffer")
    second.load_state_dict(state)
    rest = [batch.flatten().tolist() for batch in second]
    assert given + rest == batches[: len(given) + len(rest)]
    assert len(given) + len(rest) == len(batches)


@pytest.mark.parametrize(
    ("buffer", "message"),
    [
        (lambda: ReplayBuffer(5, "LossAware"), "selection=LossAware goes by what a batch shows"),
        (lambda: ReplayBuffer(5, "ClassBalanced"), "selection=ClassBalanced goes by what a batch shows"),
        (lambda: ReplayBuffer(5, storage=InMemory()), r"InMemory\(\), which is not available in your own"),
    ],
)
def test_what_only_a_trainer_can_tell_is_refused(buffer: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(buffer())


def test_a_buffer_that_is_filled_by_hand_may_keep_anything() -> None:
    loader, buffer = make(ReplayBuffer(5, "LossAware", InMemory(), is_online=False))
    buffer.remember("math", DATA["math"], range(9), losses=np.arange(9.0))
    batch = next(iter(loader))
    assert (loader.stream_ids == 2).sum() == 3
    assert set(batch.flatten()[torch.from_numpy(loader.stream_ids == 2)].tolist()) <= set(range(9))


def test_a_second_draw_without_its_buffer_is_refused() -> None:
    streams = {"math": DATA["math"], "again": ReplayBuffer(5).second_draw()}
    with pytest.raises(ValueError, match=r"Stream 'again' is a second draw of a buffer that is no stream of this run"):
        MixingDataLoader(streams, 10, mixing=ReplayRatio(0.3))


def test_indices_lead_to_no_memory() -> None:
    with pytest.raises(ValueError, match="use MixingDataLoader"):
        AdaptiveBatchSampler({**DATA, "memory": ReplayBuffer(5)}, 10, mixing=ReplayRatio(0.3))


def test_model_time_is_reported() -> None:
    loader, _ = make(mixing=Spaced(0.5, first_interval_steps=2, burst_steps=1, policy="Uniform"))
    counts = []
    for _ in loader:
        counts.append(int((loader.stream_ids == 2).sum()))
        loader.observe(update_norm=1.0)
    assert counts[:10] == [0, 0, 5, 0, 0, 0, 0, 5, 0, 0]  # after 2 steps, then 4


def test_a_buffer_that_was_saved_too_early_is_refused(tmp_path: Path) -> None:
    first, buffer = make()
    for _ in zip(range(4), first, strict=False):
        pass
    buffer.save(tmp_path / "buffer")
    state = first.state_dict()  # counts the last batch, which the saved buffer was not offered
    second, other = make()
    other.load(tmp_path / "buffer")
    with pytest.raises(ValueError, match=r"save the buffer after state_dict\(\) was called"):
        second.load_state_dict(state)


def test_a_second_draw_goes_on(tmp_path: Path) -> None:
    def begin() -> tuple[MixingDataLoader, ReplayBuffer]:
        buffer = ReplayBuffer(12)
        streams = {**DATA, "memory": buffer, "again": buffer.second_draw()}
        return MixingDataLoader(streams, 10, mixing=ReplayRatio(0.4, "Uniform")), buffer

    batches = [batch.flatten().tolist() for batch in begin()[0]]
    first, buffer = begin()
    given = [batch.flatten().tolist() for _, batch in zip(range(4), first, strict=False)]
    state = json.loads(json.dumps(first.state_dict()))
    buffer.save(tmp_path / "buffer")
    second, other = begin()
    other.load(tmp_path / "buffer")
    second.load_state_dict(state)
    assert given + [batch.flatten().tolist() for batch in second] == batches
