from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from mixer.loading.collate import Collation, Loaded, StreamSpecifics, batch_mapping
from mixer.loading.errors import name_rows, naming_rows
from mixer.loading.transport import Samples
from mixer.mixture.stream import Stream
from mixer.models.inputs import TASK
from replay import ReplayBuffer


def _stack(samples: list[Any]) -> dict[str, Tensor]:
    return {"x": torch.tensor(samples)}


def _negated(samples: list[Any]) -> dict[str, Tensor]:
    return {"x": -torch.tensor(samples)}


def _noisy(samples: list[Any]) -> dict[str, Tensor]:
    return {"x": torch.rand(len(samples))}


def _collation(own: dict[int, StreamSpecifics], collator: Any = _stack, seed: int = 0, rank: int = 0) -> Collation:
    return Collation(collator, None, seed, rank, False, own, ("first", "second", "third", "fourth"))


_LOADED = Loaded(Samples(None, [1, 2, 3, 4]))


def test_a_stream_has_its_own_collator_and_task() -> None:
    collation = _collation(
        {1: StreamSpecifics(_negated), 2: StreamSpecifics(None, "b"), 3: StreamSpecifics(_negated, "c")}
    )
    found = [collation.collate(_LOADED, slice(0, 2), 0, 0, stream_id) for stream_id in (-1, 0, 1, 2, 3)]
    assert [one["x"].tolist() for one in found] == [[1, 2], [1, 2], [-1, -2], [1, 2], [-1, -2]]
    assert [one.get(TASK) for one in found] == [None, None, None, "b", "c"]


def test_columns_go_to_a_collator_of_ones_own_as_samples() -> None:
    def seen(samples: list[Any]) -> dict[str, Any]:
        return {"rows": [int(sample["x"]) for sample in samples]}

    loaded = Loaded(Samples({"x": torch.arange(4)}))
    collation = Collation(_stack, lambda columns: {"stacked": columns["x"]}, 0, 0, False, {1: StreamSpecifics(seen)})
    assert collation.collate(loaded, np.array([2, 0]), 0, 0, 0)["stacked"].tolist() == [2, 0]
    assert collation.collate(loaded, np.array([2, 0]), 0, 0, 1)["rows"] == [2, 0]


def test_random_numbers_are_those_of_the_micro_batch() -> None:
    def drawn(step: int, number: int, stream_id: int, **options: Any) -> list[float]:
        torch.rand(3)
        collation = _collation({1: StreamSpecifics(_noisy, "t")}, _noisy, **options)
        return list(collation.collate(_LOADED, slice(0, 3), step, number, stream_id)["x"].tolist())

    before = torch.get_rng_state()
    _collation({}, _noisy).collate(_LOADED, slice(0, 3), 0, 0)
    assert torch.equal(torch.get_rng_state(), before)
    assert drawn(1, 2, 1) == drawn(1, 2, 1) == drawn(1, 2, 0)
    others = [drawn(1, 3, 1), drawn(2, 2, 1), drawn(1, 2, 1, seed=1), drawn(1, 2, 1, rank=1)]
    assert all(other != drawn(1, 2, 1) for other in others)


@pytest.mark.parametrize(("stream_id", "note"), [(-1, "of step 4."), (0, "All its samples belong to stream 'first'.")])
def test_what_fails_is_told_with_its_micro_batch(stream_id: int, note: str) -> None:
    with pytest.raises(TypeError, match="invalid data type") as caught:
        _collation({}, lambda samples: torch.tensor("x")).collate(_LOADED, slice(0, 1), 4, 2, stream_id)
    assert "While collating micro-batch 2 of step 4." in caught.value.__notes__[0]
    assert caught.value.__notes__[0].endswith(note)


def test_what_is_told_a_task_has_to_be_a_mapping() -> None:
    with pytest.raises(TypeError, match="The data_collator must return a mapping of model inputs, got list"):
        _collation({0: StreamSpecifics(None, "t")}, lambda samples: samples).collate(_LOADED, slice(0, 1), 0, 0, 0)
    assert batch_mapping({"x": 1}) == {"x": 1}


STREAMS = [Stream("a", range(100)), Stream("memory", ReplayBuffer(3)), Stream("b", range(100))]


FIRST_16 = ", ".join(map(str, range(16)))


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([(2, 7), (0, 3), (2, 1)], "stream 'a': samples 3; stream 'b': samples 7, 1"),
        ([(0, index) for index in range(16)], f"stream 'a': samples {FIRST_16}"),
        ([(0, index) for index in range(17)], f"stream 'a': samples {FIRST_16}, ..."),
        ([(1, 10**15), (1, 3)], "stream 'memory': 2 replayed samples"),  # their addresses say nothing
    ],
)
def test_samples_are_named_by_stream_in_their_order(rows: list[tuple[int, int]], expected: str) -> None:
    stream_ids, indices = np.array(rows, dtype=np.int64).T
    assert name_rows(STREAMS, stream_ids, indices) == expected


def test_an_error_keeps_its_kind_and_is_told_with_its_samples() -> None:
    with pytest.raises(KeyError) as info, naming_rows(STREAMS, np.array([2]), np.array([4])):
        raise KeyError("x")
    assert info.value.__notes__ == ["Its samples: stream 'b': samples 4."]


def test_several_streams_are_blamed_only_where_there_are_several() -> None:
    with pytest.raises(KeyError) as info, naming_rows(STREAMS, np.array([2, 0]), np.array([4, 1])):
        raise KeyError("x")
    assert info.value.__notes__[0] == "Its samples: stream 'a': samples 1; stream 'b': samples 4."
    assert info.value.__notes__[1].startswith("The micro-batch mixes samples of several streams")
