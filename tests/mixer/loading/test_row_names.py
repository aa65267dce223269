import numpy as np
import pytest

from mixer.loading.errors import name_rows, naming_rows
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


def test_an_error_keeps_its_kind_and_blames_several_streams_only_where_there_are_several() -> None:
    with pytest.raises(KeyError) as info, naming_rows(STREAMS, np.array([2]), np.array([4])):
        raise KeyError("x")
    assert info.value.__notes__ == ["Its samples: stream 'b': samples 4."]
    with pytest.raises(KeyError) as info, naming_rows(STREAMS, np.array([2, 0]), np.array([4, 1])):
        raise KeyError("x")
    assert info.value.__notes__[1].startswith("The micro-batch mixes samples of several streams")
