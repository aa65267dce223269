import numpy as np
import pytest

from mixer.loading.errors import name_rows, note_rows
from mixer.loading.loaded_step import MicroBatch
from mixer.mixture.stream import Stream
from replay import ReplayBuffer

STREAMS = [Stream("a", range(100)), Stream("memory", ReplayBuffer(3)), Stream("b", range(100))]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([(2, 7), (0, 3), (2, 1)], "stream 'a': samples 3; stream 'b': samples 7, 1"),
        ([(0, k) for k in range(17)], f"stream 'a': samples {', '.join(map(str, range(16)))}, ..."),
        ([(1, 10**15), (1, 3)], "stream 'memory': 2 replayed samples"),  # their addresses say nothing
    ],
)
def test_samples_are_named_by_stream(rows: list[tuple[int, int]], words: str) -> None:
    stream_ids, indices = np.array(rows, dtype=np.int64).T
    assert name_rows(STREAMS, stream_ids, indices) == words


def test_an_error_blames_several_streams_only_where_there_are_several() -> None:
    one, two = KeyError("x"), KeyError("x")
    note_rows(one, STREAMS, MicroBatch(None, np.array([2]), False, indices=np.array([4])))
    assert one.__notes__ == ["Its samples: stream 'b': samples 4."]
    note_rows(two, STREAMS, MicroBatch(None, np.array([2, 0]), False, indices=np.array([4, 1])))
    assert two.__notes__[1].startswith("The micro-batch mixes samples of several streams")
