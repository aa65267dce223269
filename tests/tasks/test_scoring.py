"""Accuracy by hand, on one rank; on two see `tests/distributed/test_continual.py`."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mixer import MixingTrainer
from tasks.scoring import accuracy
from tests.helpers import Tokens, arguments, build_model
from tests.tasks.test_continual import data, new_model


@pytest.fixture
def trainer(tmp_path: Path) -> MixingTrainer:
    return MixingTrainer(new_model(), arguments(tmp_path), train_dataset={"a": data()})


class Samples:
    """Samples one by one, or several at once."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Any:
        return data()[index]


class Several(Samples):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [data()[index] for index in indices]


@pytest.mark.parametrize("classes", [None, [0, 2], [1]])
@pytest.mark.parametrize("batch_size", [1, 7, 1_024])
def test_it_is_the_share_that_is_right(trainer: MixingTrainer, classes: list[int] | None, batch_size: int) -> None:
    logits = trainer.model(data().inputs).logits.detach().numpy()
    among = [0, 1, 2] if classes is None else classes
    expected = (np.array(among)[logits[:, among].argmax(-1)] == data().labels).mean()
    for samples in (data(), Samples(), Several()):
        assert accuracy(trainer, samples, classes, batch_size) == expected


@pytest.mark.parametrize("is_training", [True, False])
def test_the_model_stays_as_it_is(trainer: MixingTrainer, is_training: bool) -> None:
    trainer.model.train(is_training)
    before, state = trainer.model.state_dict(), torch.get_rng_state()
    accuracy(trainer, data())
    with pytest.raises(TypeError):
        accuracy(trainer, ["broken"])
    assert trainer.model.training == is_training
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(value, trainer.model.state_dict()[name]) for name, value in before.items())
    assert all(parameter.grad is None for parameter in trainer.model.parameters())


def test_what_has_no_labels_or_no_classes_is_refused(trainer: MixingTrainer, tmp_path: Path) -> None:
    unlabelled = [{"pixel_values": torch.zeros(6)}] * 3
    with pytest.raises(ValueError, match="the samples have no labels; give a score function of your own"):
        accuracy(trainer, unlabelled)
    words = Tokens(6, 0, length=5)
    other = MixingTrainer(build_model("llama"), arguments(tmp_path), train_dataset={"a": words})
    with pytest.raises(ValueError, match=r"logits of shape \[6, 5, \d+\], not \[num_rows, num_classes\]"):
        accuracy(other, words)
