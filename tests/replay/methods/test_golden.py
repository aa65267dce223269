"""Whole runs against loops written out by hand, in double precision."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from replay.methods import AGEM, DER, DERPlusPlus
from tests.replay.methods.runs import (
    Classifier,
    Spy,
    assert_same_weights,
    gradient_of,
    make_trainer,
    mean_loss,
    spied,
    step,
)


def _key(x: torch.Tensor) -> bytes:
    return x.numpy().tobytes()


class _Logits:
    """What the model said of each sample when it was trained on as a new one."""

    def __init__(self) -> None:
        self.known: dict[bytes, torch.Tensor] = {}

    def note(self, model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> None:
        for x, logits in zip(batch["x"], model(**batch)["logits"].detach(), strict=True):
            self.known[_key(x)] = logits

    def of(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.stack([self.known[_key(x)] for x in batch["x"]])


def _dark(alpha: float, beta: float, labelled: str) -> Callable[..., list[torch.Tensor]]:
    logits = _Logits()

    def gradient(model: Classifier, batch: dict[str, dict[str, torch.Tensor]]) -> list[torch.Tensor]:
        loss = mean_loss(model, batch["new"])
        if "memory" in batch:
            now = model(**batch["memory"])["logits"]
            loss = loss + alpha * F.mse_loss(now, logits.of(batch["memory"]))
        if labelled in batch:
            loss = loss + beta * mean_loss(model, batch[labelled])
        found = gradient_of(model, loss)
        logits.note(model, batch["new"])
        return found

    return gradient


def _agem(model: Classifier, batch: dict[str, dict[str, torch.Tensor]]) -> list[torch.Tensor]:
    gradient = gradient_of(model, mean_loss(model, batch["new"]))
    if "memory" not in batch:
        return gradient
    reference = gradient_of(model, mean_loss(model, batch["memory"]))
    product = sum((g * r).sum() for g, r in zip(gradient, reference, strict=True))
    if product >= 0:
        return gradient
    length = sum((r * r).sum() for r in reference)
    return [g - product / length * r for g, r in zip(gradient, reference, strict=True)]


CASES: dict[str, tuple[Callable[[], Any], Callable[[], Any], dict[str, Any]]] = {
    "DER": (lambda: DER(alpha=0.7), lambda: _dark(0.7, 0.0, "none"), {}),
    "DER++": (lambda: DERPlusPlus(alpha=0.7, beta=0.4), lambda: _dark(0.7, 0.4, "memory"), {}),
    "DER++ twice": (
        lambda: DERPlusPlus(alpha=0.7, beta=0.4, second="second"),
        lambda: _dark(0.7, 0.4, "second"),
        {"second": True, "batch_size": 9},
    ),
    "A-GEM": (AGEM, lambda: _agem, {"learning_rate": 0.5}),
}


def follow(spy: Spy, gradient: Callable[..., list[torch.Tensor]]) -> Classifier:
    model = Classifier()
    for batch, rate in zip(spy.batches, spy.rates, strict=True):
        step(model, gradient(model, batch), rate)
    return model


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("size", [3, 16])
def test_a_run_is_the_loop_written_out_by_hand(tmp_path: Path, name: str, size: int) -> None:
    method, gradient, changes = CASES[name]
    trainer, spy = spied(tmp_path, method(), per_device_train_batch_size=size, **changes)
    assert all("memory" in batch for batch in spy.batches[1:])
    assert_same_weights(trainer.model, follow(spy, gradient()))
    if name == "A-GEM":
        assert any(entry.get("projected/memory") == 1.0 for entry in trainer.state.log_history)
    # Not what plain replay gives.
    with pytest.raises(AssertionError):
        assert_same_weights(trainer.model, spied(tmp_path, per_device_train_batch_size=size, **changes)[0].model, 1e-6)


def test_clipping_comes_after_the_projection(tmp_path: Path) -> None:
    def clipped(model: Classifier, batch: dict[str, dict[str, torch.Tensor]]) -> list[torch.Tensor]:
        gradient = _agem(model, batch)
        norm = torch.stack([g.norm() for g in gradient]).norm()
        return [g * min(1.0, 0.1 / (float(norm) + 1e-6)) for g in gradient]

    trainer, spy = spied(tmp_path, AGEM(), max_grad_norm=0.1)
    assert_same_weights(trainer.model, follow(spy, clipped))


def test_memory_goes_first_and_micro_batches_are_of_one_stream(tmp_path: Path) -> None:
    _, spy = spied(tmp_path, AGEM(), batch_size=13)
    assert spy.orders[1][0] == 1
    assert spy.orders[1] == sorted(spy.orders[1], reverse=True)
    assert spy.orders[1].count(1) > 1


@pytest.mark.parametrize("name", ["DER", "A-GEM"])
def test_a_gradient_scaler_scales_terms_and_references_alike(tmp_path: Path, name: str) -> None:
    method, gradient, changes = CASES[name]
    spy = Spy()
    trainer = make_trainer(tmp_path, [method(), spy], **changes)
    scaler = trainer.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    trainer.train()
    assert scaler.get_scale() == 2.0**12
    assert_same_weights(trainer.model, follow(spy, gradient()))


def test_a_step_whose_memory_overflows_is_left_to_the_scaler(tmp_path: Path) -> None:
    spy = Spy()
    trainer = make_trainer(tmp_path, [AGEM(), spy], learning_rate=0.5)
    forward, num_memory = trainer.model.forward, [0]

    def overflowing(x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        output: dict[str, torch.Tensor] = forward(x, labels)
        memory = spy.batches[-1].get("memory", {"x": x[:0]})["x"] if spy.batches else x[:0]
        if len(spy.batches) == 3 and any(torch.equal(x[0], row) for row in memory):
            num_memory[0] += 1
            output["logits"].register_hook(lambda gradient: gradient * float("inf"))
        return output

    trainer.model.forward = overflowing
    trainer.train()
    assert num_memory[0] > 0
    # Without a scaler the step is taken as if there had been no memory, and nothing is spoilt.
    assert all(bool(parameter.isfinite().all()) for parameter in trainer.model.parameters())
    assert trainer.state.log_history[2]["projected/memory"] == 0.0
