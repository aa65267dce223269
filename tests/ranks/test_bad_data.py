"""Broken samples, nonsense decisions and errors of one rank, on two ranks: the same on both, and no hang."""

import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import dataloader, get_worker_info
from transformers import default_data_collator

from mixer import FAMO, Ledger, MixingTrainer
from tests.helpers import Tokens, arguments, build_model, weights_of
from tests.mixer.trainer.test_skipping import Broken, train
from tests.ranks.launch import message_of
from tests.ranks.warm import launched, run_warm, some

WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "workers": {"dataloader_num_workers": 1},
    "tokens": {"max_tokens_per_micro_batch": 30},
    "by stream": {"mixing": FAMO(), "per_device_train_batch_size": 1},
}


class Gone(Tokens):
    """Tokens of which every second cannot be loaded."""

    def __getitem__(self, index: int) -> Any:
        if index % 2:
            raise OSError("gone")
        return super().__getitem__(index)


def _trainer(folder: Path, other: Any = None, **changes: Any) -> MixingTrainer:
    named = ("per_device_train_batch_size", "dataloader_num_workers", "max_steps")
    options = {"per_device_train_batch_size": 2, "max_steps": 12}
    options |= {name: changes.pop(name) for name in named if name in changes}
    data = {"a": Tokens(20, 1), "b": other or Tokens(12, 2)}
    return MixingTrainer(
        build_model("llama"), arguments(folder, **options), train_dataset=data, **{"batch_size": 5, **changes}
    )


def skipped(name: str, folder: Path) -> list[Any]:
    """Weights and counts of a run that leaves samples out."""
    trainer = _trainer(folder / name, Broken(12, 2), on_sample_error="skip", max_skipped_share=0.5, **WAYS[name])
    trainer.train()
    return [weights_of(trainer.model), trainer.mixing.skipped.tolist()]


def too_many(folder: Path) -> str:
    return message_of(_trainer(folder, Gone(12, 2), on_sample_error="skip", max_skipped_share=0.2, max_steps=30).train)


class Deadly(Tokens):
    """Kills the worker that reads sample 7."""

    def __getitem__(self, index: int) -> Any:
        if index == 7 and get_worker_info() is not None:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


def dead_worker(folder: Path) -> str:
    # A worker that died is looked for more often than usual, so that this test takes less time.
    dataloader._MultiProcessingDataLoaderIter._try_get_data.__defaults__ = (0.5,)
    return message_of(_trainer(folder / "dead", Deadly(12, 2), dataloader_num_workers=1).train)


def _raise() -> Any:
    raise ValueError("no idea")


def nonsense(folder: Path) -> dict[str, str]:
    """Policies and schedules that give nonsense on one rank at step 2."""

    def of_one(rule: str, give: Callable[[], Any]) -> str:
        def decide(step: int, last: Any) -> Any:
            return give() if step == 2 and torch.distributed.get_rank() == 1 else last

        return message_of(_trainer(folder, **{rule: decide}).train)

    return {
        "none": of_one("mixing", lambda: None),
        "raises": of_one("mixing", _raise),
        "size raises": of_one("batch_size", _raise),
        "size huge": of_one("batch_size", lambda: 10**12),
    }


def collator(folder: Path) -> str:
    """A collator that fails on one rank."""

    def collate(samples: list[Any]) -> Any:
        if torch.distributed.get_rank() == 1:
            raise ValueError("cannot pad")
        return default_data_collator(samples)

    return message_of(_trainer(folder, data_collator=collate).train)


class Long(Tokens):
    """Tokens of which one sample is longer than the model's positions."""

    def __getitem__(self, index: int) -> Any:
        row = super().__getitem__(index)
        return {name: values.clamp(min=1).repeat(4) for name, values in row.items()} if index == 7 else row


def long(folder: Path) -> None:
    """Fails on one rank in the midst of a step, where the other waits for it."""
    args = arguments(folder, per_device_train_batch_size=1, max_steps=9)
    streams = {"a": Tokens(20, 1), "b": Long(12, 2)}
    message = message_of(MixingTrainer(build_model("gpt2"), args, train_dataset=streams, batch_size=6).train)
    (folder / f"long-{torch.distributed.get_rank()}.txt").write_text(message)
    os._exit(0)  # with its connections, which the other rank waits for


results = launched(
    *(partial(skipped, "plain"), too_many, nonsense, collator),
    rare=[*(partial(skipped, name) for name in WAYS if name != "plain"), dead_worker],
)


@pytest.mark.parametrize("name", some(WAYS, ["plain"]))
def test_two_ranks_leave_out_what_one_does(results: list[dict[str, Any]], name: str, tmp_path: Path) -> None:
    single = train(tmp_path, {"a": Tokens(20, 1), "b": Broken(12, 2)})
    (weights, counts), (other, others) = (result[name] for result in results)
    assert torch.equal(weights, other)
    assert counts == others
    assert counts[1] > 0
    if name != "by stream":  # of another policy
        assert counts == single.mixing.skipped.tolist()
        torch.testing.assert_close(weights, weights_of(single.model), rtol=0, atol=1e-5)


def test_too_many_end_the_run_on_both(results: list[dict[str, Any]]) -> None:
    for result in results:
        assert result["too_many"].startswith("TooManyBrokenError: Too many samples could not be loaded: 10 of")
        assert "of stream 'b'" in result["too_many"]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("none", ["mixing function at step 2", "None"]),
        ("raises", ["no idea", "Raised by the policy Function at step 2"]),
        ("size raises", ["no idea", "The batch-size function raised this at step 2"]),
        ("size huge", ["batch_size: Function at step 2 asks for 1e+12 samples"]),
    ],
)
def test_nonsense_on_one_rank_is_told_on_both(results: list[dict[str, Any]], name: str, told: list[str]) -> None:
    own, other = (result["nonsense"][name] for result in reversed(results))
    assert other.startswith("RemoteError: rank 1 failed: ")
    assert all(part in other for part in told)
    assert not own.startswith("RemoteError")


def test_a_collator_that_fails_on_one_rank_is_told_on_both_with_its_samples(results: list[dict[str, Any]]) -> None:
    told = results[0]["collator"]
    assert told.startswith("RemoteError: rank 1 failed: ValueError: cannot pad.")
    assert "micro-batch 0 of step 1" in told
    assert "Its samples: stream 'a': samples" in told


@pytest.mark.full
def test_an_error_in_the_midst_of_a_step_is_told_on_both(tmp_path: Path) -> None:
    run_warm(tmp_path, long)
    messages = sorted((tmp_path / f"long-{rank}.txt").read_text() for rank in range(2))
    (remote,) = [message for message in messages if message.startswith("RemoteError: rank")]
    assert Ledger(tmp_path / "ledger").to_pandas()["step"].max() >= 2  # what was trained until then is kept
    assert "In a micro-batch" in remote
    assert "Longer than the model's 32 positions: stream 'b': samples 7" in remote


@pytest.mark.full
def test_a_worker_that_dies_on_one_rank_ends_in_an_error_on_both(results: list[dict[str, Any]]) -> None:
    messages = [result["dead_worker"] for result in results]
    assert all("A worker process died" in message and "stream 'b', sample 7" in message for message in messages)
    assert sorted(message.split(":")[0] for message in messages) == ["RemoteError", "SampleError"]
