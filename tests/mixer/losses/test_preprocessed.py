"""Samples that are preprocessed as they are read, in one process, in workers, and after a resume."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from torch.utils.data import IterableDataset

from mixer import MixingTrainer, Stream
from mixer.loading.preprocessing import preprocessed
from tests.helpers import VOCABULARY, weights_of
from tests.mixer.trainer.runs import train

_LENGTH = 6


def _raw(seed: int, count: int = 12) -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(seed)
    words = torch.randint(1, VOCABULARY, (count, _LENGTH), generator=generator).tolist()
    return [{"words": row, "input_ids": [0] * 3, "klass": row[0] % 3} for row in words]


def to_inputs(sample: dict[str, Any]) -> dict[str, Any]:
    return {"input_ids": sample["words"], "labels": sample["klass"]}


def at_random(sample: dict[str, Any]) -> dict[str, Any]:
    order = torch.randperm(_LENGTH).tolist()
    return {"input_ids": [sample["words"][place] for place in order], "labels": sample["klass"]}


class _Rows(IterableDataset[dict[str, Any]]):
    def __init__(self, rows: list[dict[str, Any]]):
        self.rows, self.epoch = rows, -1

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


class _StatefulRows(_Rows):
    def __init__(self, rows: list[dict[str, Any]]):
        super().__init__(rows)
        self.place = 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        start, self.place = self.place, 0
        for place in range(start, len(self.rows)):
            self.place = place + 1
            yield self.rows[place]
        self.place = 0

    def state_dict(self) -> dict[str, int]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.place = state["place"]


def _generate(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    yield from rows


_KINDS: dict[str, Any] = {
    "list": lambda rows: rows,
    "table": datasets.Dataset.from_list,
    "rows": _Rows,
    "rows with a state": _StatefulRows,
    "table of rows": lambda rows: datasets.Dataset.from_list(rows).to_iterable_dataset(),
    "generated": lambda rows: datasets.IterableDataset.from_generator(_generate, gen_kwargs={"rows": rows}),
}


@pytest.mark.parametrize("kind", _KINDS)
def test_each_kind_gives_what_the_function_makes(kind: str) -> None:
    rows = _raw(1)
    expected, dataset = [to_inputs(row) for row in rows], preprocessed(_KINDS[kind](rows), to_inputs)
    assert preprocessed(rows, None) is rows
    if hasattr(dataset, "__getitems__"):
        assert [dataset[index] for index in range(len(dataset))] == expected
        assert dataset.__getitems__([3, 1]) == [expected[3], expected[1]]
        return
    assert list(dataset) == list(dataset) == expected
    is_hugging_face = isinstance(dataset, datasets.IterableDataset)
    assert hasattr(dataset, "state_dict") is (is_hugging_face or kind == "rows with a state")
    dataset.set_epoch(3)
    assert is_hugging_face or dataset.dataset.epoch == 3


def _run(folder: Path, kind: str, function: Any = to_inputs, resume: Any = None, **changes: Any) -> MixingTrainer:
    streams = [Stream("own", _KINDS[kind](_raw(1)), preprocess=function)]
    streams.append(Stream("plain", [to_inputs(row) for row in _raw(2, 9)]))
    own: dict[str, Any] = {"batch_size": 7, "mixing": "Uniform", "epoch_size": 21, "train_dataset": streams}
    own |= {"max_steps": 6, "save_strategy": "steps", "save_steps": 3}
    return train(folder, "bert-classifier", resume, **own, **changes)


def _losses(trainer: MixingTrainer) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


@pytest.mark.parametrize(
    ("kind", "workers"), [*((kind, 0) for kind in _KINDS), ("rows with a state", 2), ("table of rows", 2)]
)
def test_a_run_goes_on_to_the_bit(tmp_path: Path, kind: str, workers: int) -> None:
    whole = _run(tmp_path, kind, at_random, dataloader_num_workers=workers)
    resumed = _run(tmp_path, kind, at_random, str(tmp_path / "checkpoint-3"), dataloader_num_workers=workers)
    assert torch.equal(weights_of(whole.model), weights_of(resumed.model))


@pytest.mark.parametrize("kind", ["list", "table"])  # rows are dealt out to workers, so that they come in another order
def test_any_number_of_workers_gives_the_same(tmp_path: Path, kind: str) -> None:
    one, other = (_run(tmp_path / str(own), kind, at_random, dataloader_num_workers=own) for own in (0, 2))
    assert torch.equal(weights_of(one.model), weights_of(other.model))


def test_random_functions_draw_anew_in_each_pass_and_the_same_in_each_run(tmp_path: Path) -> None:
    seen: list[tuple[int, ...]] = []

    def noting(sample: dict[str, Any]) -> dict[str, Any]:
        found = at_random(sample)
        if sample["words"] == _raw(1)[0]["words"]:
            seen.append(tuple(found["input_ids"]))
        return found

    first = _run(tmp_path / "one", "list", noting)
    assert len(set(seen)) >= 2
    torch.rand(5)
    second = _run(tmp_path / "two", "list", noting)
    assert torch.equal(weights_of(first.model), weights_of(second.model))


@pytest.mark.parametrize("kind", ["table", "table of rows"])
def test_a_function_sees_all_columns_and_may_change_its_sample(tmp_path: Path, kind: str) -> None:
    def changing(sample: dict[str, Any]) -> dict[str, Any]:
        assert set(sample) == {"words", "input_ids", "klass"}
        sample["input_ids"], sample["labels"] = sample["words"], sample["klass"]
        return sample  # with columns that the model does not take

    assert _losses(_run(tmp_path / "one", kind, changing)) == _losses(_run(tmp_path / "two", kind))


def test_a_function_that_fails_is_named_with_its_stream_and_sample(tmp_path: Path) -> None:
    def fails(sample: dict[str, Any]) -> dict[str, Any]:
        if sample["klass"] == 2:
            raise KeyError("nothing there")
        return to_inputs(sample)

    with pytest.raises(Exception, match=r"Stream 'own': sample \d+ could not be loaded: KeyError: 'nothing there'"):
        _run(tmp_path, "list", fails)
