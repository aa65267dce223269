"""Terms and gradients of methods under a gradient scaler, in parts of any size, and without skipped samples."""

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
from tests.helpers import arguments, mixing_trainer, weights_of
from tests.ranks.warm import some
from tests.refusals import refused
from tests.replay.methods.runs import Classifier, Points, logged, spied
from tests.tasks.methods.runs import build, context


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
