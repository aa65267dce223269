from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from mixer import Decision, PiKE, Policy
from replay import ReplayBuffer, ReplayRatio
from replay.methods import AGEM, DER, DERPlusPlus
from tests.helpers import weights_of
from tests.replay.methods.runs import Classifier, Points, Spy, assert_same, gradient_of, make_trainer, spied, step

Batch = dict[str, dict[str, torch.Tensor]]
Gradient = Callable[[Classifier, Batch], list[torch.Tensor]]


class _Dark:
    """The loss of the new samples, and what the model said of those of memory when it was trained on them as new."""

    def __init__(self, alpha: float, beta: float = 0.0, labelled: str = "none", weights: Any = None) -> None:
        self.alpha, self.beta, self.labelled, self.weights = alpha, beta, labelled, weights or {"new": 1.0}
        self.known: dict[bytes, torch.Tensor] = {}

    def __call__(self, model: Classifier, batch: Batch) -> list[torch.Tensor]:
        new = {name: batch[name] for name in self.weights if name in batch}
        num_new = sum(len(own["x"]) for own in new.values())
        loss = torch.zeros((), dtype=torch.float64)
        for name, own in new.items():
            loss = loss + self.weights[name] * model(**own)["loss"] * len(own["x"]) / num_new
        if "memory" in batch:
            kept = torch.stack([self.known[x.numpy().tobytes()] for x in batch["memory"]["x"]])
            loss = loss + self.alpha * F.mse_loss(model(**batch["memory"])["logits"], kept)
        if self.labelled in batch:
            loss = loss + self.beta * model(**batch[self.labelled])["loss"]
        found = gradient_of(model, loss)
        for own in new.values():
            said = model(**own)["logits"].detach()
            self.known |= {x.numpy().tobytes(): logits for x, logits in zip(own["x"], said, strict=True)}
        return found


def _agem(model: Classifier, batch: Batch) -> list[torch.Tensor]:
    gradient = gradient_of(model, model(**batch["new"])["loss"])
    if "memory" not in batch:
        return gradient
    reference = gradient_of(model, model(**batch["memory"])["loss"])
    product = sum((g * r).sum() for g, r in zip(gradient, reference, strict=True))
    if product >= 0:
        return gradient
    length = sum((r * r).sum() for r in reference)
    return [g - product / length * r for g, r in zip(gradient, reference, strict=True)]


def _clipped(model: Classifier, batch: Batch) -> list[torch.Tensor]:
    gradient = _agem(model, batch)
    norm = torch.stack([g.norm() for g in gradient]).norm()
    return [g * min(1.0, 0.1 / (float(norm) + 1e-6)) for g in gradient]


CASES: dict[str, tuple[Callable[[], Any], Callable[[], Gradient], dict[str, Any]]] = {
    "DER": (lambda: DER(alpha=0.7), lambda: _Dark(0.7), {}),
    "DER++": (lambda: DERPlusPlus(alpha=0.7, beta=0.4), lambda: _Dark(0.7, 0.4, "memory"), {}),
    "DER++ twice": (
        lambda: DERPlusPlus(alpha=0.7, beta=0.4, second="second"),
        lambda: _Dark(0.7, 0.4, "second"),
        {"second": True, "batch_size": 9},
    ),
    "A-GEM": (AGEM, lambda: _agem, {"learning_rate": 0.5}),
    "A-GEM, clipped": (AGEM, lambda: _clipped, {"max_grad_norm": 0.1}),  # after the projection
}


def follow(spy: Spy, gradient: Gradient) -> Classifier:
    model = Classifier()
    for batch, rate in zip(spy.batches, spy.rates, strict=True):
        step(model, gradient(model, batch), rate)
    return model


@pytest.mark.parametrize(("name", "size"), [*((name, 3) for name in CASES), ("DER++ twice", 16), ("A-GEM", 16)])
def test_a_run_is_the_loop_written_out_by_hand(tmp_path: Path, name: str, size: int) -> None:
    method, gradient, changes = CASES[name]
    trainer, spy = spied(tmp_path, method(), per_device_train_batch_size=size, **changes)
    assert all("memory" in batch for batch in spy.batches[1:])
    assert_same(trainer.model, follow(spy, gradient()))
    if name == "A-GEM":
        assert any(entry.get("projected/memory") == 1.0 for entry in trainer.state.log_history)
        assert all(order == sorted(order, reverse=True) for order in spy.orders)  # memory goes first
    with pytest.raises(AssertionError):  # not what new samples alone give
        assert_same(trainer.model, follow(spy, _Dark(0.0)), 1e-6)


@pytest.mark.parametrize("name", ["DER", "A-GEM"])
def test_a_gradient_scaler_scales_terms_and_references_alike(tmp_path: Path, name: str) -> None:
    method, gradient, changes = CASES[name]
    spy = Spy()
    trainer = make_trainer(tmp_path, [method(), spy], **changes)
    scaler = trainer.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    trainer.train()
    assert scaler.get_scale() == 2.0**12
    assert_same(trainer.model, follow(spy, gradient()))


