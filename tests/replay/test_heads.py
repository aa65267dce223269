"""Replay buffers beside streams with heads of their own."""

from pathlib import Path
from typing import Any

import pytest
import torch

from mixer import Stream
from replay import ReplayBuffer, ReplayRatio
from tests.helpers import GradientRecorder, Tokens, weights_of
from tests.mixer.forms import (
    assert_logged,
    gradient_by_hand,
    logged,
    means_by_hand,
    multi_task,
    task_streams,
    watched,
)

NAMES = ["topic", "stars", "memory"]
HEADS = ["topic", "stars", "stars"]


def _memory(*names: str, **options: Any) -> ReplayBuffer:
    return ReplayBuffer(10, streams=list(names) or None, **options)


def _run(folder: Path, memory: ReplayBuffer, resume: str | None = None, **options: Any) -> Any:
    streams = [*task_streams(["topic", "stars"]), Stream("memory", memory, head="stars")]
    options = {
        "mixing": ReplayRatio(0.3),
        "batch_size": 12,
        "args": {"save_strategy": "steps", "save_steps": 2},
    } | options
    options["args"] |= {"max_steps": 5}
    trainer = watched(folder, multi_task(), streams, 5, **options)
    trainer.train(resume_from_checkpoint=resume)
    return trainer


@pytest.mark.parametrize("storage", ["references", "memory"])
def test_what_is_remembered_goes_through_its_head(tmp_path: Path, storage: str) -> None:
    recorder = GradientRecorder()
    trainer = _run(tmp_path, _memory("stars", storage=storage), callbacks=[recorder])
    for gradient, (batch, model), entry in zip(recorder.gradients, trainer.batches, logged(trainer), strict=True):
        means = means_by_hand(batch, model, HEADS)
        torch.testing.assert_close(gradient, gradient_by_hand(batch, model, means), rtol=0, atol=1e-12)
        assert_logged(entry, batch, means, NAMES)
    assert sum(int(batch.plan.counts[2]) for batch, _ in trainer.batches) > 5


def test_a_run_with_a_memory_goes_on_to_the_bit(tmp_path: Path) -> None:
    whole = _run(tmp_path, _memory("stars"))
    resumed = _run(tmp_path, _memory("stars"), str(tmp_path / "checkpoint-2"))
    assert torch.equal(weights_of(whole.model), weights_of(resumed.model))


def test_a_memory_needs_a_head(tmp_path: Path) -> None:
    streams = [*task_streams(["topic"]), Stream("memory", _memory())]
    with pytest.raises(ValueError, match=r"Stream 'memory': name the head of its samples: Stream"):
        watched(tmp_path, multi_task(), streams)


def test_a_memory_of_samples_of_another_head_is_refused(tmp_path: Path) -> None:
    for memory in (_memory(), _memory("topic"), _memory("topic", "stars")):
        with pytest.raises(
            ValueError,
            match=r"Stream 'memory': it remembers samples of the streams \['topic'\]",
        ):
            _run(tmp_path, memory)
    streams = [Stream(name, Tokens(8, 1, "regression"), head="stars") for name in ("a", "b")]
    streams.append(Stream("memory", _memory(), head="stars"))
    watched(tmp_path, multi_task(), streams, mixing=ReplayRatio(0.2)).train()


def test_what_mixes_samples_of_several_forms_is_refused(tmp_path: Path) -> None:
    message = "collated with those of other streams here, but streams have collators or heads of their own"
    with pytest.raises(ValueError, match=message):
        _run(tmp_path, _memory("stars", selection="GradientDiversity"))


def test_retrieval_by_loss_goes_through_the_head(tmp_path: Path) -> None:
    trainer = _run(tmp_path, _memory("stars", retrieval="MIR"))
    for (batch, model), entry in zip(trainer.batches, logged(trainer), strict=True):
        assert_logged(entry, batch, means_by_hand(batch, model, HEADS), NAMES)


def test_a_memory_takes_no_preprocess() -> None:
    with pytest.raises(ValueError, match="preprocessed samples, so preprocess must not be set"):
        Stream("memory", _memory(), preprocess=lambda sample: sample)
