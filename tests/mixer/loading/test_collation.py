from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from mixer.loading.collate import Collation, Loaded, Samples, StreamSpecifics
from mixer.models.inputs import TASK
from mixer.utils.errors import InvalidTypeError
from tests.refusals import refused


def _collation(own: dict[int, StreamSpecifics], collator: Any = None, seed: int = 0, rank: int = 0) -> Collation:
    names = ("first", "second", "third", "fourth")
    return Collation(collator or _make(torch.tensor), names, seed=seed, rank=rank, specifics=own)


def _make(answer: Callable[[list[Any]], Any]) -> Callable[[list[Any]], dict[str, Any]]:
    return lambda samples: {"x": answer(samples)}


_LOADED = Loaded(Samples(None, [1, 2, 3, 4]).references(4))


def test_a_stream_has_its_own_collator_and_task() -> None:
    negated = _make(lambda samples: -torch.tensor(samples))
    own = {1: StreamSpecifics(negated), 2: StreamSpecifics(None, "b"), 3: StreamSpecifics(negated, "c")}
    collation = _collation(own)
    found = [collation.collate(_LOADED, slice(0, 2), 0, 0, stream_id) for stream_id in (-1, 0, 1, 2, 3)]
    assert [one["x"].tolist() for one in found] == [[1, 2], [1, 2], [-1, -2], [1, 2], [-1, -2]]
    assert [one.get(TASK) for one in found] == [None, None, None, "b", "c"]


def test_columns_go_to_a_collator_of_ones_own_as_samples() -> None:
    own = StreamSpecifics(_make(lambda samples: [int(sample["x"]) for sample in samples]))
    loaded = Loaded(Samples({"x": torch.arange(4)}).references(4))
    collation = Collation(None, ("a", "b"), lambda columns: {"stacked": columns["x"]}, specifics={1: own})
    assert collation.collate(loaded, np.array([2, 0]), 0, 0, 0)["stacked"].tolist() == [2, 0]
    assert collation.collate(loaded, np.array([2, 0]), 0, 0, 1)["x"] == [2, 0]


def test_random_numbers_are_those_of_the_micro_batch() -> None:
    noisy = _make(lambda samples: torch.rand(len(samples)))

    def drawn(step: int, number: int, stream_id: int, **options: Any) -> list[float]:
        torch.rand(3)
        collation = _collation({1: StreamSpecifics(noisy, "t")}, noisy, **options)
        return list(collation.collate(_LOADED, slice(0, 3), step, number, stream_id)["x"].tolist())

    before = torch.get_rng_state()
    _collation({}, noisy).collate(_LOADED, slice(0, 3), 0, 0)
    assert torch.equal(torch.get_rng_state(), before)
    assert drawn(1, 2, 1) == drawn(1, 2, 1) == drawn(1, 2, 0)
    others = [drawn(1, 3, 1), drawn(2, 2, 1), drawn(1, 2, 1, seed=1), drawn(1, 2, 1, rank=1)]
    assert all(other != drawn(1, 2, 1) for other in others)


@pytest.mark.parametrize(("stream_id", "note"), [(-1, "of step 4."), (0, "All its samples belong to stream 'first'.")])
def test_what_fails_is_told_with_its_micro_batch(stream_id: int, note: str) -> None:
    def fails(samples: list[Any]) -> Any:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no") as caught:
        _collation({}, fails).collate(_LOADED, slice(0, 1), 4, 2, stream_id)
    assert "While collating micro-batch 2 of step 4." in caught.value.__notes__[0]
    assert caught.value.__notes__[0].endswith(note)
    with refused("data_collator", kind=InvalidTypeError):
        _collation({0: StreamSpecifics(None, "t")}, list).collate(_LOADED, slice(0, 1), 0, 0, 0)  # told its task
