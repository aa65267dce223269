from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from mixer.loading.errors import batch_norm_reason, name_rows, note_rows, unfit_rows
from mixer.loading.loaded_step import MicroBatch
from mixer.mixture.step_plan import StreamShare
from mixer.mixture.stream import Stream
from replay import ReplayBuffer

STREAMS = [Stream("a", range(100)), Stream("memory", ReplayBuffer(3)), Stream("b", range(100))]


def _micro_batch(inputs: Any, *samples: tuple[int, int]) -> MicroBatch:
    """Makes a micro-batch of samples, each the number of its stream and its index."""
    share = [StreamShare(stream_id, range(1), np.array([index])) for stream_id, index in samples]
    return MicroBatch(inputs, np.array([stream_id for stream_id, _ in samples]), False, share)


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
    note_rows(one, STREAMS, _micro_batch(None, (2, 4)))
    assert one.__notes__ == ["Its samples: stream 'b': samples 4."]
    note_rows(two, STREAMS, _micro_batch(None, (2, 4), (0, 1)))
    assert two.__notes__[1].startswith("The micro-batch mixes samples of several streams")


@pytest.mark.parametrize(
    ("ids", "config", "said"),
    [
        ([[1, 2, 3], [1, 0, 0]], {"max_position_embeddings": 2}, ["the model's 2 positions: stream 'b': samples 4"]),
        ([[1, 9], [1, 2]], {"vocab_size": 9}, ["such as 9, outside the model's vocab_size 9: stream 'b': samples 4"]),
        ([[1, 2], [1, -7]], {"vocab_size": 9}, ["such as -7, outside the model's vocab_size 9: stream 'a': samples 1"]),
        ([[1, 2], [1, 2]], {"vocab_size": 9, "max_position_embeddings": 2}, []),
        ([[1, 2], [1, 2]], {}, []),
        ([[], []], {}, ["no tokens"]),
    ],
)
def test_rows_that_do_not_fit_the_model_are_told(ids: list[list[int]], config: dict[str, int], said: list[str]) -> None:
    model = torch.nn.Identity()
    model.config = SimpleNamespace(**config)  # type: ignore[assignment]
    inputs = {"input_ids": torch.tensor(ids, dtype=torch.int64), "attention_mask": torch.tensor(ids).ne(0)}
    micro = _micro_batch(inputs, (2, 4), (0, 1))
    found = unfit_rows(model, STREAMS, micro)
    assert [one for one, words in zip(found, said, strict=True) if words not in one] == []


@pytest.mark.parametrize(("num_rows", "is_told"), [(1, True), (2, False)])
def test_batch_normalisation_of_a_single_row_has_a_way_out(num_rows: int, is_told: bool) -> None:
    with pytest.raises(ValueError, match="more than 1 value per channel") as caught:
        torch.nn.BatchNorm1d(3)(torch.ones(1, 3))
    micro = MicroBatch({}, np.zeros(num_rows, dtype=np.int64), False)
    assert bool(batch_norm_reason(caught.value, micro)) is is_told
    assert not batch_norm_reason(ValueError("another"), micro)
