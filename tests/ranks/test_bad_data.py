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

from mixer import LossChange, MixingTrainer
from tests.helpers import Tokens, weights_of
from tests.mixer.trainer.runs import make
from tests.mixer.trainer.test_skipping import Broken, train
from tests.ranks.launch import message_of
from tests.ranks.warm import Results, launched, some

WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "workers": {"dataloader_num_workers": 1},
    "tokens": {"max_tokens_per_micro_batch": 30},
    "by stream": {"mixing": LossChange(), "per_device_train_batch_size": 1},
}


class Gone(Tokens):
    def __getitem__(self, index: int) -> Any:
        if index % 2:
            raise OSError("gone")
        return super().__getitem__(index)


def _trainer(folder: Path, other: Any = None, **changes: Any) -> MixingTrainer:
    options = {"per_device_train_batch_size": 2, "max_steps": 12, "batch_size": 5, **changes}
    return make(folder, train_dataset={"a": Tokens(20, 1), "b": other or Tokens(12, 2)}, **options)


def skipped(name: str, folder: Path) -> list[Any]:
    trainer = _trainer(folder / name, Broken(12, 2), on_sample_error="skip", max_skipped_share=0.5, **WAYS[name])
    trainer.train()
    return [weights_of(trainer.model), trainer.mixing.skipped.tolist()]


def too_many(folder: Path) -> str:
    return message_of(_trainer(folder, Gone(12, 2), on_sample_error="skip", max_skipped_share=0.2, max_steps=30).train)


class Deadly(Tokens):
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


def nonsense(folder: Path) -> list[str]:
    """Policies and schedules that give nonsense on one rank at step 2."""

    def of_one(rule: str, give: Callable[[], Any]) -> str:
        def decide(step: int, last: Any) -> Any:
            return give() if step == 2 and torch.distributed.get_rank() == 1 else last

        return message_of(_trainer(folder, **{rule: decide}).train)

    gives = [("mixing", lambda: None), ("mixing", _raise), ("batch_size", _raise), ("batch_size", lambda: 10**12)]
    return [of_one(*given) for given in gives]


def collator(folder: Path) -> str:

    def collate(samples: list[Any]) -> Any:
        if torch.distributed.get_rank() == 1:
            raise ValueError("cannot pad")
        return default_data_collator(samples)

    return message_of(_trainer(folder, data_collator=collate).train)


results = launched(
    *(partial(skipped, "plain"), too_many, nonsense, collator),
    rare=[*(partial(skipped, name) for name in WAYS if name != "plain"), dead_worker],
)


@pytest.mark.parametrize("name", some(WAYS, ["plain"]))
def test_two_ranks_leave_out_what_one_does(results: Results, name: str, tmp_path: Path) -> None:
    single = train(tmp_path, {"a": Tokens(20, 1), "b": Broken(12, 2)})
    (weights, counts), (other, others) = (result[name] for result in results)
    assert torch.equal(weights, other)
    assert counts == others
    assert counts[1] > 0
    if name != "by stream":  # of another policy
        assert counts == single.mixing.skipped.tolist()
        torch.testing.assert_close(weights, weights_of(single.model), rtol=0, atol=1e-5)


def test_too_many_end_the_run_on_both(results: Results) -> None:
    for result in results:
        assert result["too_many"].startswith("TooManyBrokenError: Too many samples could not be loaded: 10 of")
        assert "of stream 'b'" in result["too_many"]


def test_nonsense_on_one_rank_is_told_on_both(results: Results) -> None:
    told = ["mixing function at step 2", "Raised by the policy Function at step 2"]
    told += ["The batch-size function raised this at step 2", "batch_size: Function at step 2 asks for 1e+12 samples"]
    for message, other, own in zip(told, *(result["nonsense"] for result in results), strict=True):
        assert other.startswith("RemoteError: rank 1 failed: ")
        assert message in other
        assert not own.startswith("RemoteError")


def test_a_collator_that_fails_on_one_rank_is_told_on_both_with_its_samples(results: Results) -> None:
    told = results[0]["collator"]
    assert told.startswith("RemoteError: rank 1 failed: ValueError: cannot pad.")
    assert "micro-batch 0 of step 1" in told
    assert "Its samples: stream 'a': samples" in told


@pytest.mark.full
def test_a_worker_that_dies_on_one_rank_ends_in_an_error_on_both(results: Results) -> None:
    messages = [result["dead_worker"] for result in results]
    assert all("A worker process died" in message and "stream 'b', sample 7" in message for message in messages)
    assert sorted(message.split(":")[0] for message in messages) == ["RemoteError", "SampleError"]
