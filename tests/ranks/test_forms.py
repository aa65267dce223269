"""Streams with heads of their own on two ranks: as on one, and all ranks end together."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from transformers import TrainerCallback

from mixer import Stream
from tests.helpers import GradientRecorder, Tokens
from tests.mixer.forms import multi_task, task_streams
from tests.mixer.trainer.runs import make, train
from tests.ranks.launch import message_of
from tests.ranks.warm import Results, launched, some

NUM_STEPS = 4
CASES: dict[str, tuple[int, int, dict[str, Any]]] = {
    "unequal": (14, 64, {}),
    "parts": (14, 2, {}),
    "lonely": (3, 64, {}),  # fewer samples than tasks: some ranks have none of a task
    "conflict": (14, 64, {"conflict": "pcgrad"}),
}
FEW = ("parts", "lonely")


def trained(name: str, folder: Path) -> tuple[Tensor, list[dict[str, float]]]:
    batch_size, micro, options = CASES[name]
    rules = {"mixing": {"topic": 7, "stars": 1, "flags": 2, "tags": 4}, "batch_size": batch_size, **options}
    rules |= {"train_dataset": task_streams(topic={"loss_weight": 2.0}), "callbacks": [recorder := GradientRecorder()]}
    rules |= {"per_device_train_batch_size": micro, "max_steps": NUM_STEPS}
    trainer = train(folder / name, multi_task(), **rules)
    logs = [entry for entry in trainer.state.log_history if "loss" in entry]
    logs = [{key: entry[key] for key in entry if key.startswith(("loss", "count"))} for entry in logs]
    return torch.stack(recorder.gradients), logs


class _WrongOnOneRank(Tokens):
    def __getitem__(self, index: int) -> dict[str, Tensor]:
        row = super().__getitem__(index)
        return {**row, "labels": row["labels"] + 5} if dist.get_rank() and self.is_wrong else row

    is_wrong = False


class _Turn(TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        _WrongOnOneRank.is_wrong = state.global_step == 2


def labels(folder: Path) -> str:
    streams = [*task_streams(["stars"]), Stream("topic", _WrongOnOneRank(12, 1, "sequence-classification"))]
    own = {"max_steps": NUM_STEPS, "batch_size": 8, "callbacks": [_Turn()]}
    return message_of(make(folder, multi_task(), train_dataset=streams, **own).train)


def unused_heads(folder: Path) -> list[str]:
    own = {"train_dataset": task_streams(), "batch_size": 8}
    options = ({"ddp_find_unused_parameters": False}, {"gradient_checkpointing": True}, {})
    return [message_of(partial(make, folder, multi_task(), **own, **changes)) for changes in options]


results = launched(
    *(unused_heads, labels, *(partial(trained, name) for name in FEW)),
    rare=[*(partial(trained, name) for name in CASES if name not in FEW)],
)


@pytest.mark.parametrize("name", some(CASES, FEW))
def test_the_gradient_is_that_of_one_process(results: Results, tmp_path: Path, name: str) -> None:
    expected, logs = trained(name, tmp_path)
    assert expected.abs().amax(dim=1).min() > 1e-3
    for result in results:
        gradients, found = result[name]
        torch.testing.assert_close(gradients, expected, rtol=0, atol=1e-10)
        assert len(found) == len(logs) == NUM_STEPS
        for mine, theirs in zip(found, logs, strict=True):
            assert mine == pytest.approx(theirs, rel=1e-5)


def test_labels_that_are_wrong_on_one_rank_end_both(results: Results) -> None:
    message = "InvalidValueError: Stream 'topic': it has the label"
    assert results[1]["labels"].startswith(message)
    assert results[0]["labels"].startswith(f"RemoteError: rank 1 failed: {message}")


def test_ranks_that_would_wait_for_unused_heads_are_refused(results: Results) -> None:
    heads = "ddp_find_unused_parameters=False: the heads of streams that a step does not draw have no gradients"
    checkpointing = "ddp_find_unused_parameters=None, which gradient checkpointing makes False"
    for result in results:
        for message, told in zip((heads, checkpointing, "no error"), result["unused_heads"], strict=True):
            assert message in told
