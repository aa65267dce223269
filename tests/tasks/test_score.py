"""Which score a task has, what it may be, and accuracy and loss by hand; on two ranks see `tests/ranks`."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from transformers import default_data_collator

from mixer import MixingTrainer
from mixer.utils.errors import InvalidTypeError
from tasks.score import Score, accuracy, as_score, mean_loss, score_of
from tasks.task import Task, TaskSequence
from tests.helpers import Tokens, arguments, build_model
from tests.refusals import refused
from tests.tasks.data import numbered_arrays
from tests.tasks.test_continual import data, new_model


def sequence(*have_classes: bool) -> TaskSequence:
    parts = {True: numbered_arrays([0, 1]), False: datasets.Dataset.from_dict({"x": [1, 2]})}
    return TaskSequence([Task(f"t{k}", parts[own], parts[own]) for k, own in enumerate(have_classes)], "free")  # type: ignore[arg-type]


def measured(value: Any, *others: list[Any]) -> tuple[float, str | None]:
    """What is made of a value, on as many ranks; the others tell what they found."""
    passes = SimpleNamespace(ranks=SimpleNamespace(gather=lambda own: [own, *others]))
    trainer: Any = SimpleNamespace(auxiliary_passes=passes)
    return score_of(Score(lambda trainer, task: value), trainer, sequence(True).tasks[0], "after task 1")


def test_it_is_the_accuracy_where_all_tasks_have_classes() -> None:
    assert as_score(None, sequence(True, True)).metric == "accuracy"
    loss = as_score(None, sequence(True, False))
    assert (loss.metric, loss.higher_is_better) == ("loss", False)
    own = Score(lambda trainer, task: 1.0, "f1")
    assert as_score(own, sequence(False)) is own
    with refused("score"):
        as_score("accuracy", sequence(True, False))
    with refused("score"):
        as_score("f1", sequence(True))
    with refused("score", InvalidTypeError):
        as_score(lambda trainer, task: 1.0, sequence(True))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "others", "told"),
    [
        ("high", (), "TypeError: the score must be a number, got 'high'"),
        (0.5, (["0.25", None],), "ranks gave different scores, [0.5, 0.25]: reduce them over the ranks"),
        (0.5, (["nan", "RemoteError: another"], ["nan", "ValueError: no labels"]), "rank 2: ValueError: no labels"),
    ],
)
def test_what_is_no_number_or_not_the_same_on_all_ranks_is_said(value: Any, others: Any, told: str) -> None:
    score, why = measured(value, *others)
    assert math.isnan(score)
    assert why == told
    for number in (np.float32(0.5), torch.tensor(0.5), True):
        assert measured(number, [str(float(number)), None]) == (float(number), None)


@pytest.fixture
def trainer(tmp_path: Path) -> MixingTrainer:
    return MixingTrainer(new_model(), arguments(tmp_path), train_dataset={"a": data()})


@pytest.mark.parametrize("classes", [None, [0, 2], [1]])
@pytest.mark.parametrize("batch_size", [7, 1_024])
def test_accuracy_is_the_share_that_is_right(trainer: Any, classes: list[int] | None, batch_size: int) -> None:
    logits = trainer.model(data().inputs).logits.detach().numpy()
    among = [0, 1, 2] if classes is None else classes
    expected = (np.array(among)[logits[:, among].argmax(-1)] == data().labels).mean()
    for samples in (data(), [data()[index] for index in range(40)]):
        assert accuracy(trainer, samples, classes, batch_size) == expected
    assert accuracy(trainer, data(), [*among, 7]) == expected  # classes without an output are never right
    assert accuracy(trainer, data(), [7, 8]) == 0.0


def test_the_model_stays_as_it_is(trainer: Any) -> None:
    trainer.model.train()
    before, state = trainer.model.state_dict(), torch.get_rng_state()
    accuracy(trainer, data())
    with pytest.raises(TypeError):
        accuracy(trainer, ["broken"])
    assert trainer.model.training
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(value, trainer.model.state_dict()[name]) for name, value in before.items())
    assert all(parameter.grad is None for parameter in trainer.model.parameters())


def test_what_has_no_labels_or_no_classes_is_refused(trainer: Any, tmp_path: Path) -> None:
    unlabelled = [{"pixel_values": torch.zeros(6)}] * 3
    with refused("label_names"):
        accuracy(trainer, unlabelled)
    words = Tokens(6, 0, length=5)
    other = MixingTrainer(build_model("llama"), arguments(tmp_path), train_dataset={"a": words})
    with refused("logits"):
        accuracy(other, words)


def test_it_is_of_what_the_collator_makes_and_the_model_takes(trainer: Any, tmp_path: Path, monkeypatch: Any) -> None:
    def turned(samples: list[Any]) -> dict[str, Any]:
        batch = default_data_collator(samples)
        return {**batch, "pixel_values": -batch["pixel_values"]}

    other: Any = MixingTrainer(new_model(), arguments(tmp_path), train_dataset={"a": data()}, data_collator=turned)
    expected = (other.model(-data().inputs).logits.argmax(-1).numpy() == data().labels).mean()
    assert accuracy(other, data()) == expected
    expected = accuracy(trainer, data())
    rows = {"pixel_values": data().inputs.tolist(), "label": data().labels.tolist(), "domain": ["a"] * 40}
    table = datasets.Dataset.from_dict(rows)
    assert accuracy(trainer, table) == expected
    assert mean_loss(trainer, table) == pytest.approx(mean_loss(trainer, data()), abs=1e-7)
    forward = trainer.model.forward
    monkeypatch.setattr(trainer.model, "forward", lambda **inputs: {"logits": forward(**inputs).logits})
    assert accuracy(trainer, data()) == expected


@pytest.mark.parametrize("batch_size", [1, 7, 64])
def test_the_loss_is_the_mean_over_items_that_count(tmp_path: Path, batch_size: int) -> None:
    trainer: Any = MixingTrainer(build_model("llama"), arguments(tmp_path), train_dataset={"a": Tokens(9, 0)})
    samples = [dict(Tokens(9, 0)[k]) for k in range(9)]
    for number, sample in enumerate(samples):
        sample["labels"] = sample["input_ids"].clone()
        sample["labels"][: number % 4] = -100
    batch = default_data_collator(samples)
    logits = trainer.model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    labels = batch["labels"][:, 1:]
    expected = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels.flatten(), ignore_index=-100)
    assert mean_loss(trainer, samples, batch_size) == pytest.approx(expected.item(), abs=1e-5)
    other = build_model("llama").requires_grad_(requires_grad=False)
    for weight in other.parameters():
        weight.zero_()
    assert mean_loss(trainer, samples, batch_size, other) == pytest.approx(math.log(other.config.vocab_size), abs=1e-5)
