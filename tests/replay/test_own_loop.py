import json
from pathlib import Path
from typing import Any

import pytest
import torch

from mixer import AdaptiveBatchSampler, MixingDataLoader, Stream
from mixer.loading.reader import SampleError
from replay import InMemory, ReplayBuffer, ReplayRatio
from tests.helpers import Tokens
from tests.refusals import refused
from tests.replay.buffers import InTurn, train

DATA = {"math": [torch.tensor([float(i)]) for i in range(60)], "code": [torch.tensor([100.0 + i]) for i in range(40)]}


def make(buffer: ReplayBuffer | None = None, second: bool = False, **options: Any) -> tuple[Any, ReplayBuffer]:
    buffer = ReplayBuffer(12) if buffer is None else buffer
    streams = {**DATA, "memory": buffer, **({"again": buffer.second_draw()} if second else {})}
    return MixingDataLoader(streams, 10, **{"mixing": ReplayRatio(0.3, "Uniform"), **options}), buffer


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_memory_gives_what_was_trained_on_before(num_workers: int) -> None:
    loader, buffer = make(num_workers=num_workers)
    trained: set[float] = set()
    counts = []
    for batch in loader:
        is_replayed = torch.from_numpy(loader.stream_ids == 2)
        replayed = batch.flatten()[is_replayed].tolist()
        assert set(replayed) <= trained
        trained |= set(batch.flatten()[~is_replayed].tolist())
        counts.append(len(set(replayed)))
    assert counts[0] == 0
    assert counts[2:] == [3] * len(counts[2:])
    loader.state_dict()  # counts the last batch
    assert {float(buffer[slot]) for slot in range(len(buffer))} <= trained
    assert buffer.num_offered == sum(10 - count for count in counts)


@pytest.mark.parametrize("second", [False, True])
def test_a_loop_goes_on_with_its_buffer(second: bool, tmp_path: Path) -> None:
    batches = [batch.flatten().tolist() for batch in make(second=second)[0]]
    first, buffer = make(second=second)
    given = [batch.flatten().tolist() for _, batch in zip(range(4), first, strict=False)]
    buffer.save(tmp_path / "too early")
    state = json.loads(json.dumps(first.state_dict()))  # counts the last batch
    buffer.save(tmp_path / "buffer")
    for folder in (None, "too early"):
        other, filled = make(second=second)
        if folder:
            filled.load(tmp_path / folder)
        with pytest.raises(ValueError, match="had been drawn"):
            other.load_state_dict(state)
    resumed, loaded = make(second=second)
    loaded.load(tmp_path / "buffer")
    resumed.load_state_dict(state)
    assert given + [batch.flatten().tolist() for batch in resumed] == batches


@pytest.mark.parametrize(
    ("buffer", "option"), [({"selection": "LossAware"}, "selection"), ({"storage": InMemory()}, "storage")]
)
def test_what_only_a_trainer_can_do_is_refused(buffer: Any, option: str) -> None:
    with refused(option, stream="memory"):
        make(ReplayBuffer(5, **buffer))


def test_a_sampler_has_no_buffer() -> None:
    with pytest.raises(ValueError, match="MixingDataLoader"):
        AdaptiveBatchSampler({**DATA, "m": ReplayBuffer(5)}, 10, mixing=ReplayRatio())


class Broken(Tokens):
    def __getitem__(self, index: int) -> Any:
        if index == 7:
            raise OSError("disk on fire")
        return super().__getitem__(index)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_reference_that_cannot_be_read_is_named(num_workers: int, tmp_path: Path) -> None:
    buffer = ReplayBuffer(60, retrieval=InTurn(), is_online=False, seed=0)
    buffer.remember("old", Broken(40, 1))
    streams = [Stream("a", Tokens(30, 2)), Stream("memory", buffer)]
    with pytest.raises(SampleError, match=r"(?s)'memory'.*Source 'old'.*7.*disk on fire"):
        train(tmp_path, streams, args={"dataloader_num_workers": num_workers}, mixing=ReplayRatio(0.5))
    buffer.save(tmp_path / "saved")
    again = ReplayBuffer(60, retrieval=InTurn(), is_online=False)
    again.load(tmp_path / "saved")
    with pytest.raises(SampleError):
        train(tmp_path, {"a": Tokens(30, 2), "memory": again})
