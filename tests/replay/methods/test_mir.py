from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from mixer.loading.loaded_step import StepBatch
from replay import ReplayBuffer
from replay.methods import DER, DERPlusPlus
from replay.retrieval import MIR
from tests.helpers import weights_of
from tests.replay.methods.runs import Classifier, Points, Spy, assert_same, collate, gradient_of, spied, step, trained


class _Normed(Classifier):
    """A model with all that a forward or backward may leave traces of."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(8, dtype=torch.float64)
        self.dropout = nn.Dropout(0.3)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.head(self.dropout(self.norm(self.body(x)).tanh()))
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def _losses(model: nn.Module, rows: list[dict[str, torch.Tensor]]) -> np.ndarray:
    batch = collate(rows)
    with torch.no_grad():
        return nn.functional.cross_entropy(model(**batch)["logits"], batch["labels"], reduction="none").numpy()


class _Check(Spy):
    """Computes by brute force, before each step, which entries should have been drawn."""

    def __init__(self, buffer: ReplayBuffer, rate: float | None = None):
        super().__init__()
        self.buffer, self.rate, self.num_checked = buffer, rate, 0

    def retrieve(self, step_batch: StepBatch) -> bool:
        count, start = step_batch.plan.counts.tolist()[1], step_batch.plan.starts.tolist()[1]
        if count:
            model = Classifier()
            model.load_state_dict(self.run.passes.model.state_dict())
            slots = self.buffer.retrieval.candidate_slots(start, len(self.buffer))
            rows = [self.buffer[slot] for slot in slots.tolist()]
            new = [micro.inputs for micro in step_batch.micro_batches if micro.stream_ids[0] == 0]
            batch = {key: torch.cat([inputs[key] for inputs in new]) for key in ("x", "labels")}
            before, rate = _losses(model, rows), self.run.passes.learning_rate if self.rate is None else self.rate
            step(model, gradient_of(model, model(**batch)["loss"]), rate)
            best = slots[np.argsort(before - _losses(model, rows), kind="stable")[:count]]
            drawn = self.run.planner().cursors[1].slots(np.arange(start, start + count))
            assert drawn.tolist() == best.tolist()
            self.num_checked += len(slots) > count
        return False


@pytest.mark.parametrize("rate", [None, 2.0])
def test_those_are_drawn_whose_loss_rises_most(tmp_path: Path, rate: float | None) -> None:
    buffer = ReplayBuffer(20, retrieval=MIR(candidates=9, learning_rate=rate))
    check = _Check(buffer, rate)
    trainer = trained(tmp_path, [check], buffer=buffer)
    assert check.num_checked == 4
    model = Classifier()
    for step_batch, own in zip(check.batches, check.rates, strict=True):
        batch = {key: torch.cat([part[key] for part in step_batch.values()]) for key in ("x", "labels")}
        step(model, gradient_of(model, model(**batch)["loss"]), own)
    assert_same(trainer.model, model)


def test_nothing_but_the_draw_changes(tmp_path: Path) -> None:
    buffer, model = ReplayBuffer(20, retrieval=MIR(candidates=9, learning_rate=1.0)), _Normed()
    retrieval: Any = buffer.retrieval
    redraw, seen = retrieval.redraw, []

    def state() -> list[bytes]:
        values = [value.detach().numpy().tobytes() for value in model.state_dict().values()]
        gradients = [repr(parameter.grad).encode() for parameter in model.parameters()]
        modes = [str(module.training).encode() for module in model.modules()]
        return [*values, *gradients, *modes, torch.get_rng_state().numpy().tobytes()]

    def watched(*args: Any) -> bool:
        before = state()
        seen.append(bool(redraw(*args)))
        assert state() == before
        return seen[-1]

    retrieval.redraw = watched
    trained(tmp_path, model=model, buffer=buffer, per_device_train_batch_size=16)
    assert seen == [False, True, True, True, True]


def test_workers_load_ahead_what_is_drawn_after_all(tmp_path: Path) -> None:
    weights = []
    for workers in (0, 2):
        buffer = ReplayBuffer(20, retrieval=MIR(candidates=9, learning_rate=1.0))
        weights.append(weights_of(trained(tmp_path, buffer=buffer, dataloader_num_workers=workers).model))
    assert torch.equal(*weights)


def test_a_loss_that_is_no_number_comes_last(tmp_path: Path) -> None:
    data, buffer = Points(), ReplayBuffer(20, retrieval=MIR(candidates=12), is_online=False)
    data.x[::7] = float("nan")
    buffer.remember("old", data)
    _, spy = spied(tmp_path, buffer=buffer, new=Points(seed=2))
    assert all(bool(step_batch["memory"]["x"].isfinite().all()) for step_batch in spy.batches)


@pytest.mark.parametrize(
    ("call", "option"),
    [
        (lambda: MIR(candidates=0), "candidates"),
        (lambda: MIR(learning_rate=-0.1), "learning_rate"),
        (lambda: DER(alpha=-1.0), "alpha"),
        (lambda: DER(top_k=0), "top_k"),
        (lambda: DERPlusPlus(beta=float("nan")), "beta"),
        (lambda: MIR().check(Classifier(), world_size=2), "retrieval"),
    ],
)
def test_wrong_values_and_models_without_whole_gradients_are_refused(call: Any, option: str) -> None:
    with pytest.raises(ValueError, match=f"^{option}"):
        call()
