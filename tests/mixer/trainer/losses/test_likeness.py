"""Whether streams can share a micro-batch."""

from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import default_data_collator

from mixer import MixingTrainer
from mixer.loading.collate import can_share_batch
from mixer.trainer.hooks import ForwardResult
from mixer.trainer.method import Method
from tests.helpers import Tokens, arguments, build_model


def _ask(collator: Any, *samples: Any) -> bool:
    return can_share_batch(collator, samples, [collator([sample]) for sample in samples])


def _padding(samples: list[dict[str, Any]]) -> dict[str, Tensor]:
    rows = [torch.as_tensor(sample["x"]) for sample in samples]
    return {"x": torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)}


def _first_decides(samples: list[dict[str, Any]]) -> dict[str, Tensor]:
    length = len(samples[0]["x"])
    return {"x": torch.stack([torch.as_tensor(sample["x"])[:length] for sample in samples])}


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ({"x": [1, 2]}, {"x": [3, 4]}, True),
        ({"x": [1, 2]}, {"x": [3, 4, 5]}, False),
        ({"x": [1, 2], "y": 1}, {"x": [3, 4]}, False),
        ({"x": [1, 2]}, {"x": [3, 4], "y": 1}, False),
        ({"x": [1], "label": 1}, {"x": [1], "label": 1.5}, False),
        ({"x": [1], "label": 1.5}, {"x": [1], "label": 1}, False),
        ({"x": [1], "label": 1}, {"x": [1], "label": 2}, True),
        ({"x": [1], "label": [1]}, {"x": [1], "label": 1}, False),
        ({"x": np.ones(2, np.float32)}, {"x": np.ones(2, np.float64)}, False),
        ({"x": torch.ones(2, 3)}, {"x": torch.ones(2, 3)}, True),
        ({"x": torch.ones(2, 3)}, {"x": torch.ones(3, 2)}, False),
    ],
)
def test_the_default_collator_loses_nothing(first: Any, second: Any, expected: bool) -> None:
    assert _ask(default_data_collator, first, second) is expected


@given(st.lists(st.integers(1, 6), min_size=2, max_size=4))
def test_a_collator_that_pads_takes_any_lengths(lengths: list[int]) -> None:
    assert _ask(_padding, *({"x": list(range(length))} for length in lengths))


@given(st.lists(st.integers(1, 6), min_size=2, max_size=4))
def test_a_collator_that_cuts_by_the_first_sample_takes_equal_ones_alone(lengths: list[int]) -> None:
    rows = [{"x": list(range(length))} for length in lengths]
    assert _ask(_first_decides, *rows) is (len(set(lengths)) == 1)


def test_what_is_no_tensor_is_known_by_its_type() -> None:
    def keep(samples: list[Any]) -> Any:
        return {"texts": [sample["text"] for sample in samples], "n": samples[0]["n"]}

    assert _ask(keep, {"text": "a", "n": 1}, {"text": "b", "n": 2})
    assert not _ask(keep, {"text": "a", "n": 1}, {"text": "b", "n": "two"})


def test_what_comes_out_in_another_form_together_is_not_alike() -> None:
    assert not can_share_batch(lambda samples: len(samples), [{}, {}], [{"x": 1}, {"x": 1}])
    assert not can_share_batch(lambda samples: {}, [{}, {}], [{"x": 1}, {"x": 1}])


# ---- In a run ----


class _Other(Tokens):
    def __getitem__(self, index: int) -> dict[str, Tensor]:
        row = dict(super().__getitem__(index))
        return {**row, "token_type_ids": torch.zeros_like(row["input_ids"])}


def _micro_batches(folder: Path, streams: Any, **options: Any) -> list[set[int]]:
    found: list[set[int]] = []

    class Watching(Method):
        def begin_micro_batch(self, trained: ForwardResult, is_synchronised: bool) -> None:
            found.append(set(trained.micro.stream_ids.tolist()))

    args = arguments(folder, max_steps=2, **options.pop("args", {}))
    options = {"train_dataset": streams, "batch_size": 8, "methods": [Watching()], **options}
    MixingTrainer(build_model("bert-classifier"), args, **options).train()
    return found


