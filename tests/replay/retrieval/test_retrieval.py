from typing import Any

import pytest

from mixer.utils.errors import InvalidValueError
from replay import ReplayBuffer
from replay.retrieval import Retrieval, Uniform


def started(capacity: int, key: int = 1) -> Retrieval:
    retrieval = Uniform()
    retrieval.start(capacity, key)
    return retrieval


def test_key_position_and_size_count() -> None:
    drawn = [
        started(10**6, key=key).slots(position, 20, size).tolist()
        for key, position, size in ((1, 5, 10**6), (2, 5, 10**6), (1, 6, 10**6), (1, 5, 10**6 // 2))
    ]
    assert drawn[0] not in drawn[1:]
    assert started(100, key=7).slots(3, 6, 100).tolist() == [54, 96, 7, 14, 83, 15]


@pytest.mark.parametrize("wrong", [[0, 1, 1], [0, 1], [0, 1, 5], [-1, 0, 1], [0.0, 1.0, 2.0], [[0], [1], [2]]])
def test_slots_that_are_no_draw_are_refused(wrong: Any) -> None:
    class Wrong(Uniform):
        def slots(self, start: int, count: int, size: int) -> Any:
            return wrong

    buffer = ReplayBuffer(8, retrieval=Wrong(), seed=0)
    buffer.remember("a", ["x"] * 5)
    with pytest.raises(InvalidValueError) as error:
        buffer.new_cursor(0).advance(3)
    assert (error.value.option, error.value.found.tolist()) == ("retrieval", wrong)
