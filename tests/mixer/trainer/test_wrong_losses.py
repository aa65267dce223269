"""What a model may return as its loss, and what is refused by name."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from mixer.loading.loaded_step import MicroBatch
from mixer.trainer.micro_batch import as_scalar
from mixer.utils.errors import InvalidTypeError
from tests.helpers import weights_of
from tests.mixer.trainer.runs import make

WRONG: list[Any] = [
    (lambda loss: loss.expand(2), "shape [2] of torch.float32"),
    (lambda loss: loss > 0, "shape [] of torch.bool"),
    (lambda loss: loss.round().long(), "shape [] of torch.int64"),
]


class Bent(nn.Module):
    def __init__(self, bend: Any):
        super().__init__()
        self.embedding, self.bend = nn.Embedding(64, 1), bend

    def forward(self, input_ids: Tensor, labels: Tensor | None = None, attention_mask: Tensor | None = None) -> Any:
        return {"loss": self.bend(self.embedding(input_ids).square().mean())}


@pytest.mark.parametrize(("bend", "found"), WRONG)
def test_a_loss_that_is_no_scalar_of_floats_is_refused_with_what_it_is(tmp_path: Path, bend: Any, found: str) -> None:
    with pytest.raises(InvalidTypeError) as refused:
        make(tmp_path, Bent(bend), max_steps=1).train()
    assert (refused.value.option, refused.value.found) == ("loss", found)


def test_one_element_of_any_shape_is_a_scalar(tmp_path: Path) -> None:
    ends = []
    for bend in (lambda loss: loss, lambda loss: loss.reshape(1), lambda loss: loss.reshape(1, 1)):
        torch.manual_seed(0)
        trainer = make(tmp_path, Bent(bend), max_steps=2)
        trainer.train()
        ends.append(weights_of(trainer.model))
    assert all(torch.equal(end, ends[0]) for end in ends)


@pytest.mark.parametrize("loss", [None, 1.5, {"loss": torch.zeros(())}, torch.zeros(3)])
def test_it_names_the_stream_of_a_micro_batch_of_one(loss: Any) -> None:
    for ids, stream in (([1, 1], "b"), ([0, 1], None)):
        with pytest.raises(InvalidTypeError) as refused:
            as_scalar(loss, MicroBatch({}, np.array(ids), False), ("a", "b"))
        assert (refused.value.option, refused.value.stream) == ("loss", stream)