_KIND = "sequence-classification"


@pytest.mark.parametrize("is_first", [False, True])
def test_streams_that_differ_have_micro_batches_of_their_own(tmp_path: Path, is_first: bool) -> None:
    pairs = [("a", Tokens(8, 1, _KIND)), ("b", _Other(8, 2, _KIND))]
    alike = dict(reversed(pairs) if is_first else pairs)
    assert _micro_batches(tmp_path, alike) == [{0}, {1}] * 2
    assert _micro_batches(tmp_path, {"a": Tokens(8, 1, _KIND, 6), "b": Tokens(8, 2, _KIND, 9)}) == [{0}, {1}] * 2


def test_streams_that_are_alike_share_them(tmp_path: Path) -> None:
    assert _micro_batches(tmp_path, {"a": Tokens(8, 1, _KIND), "b": Tokens(8, 2, _KIND)}) == [{0, 1}] * 2


def _taking_labels_out(samples: list[Any]) -> Any:
    labels = [sample.pop("labels") for sample in samples]
    return {**default_data_collator(samples), "labels": torch.stack(labels)}


def test_a_collator_may_change_the_samples_that_it_is_given(tmp_path: Path) -> None:
    class Fresh(Tokens):
        def __getitem__(self, index: int) -> dict[str, Tensor]:
            return dict(super().__getitem__(index))

    streams = {"a": Fresh(8, 1, _KIND), "b": Fresh(8, 2, _KIND)}
    options = {"data_collator": _taking_labels_out, "args": {"remove_unused_columns": False}}
    assert _micro_batches(tmp_path, streams, **options) == [{0, 1}] * 2


def test_columns_of_tables_are_compared_after_those_that_the_model_takes_are_left(tmp_path: Path) -> None:
    def table(**more: Any) -> datasets.Dataset:
        ids = [[1, 2, 3], [4, 5, 6]] * 4
        return datasets.Dataset.from_dict({"input_ids": ids, "labels": [0, 1] * 4, **more}).with_format("torch")

    assert _micro_batches(tmp_path, {"a": table(), "b": table(source=["x"] * 8)}) == [{0, 1}] * 2
    longer = table(attention_mask=[[1, 1, 1]] * 8)
    assert _micro_batches(tmp_path, {"a": table(), "b": longer}) == [{0}, {1}] * 2


class _FailsOnce(_Other):
    """Rows of which the first that is read cannot be."""

    is_broken = True

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        if self.is_broken:
            self.is_broken = False
            raise OSError("not now")
        return super().__getitem__(index)


def _pairs(samples: list[Any]) -> Any:
    assert len(samples) > 1, "two at least"
    return default_data_collator(samples)


def test_streams_of_which_nothing_is_known_share_no_micro_batches(tmp_path: Path) -> None:
    unreadable = {"a": Tokens(8, 1, _KIND), "b": _FailsOnce(8, 2, _KIND)}
    assert _micro_batches(tmp_path, unreadable) == [{0}, {1}] * 2
    uncollated = {"a": Tokens(8, 1, _KIND), "b": _Other(8, 2, _KIND)}
    assert _micro_batches(tmp_path, uncollated, data_collator=_pairs) == [{0}, {1}] * 2


def test_reading_first_samples_leaves_no_trace(tmp_path: Path) -> None:
    class Drawing(Tokens):
        def __getitem__(self, index: int) -> dict[str, Tensor]:
            torch.rand(())
            np.random.rand()  # noqa: NPY002
            return super().__getitem__(index)

    states = []
    for kind in (Tokens, Drawing):  # the Trainer seeds the generators, and nothing moves them from there
        MixingTrainer(
            build_model("bert-classifier"),
            arguments(tmp_path),
            train_dataset={"a": kind(4, 1, _KIND), "b": kind(4, 2, _KIND)},
        )
        states.append((torch.get_rng_state(), np.random.get_state()[1]))  # type: ignore[index]  # noqa: NPY002
    assert torch.equal(states[0][0], states[1][0])
    assert np.array_equal(states[0][1], states[1][1])
