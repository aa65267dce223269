"""Losses of methods by hand, the nearest mean, and terms under a gradient scaler, in parts, without skipped samples."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from examples.own_methods import HoldWeights, KeepPredictions
from mixer import MixingTrainer
from mixer.trainer.method import Method
from replay import ReplayBuffer
from replay.methods.logits import softened_divergence
from tasks.methods import CLSER, ERACE, ICaRL, LwF, nearest_mean
from tests.helpers import arguments, mixing_trainer, weights_of
from tests.ranks.warm import some
from tests.refusals import refused
from tests.replay.methods.runs import Classifier, Points, logged, spied
from tests.tasks.methods.runs import Softmax, build, context, data

LOGITS = torch.tensor([[1.0, -0.5, 2.0, 0.3], [0.2, 0.8, -1.0, 1.5], [-0.7, 0.1, 0.4, 0.9]], dtype=torch.float64)
EARLIER = torch.tensor([[0.5, 0.5, 0.0, 0.0], [2.0, -1.0, 0.3, 0.1], [0.0, 1.0, 0.0, 0.2]], dtype=torch.float64)
LABELS = torch.tensor([2, 1, 3])


def begun(method: Any, world_size: int = 2) -> Any:
    """A method in its second task, of classes 2 and 3, on one of two ranks."""
    passes = SimpleNamespace(loss_factors=lambda: None, num_skipped=0, prepare_inputs=dict, model=None)
    streams: Any = [SimpleNamespace(name="second", dataset=ReplayBuffer(2), is_memory=True)]
    method.attach(context(passes, world_size, streams))
    task = {"number": 1, "name": "second", "classes": (2, 3), "seen": (0, 1, 2, 3), "earlier": ((0, 1),)}
    method.begin_task(SimpleNamespace(**task, scenario="class"), nn.Linear(1, 1))
    method._before = SimpleNamespace(logits=lambda *_: EARLIER)
    return method


def trained(total: int = 6, stream_ids: Any = (0, 1, 0)) -> Any:
    micro = SimpleNamespace(stream_ids=np.array(stream_ids), inputs={"labels": LABELS})
    return SimpleNamespace(micro=micro, output={"logits": LOGITS}, plan=SimpleNamespace(total=total))


def test_what_did_not_change_costs_nothing_and_what_did_the_divergence_of_earlier_classes() -> None:
    assert softened_divergence(LOGITS, LOGITS, 2.0).tolist() == [0.0] * len(LOGITS)
    target, own = (EARLIER[:, :2] / 2.0).softmax(dim=-1), (LOGITS[:, :2] / 2.0).softmax(dim=-1)
    expected = 0.7 * (target * (target / own).log()).sum() / 6 * 2
    torch.testing.assert_close(begun(LwF(0.7)).term(trained()), expected)


@pytest.mark.parametrize("name", ["LwF", "LwF by task"])
def test_the_first_step_of_a_task_finds_an_unchanged_model(name: str, tmp_path: Path) -> None:
    run = build(tmp_path, name, logging_steps=1)
    run.run()
    state = (run.folder / "02-task_2" / "checkpoint-3" / "trainer_state.json").read_text()
    terms = [float(part.split(",")[0].split("\n")[0]) for part in state.split('"term/LwF": ')[1:]]
    assert terms[0] == pytest.approx(0.0, abs=1e-7)
    assert terms[1] > 1e-6


def test_new_samples_compete_among_new_classes_only() -> None:
    losses = nn.functional.cross_entropy(LOGITS, LABELS, reduction="none")
    new = LOGITS.clone()
    new[:, :2] = float("-inf")
    asymmetric = nn.functional.cross_entropy(new, LABELS, reduction="none")
    expected = (asymmetric[0] + losses[1] + asymmetric[2]) / 3
    term = begun(ERACE(), world_size=1).term(trained(total=3))
    torch.testing.assert_close(losses.mean() + term, expected)
    assert begun(ERACE()).term(trained(stream_ids=(1, 1, 1))) is None


def test_earlier_classes_learn_from_the_model_before_and_new_ones_from_labels() -> None:
    targets = torch.tensor([[0, 0, 1, 0], [0, 0, 0, 0], [0, 0, 0, 1]], dtype=torch.float64)
    targets[:, :2] = 1 / (1 + (-EARLIER[:, :2] / 2).exp())
    outputs = 1 / (1 + (-LOGITS).exp())
    losses = -(targets * outputs.log() + (1 - targets) * (1 - outputs).log())
    torch.testing.assert_close(begun(ICaRL(temperature=2.0)).term(trained()), losses.sum() / 6 * 2)


def test_replayed_samples_are_held_to_the_copy_that_is_surer_of_their_class() -> None:
    method, stable = begun(CLSER(0.7)), EARLIER.flip(1)
    method.copies = [lambda **_: {"logits": EARLIER}, lambda **_: {"logits": stable}]
    step = trained()
    step.plan.counts = np.array([4, 2])  # rows 0 and 2 are replayed
    surer = [stable[0], EARLIER[2]]  # 0.31 of class 2 against 0.19, and 0.21 of class 3 against 0.17
    expected = 0.7 * sum((LOGITS[row] - surer[place]).square().mean() for place, row in enumerate((0, 2))) / 4 * 2
    torch.testing.assert_close(method.term(step), expected)


def test_a_copy_follows_the_model_at_first_wholly_and_then_by_its_decay() -> None:
    method = begun(CLSER(decay=0.5, plastic_rate=1.0, stable_rate=0.0))
    before = [own.weight.item() for own in method.copies]
    method.run.passes.model = model = nn.Linear(1, 1)
    for weight in (1.0, 3.0, 7.0):
        nn.init.constant_(model.weight, weight)
        method.close(None)
    assert [own.weight.item() for own in method.copies] == [(1.0 + 3.0) / 4 + 7.0 / 2, before[1]]


def test_a_sample_is_of_the_class_whose_mean_is_nearest(tmp_path: Path) -> None:
    memory = ReplayBuffer(30, "ClassBalanced", is_online=False)
    run = build(tmp_path, "ERACE", memory=memory, methods=[])
    run.model = Softmax(6, 6)
    trainer, score = run._new_trainer(0), nearest_mean(memory)
    task = run.sequence[0]
    assert score.measure(trainer, task) == 0.0
    memory.remember("all", data(), labels=data().labels)
    held = [memory[slot] for slot in range(len(memory))]
    inputs, labels = (
        np.stack([sample["pixel_values"] for sample in held]),
        np.array([int(sample["labels"]) for sample in held]),
    )
    inputs /= np.linalg.norm(inputs, axis=1, keepdims=True)
    means = np.stack([inputs[labels == label].mean(axis=0) for label in range(6)])
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    columns = task.evaluation.read_columns(np.arange(len(task.evaluation)))
    own = columns["pixel_values"].numpy()
    own /= np.linalg.norm(own, axis=1, keepdims=True)
    nearest = ((own[:, None] - means) ** 2).sum(axis=-1).argmin(axis=1)
    assert score.measure(trainer, task) == (nearest == columns["labels"].numpy()).mean()
    among = nearest_mean(memory, within_task=True).measure(trainer, task)
    assert among == (((own[:, None] - means[:2]) ** 2).sum(axis=-1).argmin(axis=1) == columns["labels"].numpy()).mean()


class Scaled(MixingTrainer):
    """Trains with the gradient scaler that the Trainer has for half precision."""

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)
        self.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)


OWN: dict[str, Any] = {"HoldWeights": lambda: HoldWeights(30.0), "KeepPredictions": lambda: KeepPredictions(2.0)}


@pytest.mark.parametrize("name", some(["OnlineEWC", "SI", "LwF", "ERACE", "ICaRL", *OWN], ("SI", "HoldWeights")))
def test_a_gradient_scaler_and_the_size_of_micro_batches_change_nothing(name: str, tmp_path: Path) -> None:
    weights = []
    for trainer_class, size in ((MixingTrainer, 4), (Scaled, 1)):
        own = {"methods": [OWN[name]()]} if name in OWN else {}
        changes = {"trainer_class": trainer_class, "per_device_train_batch_size": size, **own}
        run = build(tmp_path / f"{trainer_class.__name__}-{size}", "LwF" if own else name, **changes)
        run.run()
        weights.append(weights_of(run.model))
    torch.testing.assert_close(weights[1], weights[0], rtol=1e-4, atol=1e-5)


class Penalty(Method):
    """Half the squared length of the weights, as a term or as a gradient."""

    needs = frozenset({"whole gradients"})

    def __init__(self, as_term: bool):
        self._as_term = as_term
        self.found: list[torch.Tensor] = []

    def attach(self, run: Any) -> None:
        self.run = run

    def term(self, trained: Any) -> torch.Tensor | None:
        if not self._as_term:
            return None
        halves = [weight.square().sum() / 2 for weight in self.run.passes.parameters]
        return self.run.mean_over_step(torch.stack(halves).sum(), trained)

    def end_backward(self, model: nn.Module) -> None:
        for weight in () if self._as_term else model.parameters():
            assert weight.grad is not None
            weight.grad += self.run.mean_over_step(weight.detach())
        scale = self.run.passes.loss_scale()
        self.found.append(torch.cat([weight.grad.flatten() / scale for weight in model.parameters()]))  # type: ignore[union-attr]


class Broken(Points):
    """Points of which some cannot be read."""

    def __getitem__(self, index: int) -> Any:
        if index % 4 == 1:
            raise OSError("no such picture")
        return super().__getitem__(index)


@pytest.mark.parametrize("kind", [Points, Broken])
@pytest.mark.parametrize("as_term", [True, False])
def test_a_penalty_has_its_gradient_whatever_is_scaled_or_skipped(as_term: bool, kind: Any, tmp_path: Path) -> None:
    data, hook, model = kind(20, seed=1), Penalty(as_term), Classifier()
    start = weights_of(model).clone()
    args = arguments(tmp_path, per_device_train_batch_size=3, max_steps=1)
    options: dict[str, Any] = {"batch_size": 20, "methods": [hook], "on_sample_error": "skip"}
    mixing_trainer(Scaled, model, args, train_dataset={"a": data}, **options).train()
    good = [index for index in range(20) if kind is Points or index % 4 != 1]
    plain = Classifier()
    loss = plain(data.x[good], data.labels[good])["loss"]
    loss.backward()
    expected = torch.cat([weight.grad.flatten() for weight in plain.parameters()]) + start  # type: ignore[union-attr]
    torch.testing.assert_close(hook.found[0], expected, rtol=1e-3, atol=1e-9)


class OnMemory(Method):
    """The mean over the replayed samples of a step of their first input."""

    def attach(self, run: Any) -> None:
        self.run = run

    def term(self, trained: Any) -> torch.Tensor | None:
        values = trained.output["logits"].sum(dim=-1) * 0 + trained.micro.inputs["x"][:, 0]
        rows, count = self.run.memory_rows(trained), self.run.num_memory_rows(trained)
        return self.run.mean_over_step(values[rows], trained, count)


@pytest.mark.parametrize("size", [1, 5])
def test_a_mean_over_replayed_samples_is_theirs_however_a_step_is_split(size: int, tmp_path: Path) -> None:
    changes = {"per_device_train_batch_size": size, "logging_steps": 1}
    trainer, spy = spied(tmp_path, OnMemory(), **changes)
    expected = [float(batch["memory"]["x"][:, 0].mean()) if "memory" in batch else 0.0 for batch in spy.batches]
    assert any(expected)
    assert logged(trainer, "term/OnMemory") == pytest.approx(expected, rel=1e-5)


def test_values_are_of_rows_or_of_the_step() -> None:
    passes: Any = SimpleNamespace(num_skipped=2, loss_scale=lambda: torch.tensor(8.0))
    run, trained = context(passes, world_size=2), SimpleNamespace(plan=SimpleNamespace(total=12))
    trained.micro = SimpleNamespace(stream_ids=np.zeros(3))
    assert float(run.mean_over_step(torch.tensor([1.0, 2.0, 3.0]), trained)) == pytest.approx(6 * 2 / 10)  # type: ignore[arg-type]
    assert float(run.mean_over_step(torch.tensor(7.0), trained)) == pytest.approx(7 * 3 * 2 / 10)  # type: ignore[arg-type]
    assert float(run.mean_over_step(torch.ones(5), trained, num_values=20)) == pytest.approx(0.5)  # type: ignore[arg-type]
    assert run.mean_over_step(torch.ones(2, 2)).tolist() == [[8.0, 8.0], [8.0, 8.0]]
    with refused("values"):
        run.mean_over_step(torch.ones(5), trained)  # type: ignore[arg-type]
