"""Buffers remember samples only of streams that are trained as they are."""

from pathlib import Path
from typing import Any

import pytest
from transformers import default_data_collator

from mixer import MixingTrainer, Stream
from replay import ReplayBuffer, ReplayRatio
from tests.helpers import Tokens, arguments, build_model
from tests.mixer.forms import logged, multi_task, task_streams

_KIND = "sequence-classification"


def _loss(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
    return outputs.logits.square().mean()


@pytest.mark.parametrize(
    ("own", "fields"),
    [
        ({"compute_loss_func": _loss}, "compute_loss_func"),
        ({"data_collator": default_data_collator}, "data_collator"),
        ({"label_names": ["labels"], "compute_loss_func": _loss}, "compute_loss_func, label_names"),
    ],
)
def test_a_buffer_of_streams_with_a_form_of_their_own_is_refused(
    tmp_path: Path, own: dict[str, Any], fields: str
) -> None:
    message = rf"Stream 'memory': it remembers samples of the streams \['a'\] .* its own {fields} differ .*s=\['a'\]\)"

    def build(**memory: Any) -> None:
        streams = [Stream("a", Tokens(8, 1, _KIND), **own), Stream("memory", ReplayBuffer(20), **memory)]
        mixing = ReplayRatio(0.25)
        MixingTrainer(build_model("bert-classifier"), arguments(tmp_path), train_dataset=streams, mixing=mixing)

    with pytest.raises(ValueError, match=message):
        build()
    build(**own)


def test_a_buffer_of_samples_of_several_heads_is_refused(tmp_path: Path) -> None:
    def trainer(**buffer: Any) -> MixingTrainer:
        memory = Stream("memory", ReplayBuffer(20, **buffer), head="stars")
        streams = [*task_streams(["topic", "stars"]), memory]
        mixing = ReplayRatio(0.25)
        return MixingTrainer(multi_task(), arguments(tmp_path), train_dataset=streams, mixing=mixing, batch_size=8)

    with pytest.raises(ValueError, match=r"remembers samples of the streams \['topic'\]"):
        trainer()
    remembering = trainer(streams=["stars"])
    remembering.train()
    assert logged(remembering)[-1]["loss/memory"] > 0
    assert trainer(is_online=False).streams[-1].is_memory
