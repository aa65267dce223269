"""Methods beside probes, loss weights, steps of any size, and memory that runs out."""

from pathlib import Path
from typing import Any

import pytest
import torch

from mixer import PiKE
from mixer.policies import Decision, Policy
from replay import ReplayBuffer, ReplayRatio
from replay.methods import AGEM, DER, DERPlusPlus
from tests.helpers import weights_of
from tests.replay.methods.runs import Classifier, Points, make_trainer, spied
from tests.replay.methods.test_golden import CASES, follow

METHODS: dict[str, Any] = {
    "DER": lambda: {"methods": [DER()]},
    "DER++": lambda: {"methods": [DERPlusPlus(second="second")], "second": True},
    "A-GEM": lambda: {"methods": [AGEM()]},
    "MIR": lambda: {"buffer": ReplayBuffer(12, retrieval="MIR")},
    "gradients": lambda: {"buffer": ReplayBuffer(12, "GradientDiversity")},
}


def _two() -> dict[str, Points]:
    return {"first": Points(30, 1), "second new": Points(20, 2)}


@pytest.mark.parametrize("name", METHODS)
def test_beside_a_policy_that_probes_gradients(tmp_path: Path, name: str) -> None:
    mixing = ReplayRatio(0.4, PiKE(interval_steps=2))
    trainer = make_trainer(tmp_path, new=_two(), mixing=mixing, batch_size=13, max_steps=6, **METHODS[name]())
    trainer.train()
    assert len(trainer.ledger.to_pandas()["step"].unique()) == 6
    assert bool(weights_of(trainer.model).isfinite().all())


def test_a_probe_sees_the_gradient_of_a_term(tmp_path: Path) -> None:
    """Of the memory's stream the term is all that there is to see."""
    found = []
    for alpha in (0.0, 0.5, 1.0):
        mixing = ReplayRatio(0.5, PiKE(interval_steps=1))
        trainer = make_trainer(
            tmp_path / str(alpha), [DER(alpha=alpha)], new=_two(), mixing=mixing, max_steps=2, learning_rate=0.3
        )
        trainer.train()
        found.append(float(trainer._parts.probe.statistics.gram[2, 2]))
    assert found[0] == pytest.approx(0.0, abs=1e-12)
    assert found[2] == pytest.approx(4 * found[1], rel=1e-3)


class _Weighted(Policy):
    """Loss weights of 1/2 and 2 for the new streams."""

    def start(self, mixture: Any) -> Decision:
        import numpy as np

        weights = np.array([0.4, 0.2, 0.4])
        return Decision(weights, loss_weights=np.array([0.5, 2.0, 3.0]))

    def update(self, observation: Any) -> Decision:
        return self.start(None)


def test_loss_weights_rule_the_new_samples_and_leave_the_term_alone(tmp_path: Path) -> None:
    import torch.nn.functional as F  # noqa: N812

    trainer, spy = spied(tmp_path, DER(alpha=0.7), new=_two(), mixing=_Weighted(), max_steps=3)
    model, kept = Classifier(), {}
    for batch, rate in zip(spy.batches, spy.rates, strict=True):
        num_new = sum(len(batch[name]["x"]) for name in _two() if name in batch)
        loss = torch.zeros((), dtype=torch.float64)
        for name, weight in zip(_two(), (0.5, 2.0), strict=True):
            if name in batch:
                own = model(**batch[name])["logits"]
                loss = loss + weight * F.cross_entropy(own, batch[name]["labels"], reduction="sum") / num_new
                kept |= {x.numpy().tobytes(): z for x, z in zip(batch[name]["x"], own.detach(), strict=True)}
        if "memory" in batch:
            stored = torch.stack([kept[x.numpy().tobytes()] for x in batch["memory"]["x"]])
            loss = loss + 0.7 * F.mse_loss(model(**batch["memory"])["logits"], stored)
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= rate * parameter.grad
                parameter.grad = None
    torch.testing.assert_close(weights_of(trainer.model), weights_of(model), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_memory_that_runs_out_repeats_the_step_as_if_nothing_had_been(tmp_path: Path, name: str) -> None:
    class Small(Classifier):
        """Has no room for more than two rows in a backward."""

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            output = super().forward(x, labels)
            if output["logits"].requires_grad and len(x) > 2:
                output["logits"].register_hook(_no_room)
            return output

    method, gradient, changes = CASES[name]
    trainer, spy = spied(tmp_path, method(), model=Small(), auto_find_batch_size=True, **{"batch_size": 9, **changes})
    assert trainer._parts.run.loader.cap.max_samples <= 2
    steps = [number for number, rate in enumerate(spy.rates) if rate != spy.rates[number - 1] or number == 0]
    assert len(spy.rates) > len(steps) == 5
    last = [*(number - 1 for number in steps[1:]), len(spy.rates) - 1]
    spy.batches, spy.rates = [spy.batches[n] for n in last], [spy.rates[n] for n in last]
    torch.testing.assert_close(weights_of(trainer.model), weights_of(follow(spy, gradient())), rtol=0, atol=1e-12)


def _no_room(gradient: torch.Tensor) -> None:
    raise torch.OutOfMemoryError("no room")


@pytest.mark.parametrize("name", METHODS)
def test_batches_of_any_size(tmp_path: Path, name: str) -> None:
    sizes = [1, 5, 2, 11, 3, 8]
    trainer = make_trainer(
        tmp_path, batch_size=lambda step, size: sizes[step % 6], max_steps=6, **METHODS[name](), optim="adamw_torch"
    )
    trainer.train()
    assert bool(weights_of(trainer.model).isfinite().all())
