"""Accuracy by hand, on one rank; on two see `tests/ranks/test_continual.py`."""

from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from transformers import default_data_collator

from mixer import MixingTrainer
from tasks.score import accuracy, mean_loss
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
    with pytest.raises(ValueError, match=r"the samples have no \['labels'\]; give a score of your own"):
        accuracy(trainer, unlabelled)
    words = Tokens(6, 0, length=5)
    other = MixingTrainer(build_model("llama"), arguments(tmp_path), train_dataset={"a": words})
    with pytest.raises(ValueError, match=r"logits of shape \[6, 5, \d+\], not logits \[num_rows, num_classes\]"):
        accuracy(other, words)


class Doubling:
    """A collator that changes what the model sees."""

    def __call__(self, samples: list[Any]) -> dict[str, Any]:
        batch = default_data_collator(samples)
        return {**batch, "pixel_values": -batch["pixel_values"]}


def test_it_is_of_what_the_collator_makes(tmp_path: Path) -> None:
    trainer = MixingTrainer(new_model(), arguments(tmp_path), train_dataset={"a": data()}, data_collator=Doubling())
    expected = (trainer.model(-data().inputs).logits.argmax(-1).numpy() == data().labels).mean()
    for samples in (data(), Samples()):
        assert accuracy(trainer, samples) == expected


def test_columns_that_are_not_trained_on_are_left_out(trainer: MixingTrainer) -> None:
    expected = accuracy(trainer, data())
    rows = {"pixel_values": data().inputs.tolist(), "label": data().labels.tolist(), "domain": ["a"] * 40}
    assert accuracy(trainer, datasets.Dataset.from_dict(rows)) == expected
    assert mean_loss(trainer, datasets.Dataset.from_dict(rows)) == pytest.approx(mean_loss(trainer, data()), abs=1e-7)


def test_a_model_that_gives_a_dict_is_scored(trainer: MixingTrainer, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, forward = accuracy(trainer, data()), trainer.model.forward
    monkeypatch.setattr(trainer.model, "forward", lambda **inputs: {"logits": forward(**inputs).logits})
    assert accuracy(trainer, data()) == expected


def test_classes_without_an_output_are_never_right(trainer: MixingTrainer) -> None:
    assert accuracy(trainer, data(), [0, 2, 7]) == accuracy(trainer, data(), [0, 2])
    assert accuracy(trainer, data(), [7, 8]) == 0.0


@pytest.mark.parametrize("batch_size", [1, 7, 64])
def test_the_loss_is_the_mean_over_items_that_count(tmp_path: Path, batch_size: int) -> None:
    trainer = MixingTrainer(build_model("llama"), arguments(tmp_path), train_dataset={"a": Tokens(9, 0)})
    samples = [{name: torch.as_tensor(value).clone() for name, value in Tokens(9, 0)[k].items()} for k in range(9)]
    for number, sample in enumerate(samples):
        sample["labels"] = sample["input_ids"].clone()
        sample["labels"][: number % 4] = -100
    batch = default_data_collator(samples)
    logits = trainer.model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    labels = batch["labels"][:, 1:]
    expected = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels.flatten(), ignore_index=-100)
    assert mean_loss(trainer, samples, batch_size) == pytest.approx(float(expected), abs=1e-5)