def test_a_step_of_memory_alone_changes_nothing(tmp_path: Path) -> None:
    buffer = ReplayBuffer(12, is_online=False)
    buffer.remember("old", Points(seed=2))
    trainer, spy = spied(tmp_path, AGEM(), buffer=buffer, batch_size=1, max_steps=6)
    assert {str(sorted(batch)) for batch in spy.batches} == {"['memory']", "['new']"}
    steps = [each for each in zip(spy.batches, spy.rates, strict=True) if "new" in each[0]]
    spy.batches, spy.rates = map(list, zip(*steps, strict=True))
    assert_same(trainer.model, follow(spy, _agem))


METHODS: dict[str, Any] = {
    "DER++": lambda: {"methods": [DERPlusPlus()]},
    "DER++ twice": lambda: {"methods": [DERPlusPlus(second="second")], "second": True, "batch_size": 9},
    "A-GEM": lambda: {"methods": [AGEM()], "learning_rate": 0.5},
    "MIR": lambda: {"buffer": ReplayBuffer(12, retrieval="MIR")},
}


def _two() -> dict[str, Points]:
    return {"first": Points(30, 1), "second new": Points(20, 2)}


def test_a_probe_sees_the_gradient_of_a_term(tmp_path: Path) -> None:
    """Of the memory's stream the term is all that there is to see."""
    found = []
    for alpha in (0.0, 0.5, 1.0):
        options = {"mixing": ReplayRatio(0.5, PiKE(interval_steps=1)), "max_steps": 2, "learning_rate": 0.3}
        trainer, _ = spied(tmp_path / str(alpha), DER(alpha=alpha), new=_two(), **options)
        found.append(float(trainer._parts.probe.statistics.gram[2, 2]))
    assert found[0] == pytest.approx(0.0, abs=1e-12)
    assert found[2] == pytest.approx(4 * found[1], rel=1e-3)


class _Weighted(Policy):
    def start(self, mixture: Any) -> Decision:
        return Decision(np.array([0.4, 0.2, 0.4]), loss_weights=np.array([0.5, 2.0, 3.0]))

    def update(self, observation: Any) -> Decision:
        return self.start(None)


def test_loss_weights_rule_the_new_samples_and_leave_the_term_alone(tmp_path: Path) -> None:
    trainer, spy = spied(tmp_path, DER(alpha=0.7), new=_two(), mixing=_Weighted(), max_steps=3)
    assert_same(trainer.model, follow(spy, _Dark(0.7, weights={"first": 0.5, "second new": 2.0})))


@pytest.mark.parametrize("name", ["DER++ twice", "A-GEM"])
def test_memory_that_runs_out_repeats_the_step_as_if_nothing_had_been(tmp_path: Path, name: str) -> None:
    def no_room(gradient: torch.Tensor) -> None:
        raise torch.OutOfMemoryError("no room")

    class Small(Classifier):
        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            output = super().forward(x, labels)
            if output["logits"].requires_grad and len(x) > 2:
                output["logits"].register_hook(no_room)
            return output

    method, gradient, changes = CASES[name]
    trainer, spy = spied(tmp_path, method(), model=Small(), auto_find_batch_size=True, **{"batch_size": 9, **changes})
    assert trainer._parts.run.splitting.cap.max_samples <= 2
    assert trainer.buffer.num_offered == trainer.mixing.seen[0]
    last = [n for n, rate in enumerate(spy.rates) if spy.rates[n + 1 : n + 2] != [rate]]
    assert len(spy.rates) > len(last) == 5
    spy.batches, spy.rates = [spy.batches[n] for n in last], [spy.rates[n] for n in last]
    assert_same(trainer.model, follow(spy, gradient()))


@pytest.mark.parametrize("name", METHODS)
def test_a_resumed_run_goes_on_to_the_bit(tmp_path: Path, name: str) -> None:
    options = {"max_steps": 6, "optim": "adamw_torch", "learning_rate": 0.05, "save_strategy": "steps", "save_steps": 3}
    ends = []
    for folder, checkpoint in (("whole", None), ("resumed", str(tmp_path / "whole" / "checkpoint-3"))):
        trainer = make_trainer(tmp_path / folder, **{**options, **METHODS[name]()})
        trainer.train(resume_from_checkpoint=checkpoint)
        held, slots = trainer.buffer.entries, np.arange(len(trainer.buffer))
        kept = trainer.buffer.payloads(slots, "logits") if name.startswith("DER") else []
        ends.append([weights_of(trainer.model).numpy(), *held.values(), *kept])
    assert all(np.array_equal(first, second) for first, second in zip(*ends, strict=True))
