import io
import pickle
from collections import UserDict, namedtuple
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from mixer.loading.collate import stack_rows
from mixer.loading.transport import Packed, pack, pack_columns
from tests.mixer.loaders import assert_same

DTYPES = [torch.int64, torch.uint8, torch.bool, torch.bfloat16, torch.float32, torch.float64, torch.complex64]
Pair = namedtuple("Pair", "first second")
dtypes = st.sampled_from(DTYPES)
shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)


def tensor(dtype: torch.dtype, shape: tuple[int, ...], seed: int = 0) -> Tensor:
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 10).to(dtype)


def sent(samples: list[Any], send: Any = pack) -> list[Any]:
    unpacked = send(samples).unpack()
    return [unpacked[number] for number in range(len(samples))]


class TestRoundTrip:
    @given(kinds=st.lists(st.tuples(dtypes, shapes), min_size=1, max_size=6), is_of_one_dtype=st.booleans())
    def test_tensors_of_any_shape_and_dtype(self, kinds: list[Any], is_of_one_dtype: bool) -> None:
        dtype = kinds[0][0] if is_of_one_dtype else None
        values = [tensor(dtype or own, shape, seed) for seed, (own, shape) in enumerate(kinds)]
        rows = [{"x": value, "y": torch.tensor(seed)} for seed, value in enumerate(values)]
        assert_same(sent(values), values)
        assert_same(sent(rows), rows)
        rows = [{"x": values[0] * seed, "y": torch.tensor(seed)} for seed in range(len(kinds))]
        columns = {name: torch.stack([row[name] for row in rows]) for name in "xy"}
        assert_same(sent(rows, lambda _: pack_columns(columns)), rows)

    @pytest.mark.parametrize(
        "rows",
        [
            [{"text": "a", "ids": [1, 2]}, {"text": "", "ids": []}],
            [{"x": np.arange(3)}, {"x": np.zeros((2, 0), dtype=np.float16)}],
            [{"x": torch.ones(2)}, {"x": 3.0}, {"x": None}],
            [{"x": torch.ones(2)}, {"y": torch.ones(2)}],
            [{"x": torch.ones(2)}, {"x": torch.ones(2), "y": 1}],
            [{"x": 1, "y": 2}, {"y": 4, "x": 3}],
            *([{"x": torch.arange(length)}] for length in (124_999, 125_000, 125_001)),
            [{1: torch.ones(1), ("a", 2): "b"}] * 2,
            [{"nested": {"x": torch.ones(2), "y": [torch.zeros(1)]}}] * 2,
            [(torch.ones(2), 1), (torch.ones(3), 2)],
            [Pair(torch.ones(2), "a"), Pair(torch.ones(2), "b")],
            [[torch.ones(2)], [torch.ones(2), torch.ones(1)]],
            [b"a", bytearray(b"b")],
            [UserDict(x=torch.ones(2))] * 2,
            [np.float32(2.0), np.int64(3)],
        ],
    )
    def test_samples_of_any_kind(self, rows: list[Any]) -> None:
        assert_same(sent(rows), rows)

    @pytest.mark.parametrize(
        "make",
        [
            *(lambda: torch.arange(12).view(3, 4).t(), lambda: torch.arange(12)[::2]),
            *(lambda: torch.ones(()).expand(3, 4), lambda: torch.randn(2, dtype=torch.complex64).conj()),
            lambda: torch.randn(1, 2, 3, 4).to(memory_format=torch.channels_last),
        ],
    )
    @pytest.mark.parametrize("is_ragged", [False, True])
    def test_tensors_however_they_lie_in_memory(self, make: Any, is_ragged: bool) -> None:
        rows = [{"x": make()}, {"x": make()[:1] if is_ragged else make()}]
        for mine, theirs in zip(sent(rows), rows, strict=True):
            torch.testing.assert_close(mine["x"], theirs["x"], rtol=0, atol=0, equal_nan=True)

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.uint16, torch.complex32])
    def test_numbers_that_numpy_does_not_know(self, dtype: torch.dtype) -> None:
        values = torch.ones(4, 2).to(dtype)
        for packed in (pack([{"x": value} for value in values]), pack_columns({"x": values})):
            through_a_queue(packed)
            assert packed.unpack()[3]["x"].dtype is dtype
            assert packed.unpack()[3]["x"].tolist() == [1, 1]

    def test_tensors_of_other_kinds(self) -> None:
        sparse = torch.eye(3).to_sparse()
        parameter = torch.nn.Parameter(torch.ones(2))
        jagged = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
        rows = [{"s": sparse, "p": parameter, "n": jagged}] * 2
        for row in sent(rows):
            assert torch.equal(row["s"].to_dense(), torch.eye(3))
            assert type(row["p"]) is torch.nn.Parameter
            assert [len(part) for part in row["n"].unbind()] == [2, 3]
        first, second = sent([{"x": torch.eye(3)}, {"x": sparse}])
        assert torch.equal(first["x"], second["x"].to_dense())
        rows = [{"x": torch.ones(2, requires_grad=True)}, {"x": torch.ones(2)}]
        through_a_queue(pack(rows))
        assert [row["x"].requires_grad for row in sent(rows)] == [True, False]


