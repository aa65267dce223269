from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import default_data_collator

from mixer import MixingTrainer, Stream
from replay import ReplayBuffer, ReplayRatio
from tests.helpers import Tokens, arguments, build_model, weights_of
from tests.mixer.forms import assert_logged, gradient_by_hand, logged, means_by_hand, multi_task, task_streams, watched
from tests.refusals import refused

NAMES, HEADS = ["topic", "stars", "memory"], ["topic", "stars", "stars"]


def _make(folder: Path, **buffer: Any) -> Any:
    memory = Stream("memory", ReplayBuffer(10, **{"streams": ["stars"], **buffer}), head="stars")
    args = {"save_strategy": "steps", "save_steps": 2, "max_steps": 4}
    options = {"mixing": ReplayRatio(0.3), "batch_size": 12, "args": args}
    return watched(folder, multi_task(), [*task_streams(["topic", "stars"]), memory], 5, **options)


@pytest.mark.parametrize("options", [{}, {"storage": "memory"}, {"retrieval": "MIR"}])
def test_what_is_remembered_goes_through_its_head(tmp_path: Path, options: dict[str, Any]) -> None:
    trainer = _make(tmp_path, **options)
    trainer.train()
    steps = zip(trainer.recorder.gradients, trainer.batches, logged(trainer), strict=True)
    for gradient, (batch, model), entry in steps:
        means = means_by_hand(batch, model, HEADS)
        torch.testing.assert_close(gradient, gradient_by_hand(batch, model, means), rtol=0, atol=1e-12)
        assert_logged(entry, batch, means, NAMES)
    assert sum(int(batch.plan.counts[2]) for batch, _ in trainer.batches) > 5
    if not options:
        resumed = _make(tmp_path)
        resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
        assert torch.equal(weights_of(trainer.model), weights_of(resumed.model))


@pytest.mark.parametrize("streams", [None, ["topic"], ["topic", "stars"]])
def test_a_memory_of_samples_of_another_head_is_refused(tmp_path: Path, streams: list[str] | None) -> None:
    with pytest.raises(ValueError, match=r"Stream 'memory': it remembers samples of the streams \['topic'\]"):
        _make(tmp_path, streams=streams).train()


def test_other_memories_beside_heads(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"Stream 'memory': name the head of its samples: Stream"):
        watched(tmp_path, multi_task(), [*task_streams(["topic"]), Stream("memory", ReplayBuffer(10))])
    with refused("preprocess", stream="memory"):
        Stream("memory", ReplayBuffer(10), preprocess=lambda sample: sample)
    streams = [Stream(name, Tokens(8, 1, "regression"), head="stars") for name in ("a", "b")]
    streams.append(Stream("memory", ReplayBuffer(10), head="stars"))
    watched(tmp_path, multi_task(), streams, mixing=ReplayRatio(0.2))
    assert _make(tmp_path, is_online=False, streams=None).streams[-1].is_memory


def _loss(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
    return outputs.logits.square().mean()


def test_a_buffer_needs_the_form_of_its_streams(tmp_path: Path) -> None:
    own = {"data_collator": default_data_collator, "label_names": ["labels"], "compute_loss_func": _loss}

    def build(**memory: Any) -> None:
        streams = [Stream("a", Tokens(8, 1, "sequence-classification"), **own), Stream("m", ReplayBuffer(20), **memory)]
        args = arguments(tmp_path)
        MixingTrainer(build_model("bert-classifier"), args, train_dataset=streams, mixing=ReplayRatio(0.25))

    said = (
        r"samples of the streams \['a'\] .* its own compute_loss_func, data_collator, label_names differ .*s=\['a'\]\)"
    )
    with pytest.raises(ValueError, match=said):
        build()
    build(**own)
