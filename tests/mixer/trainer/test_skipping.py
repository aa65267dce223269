"""Samples that cannot be loaded: the run ends, or goes on without them, exactly and within bounds."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from torch.utils.data import IterableDataset

from mixer import MixingTrainer, Stream
from mixer.loading.reader import SampleError
from mixer.mixture.bad_samples import Skipping, TooManyBrokenError
from replay import InMemory, ReplayBuffer
from tests.helpers import Tokens, weights_of
from tests.mixer.trainer import runs
from tests.refusals import refused

BROKEN = (3, 7)


class Broken(Tokens):
    def __getitem__(self, index: int) -> Any:
        if index in BROKEN:
            raise OSError("disk on fire")
        return None if index == 9 else super().__getitem__(index)


class Ignored(Tokens):
    """The same tokens; those that are broken there have no labels that count."""

    def __getitem__(self, index: int) -> Any:
        row = super().__getitem__(index)
        return {**row, "labels": torch.full_like(row["labels"], -100)} if index in (*BROKEN, 9) else row


def train(folder: Path, streams: Any, resume: bool = False, **changes: Any) -> MixingTrainer:
    rules = {"on_sample_error": "skip", "max_skipped_share": 0.5, "batch_size": 5}
    options = {"max_steps": 12, "per_device_train_batch_size": 2, **rules, **changes}
    trainer = runs.make(folder, train_dataset=streams, **options)
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def streams() -> dict[str, Tokens]:
    return {"a": Tokens(20, 1), "b": Broken(12, 2)}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> MixingTrainer:
    return train(tmp_path_factory.mktemp("plain"), streams(), save_strategy="steps", save_steps=7)


def test_a_step_is_what_it_is_without_the_terms_of_the_skipped_sample(plain: MixingTrainer, tmp_path: Path) -> None:
    ignored = train(tmp_path, {"a": Tokens(20, 1), "b": Ignored(12, 2)})
    torch.testing.assert_close(weights_of(plain.model), weights_of(ignored.model), rtol=0, atol=1e-6)
    rows = plain.ledger.to_pandas(), ignored.ledger.to_pandas()
    left, right = (own.drop(columns=["loss", "tokens", "skipped"]) for own in rows)
    assert left.equals(right)
    assert plain.mixing.skipped.tolist() == [0, sum(rows[0].groupby("stream")["skipped"].max())]
    assert plain.mixing.skipped[1] >= 3
    assert not rows[1]["skipped"].any()


@pytest.mark.parametrize(
    "changes",
    [
        {"dataloader_num_workers": 2},
        {"max_tokens_per_micro_batch": 30},
        {"train_sampling_strategy": "group_by_length"},
        {"mixing": "LossChange", "per_device_train_batch_size": 1},
    ],
    ids=lambda changes: "-".join(changes),
)
def test_how_samples_are_loaded_makes_no_difference(plain: MixingTrainer, changes: Any, tmp_path: Path) -> None:
    other = train(tmp_path, streams(), **changes)
    if not changes.keys() & {"mixing", "train_sampling_strategy"}:  # which change what a step draws
        torch.testing.assert_close(weights_of(plain.model), weights_of(other.model), rtol=0, atol=1e-5)
        assert plain.ledger.to_pandas()["skipped"].equals(other.ledger.to_pandas()["skipped"])
    assert other.mixing.skipped[1] > 0


def test_a_run_goes_on_as_if_it_had_not_stopped(plain: MixingTrainer, tmp_path: Path) -> None:
    shutil.copytree(str(plain.args.output_dir), tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoint-12")
    resumed = train(tmp_path / "run", streams(), resume=True, save_strategy="steps", save_steps=7)
    assert torch.equal(weights_of(plain.model), weights_of(resumed.model))
    assert plain.mixing.skipped.tolist() == resumed.mixing.skipped.tolist()
    assert resumed.ledger.to_pandas().groupby("stream")["skipped"].max()["b"] == resumed.mixing.skipped[1]


def _rows() -> Iterator[dict[str, Any]]:
    for row in Tokens(13, 4).rows:
        yield {name: values.tolist() for name, values in row.items()}


def _made(row: dict[str, Any]) -> dict[str, Any]:
    if row["input_ids"][0] % 3 == 0:
        raise ValueError("bad row")
    return {name: torch.tensor(values) for name, values in row.items()}


class _OwnRows(IterableDataset[Any]):
    def __init__(self, make: Any = dict):
        self.make = make

    def __iter__(self) -> Iterator[dict[str, Any]]:
        yield from map(self.make, _rows())


@pytest.mark.parametrize(
    ("data", "changes", "error", "message"),
    [
        (Broken(12, 2), {"on_sample_error": "raise"}, SampleError, r"Stream 'b': sample [379] (could not be|is None)"),
        (Stream("b", Broken(12, 2), on_sample_error="raise"), {"dataloader_num_workers": 1}, SampleError, "'b': s"),
        (Broken(12, 2), {"max_steps": 99, "max_skipped_share": 0.1}, TooManyBrokenError, r"10 of \d+ of .*_share=0.1"),
        (_OwnRows(_made), {"epoch_size": 33}, SampleError, r"'b': row . of shard 0 could not be .* bad row"),
        (Broken(12, 2), {"max_skipped_share": 1.5}, ValueError, "max_skipped_share must be"),
        (Broken(12, 2), {"on_sample_error": "ignore"}, ValueError, "on_sample_error must be"),
    ],
)
def test_what_ends_a_run_or_is_refused(data: Any, changes: Any, error: Any, message: str, tmp_path: Path) -> None:
    own = data if isinstance(data, Stream) else Stream("b", data)
    with pytest.raises(error, match=message):
        train(tmp_path, [Stream("a", Tokens(20, 1)), own], mixing=[0.5, 0.5], **changes)


@given(st.integers(0, 40), st.integers(0, 60), st.floats(0, 1))
def test_the_bound_is_a_share_and_ten_samples(skipped: int, more: int, share: float) -> None:
    allowed = skipped < 10 or skipped <= share * (skipped + more)
    try:
        Skipping(frozenset({1}), share).check(["a", "b"], np.array([0, skipped]), np.array([5, skipped + more]))
        assert allowed
    except TooManyBrokenError:
        assert not allowed


@pytest.mark.parametrize(
    ("make", "num_workers"), [(_OwnRows, 1), (lambda: datasets.IterableDataset.from_generator(_rows), 0)]
)
def test_iterable_rows_that_preprocess_fails_on_are_skipped(make: Any, num_workers: int, tmp_path: Path) -> None:
    num_bad = sum(row["input_ids"][0] % 3 == 0 for row in _rows())
    own = [Stream("a", Tokens(20, 1)), Stream("b", make(), preprocess=_made, max_epochs=1)]
    trainer = train(tmp_path, own, mixing=[0.5, 0.5], epoch_size=33, dataloader_num_workers=num_workers)
    assert num_bad > 0
    assert trainer.mixing.skipped.tolist() == [0, num_bad]
    assert trainer.mixing.seen[1] == 13


def test_a_broken_sample_that_was_remembered_is_skipped_again_but_contents_are_refused(tmp_path: Path) -> None:
    own = {"b": Broken(12, 2), "memory": ReplayBuffer(capacity=12)}
    trainer = train(tmp_path, own, mixing=[0.5, 0.5], max_skipped_share=0.9)
    assert trainer.mixing.skipped.min() > 0
    own["memory"] = ReplayBuffer(capacity=12, storage=InMemory())
    with refused("on_sample_error", stream="memory"):
        train(tmp_path, own, mixing=[0.5, 0.5])