def through_a_queue(packed: Packed) -> None:
    """Pickles as the queue of a worker does, whose own thread nobody sees fail."""
    from multiprocessing.reduction import ForkingPickler

    import torch.multiprocessing  # noqa: F401  # registers how tensors are shared

    ForkingPickler.dumps(packed)


def test_what_cannot_be_sent_is_found_at_once() -> None:
    for broken in (lambda: 0, (value for value in [1])):
        for rows in ([broken, 1], [{"x": torch.ones(1), "y": broken}]):
            with pytest.raises((TypeError, AttributeError, pickle.PicklingError)):
                pack(rows)


def test_what_is_sent_is_a_copy_and_a_small_piece_does_not_carry_the_whole_along() -> None:
    large, buffer = torch.zeros(1_000_000), io.BytesIO()
    packed = pack([{"x": large[:2]}, {"x": large[2:5]}])
    torch.save(packed, buffer)
    large += 1
    assert packed.unpack()[0]["x"].tolist() == [0.0, 0.0]
    assert buffer.tell() < 100_000


class TestStackRows:
    @given(
        sizes=st.lists(st.integers(1, 6), min_size=1, max_size=4),
        picks=st.lists(st.integers(0, 99), min_size=1, max_size=12),
    )
    def test_rows_of_several_loads_are_stacked_as_one_by_one(self, sizes: list[int], picks: list[int]) -> None:
        places = []
        for k, size in enumerate(sizes):
            load = pack([{"x": tensor(torch.float32, (3,), 10 * k + n)} for n in range(size)]).unpack()
            places += [(load, number) for number in range(size)]
        rows = [places[pick % len(places)] for pick in picks]
        stacked = stack_rows(rows)
        assert stacked is not None
        assert torch.equal(stacked["x"], torch.stack([samples[number]["x"] for samples, number in rows]))

    @pytest.mark.parametrize(
        "other",
        [
            *({"x": torch.ones(2)}, {"x": torch.ones(3).double()}, {"y": torch.ones(3)}, {"x": [1.0, 1.0, 1.0]}),
            *({"x": torch.ones(3), "y": torch.ones(3)}, [1.0]),
        ],
    )
    def test_what_does_not_fit_is_left_to_the_collator(self, other: Any) -> None:
        first, second = pack([{"x": torch.ones(3)}]).unpack(), pack([other]).unpack()
        assert stack_rows([(first, 0), (second, 0)]) is None
        assert stack_rows([(second, 0), (first, 0)]) is None
        ragged = pack([{"x": torch.ones(3)}, {"x": torch.ones(2)}]).unpack()
        assert stack_rows([(ragged, 0), (ragged, 1)]) is None
