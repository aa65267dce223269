"""Steps by an aggregate: that of torchjd on the streams' gradients, resumed to the bit, harmless elsewhere."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from mixer import GradientAggregation, Stream
from mixer.gradients.conflict import NAMES
from mixer.run.hooks import ForwardResult
from mixer.trainer.gradient_aggregation import _KEY
from mixer.trainer.method import Method
from mixer.trainer.step import NonFiniteLossError
from mixer.utils.errors import ErrorFacts
from mixer.utils.random_state import seeded
from replay import ReplayBuffer
from replay.methods import AGEM
from tests.helpers import weights_of
from tests.mixer.aggregated import Classifier, TwoSides, at_odds, jacobian, logged, make_trainer, points, run, state_of
from tests.refusals import refused

torchjd = pytest.importorskip("torchjd.aggregation")
FULL = pytest.mark.full


RULES = {"pcgrad": torchjd.PCGrad(), "upgrad": torchjd.UPGrad(), "mgda": torchjd.MGDA(), "cagrad": torchjd.CAGrad(0.4)}


def expected(name: str, rows: Tensor, step: int) -> Tensor:
    """torchjd's own aggregate of the rows, on the scale on which weights of a mean have the mean 1."""
    with seeded(_KEY, 42, step):
        return {"pcgrad": 1, "cagrad": len(rows) / 1.4}.get(name, len(rows)) * RULES[name](rows)


def close(found: Tensor, wanted: Tensor, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(found, wanted, rtol=0, atol=tolerance)


@pytest.mark.parametrize(
    ("name", "model"), [("pcgrad", TwoSides), ("upgrad", Classifier), ("mgda", TwoSides), ("cagrad", Classifier)]
)
def test_the_gradient_is_torchjds_aggregate_of_the_streams(name: str, model: type[Classifier], tmp_path: Path) -> None:
    _, watch = run(tmp_path, name, model=model)
    assert len(watch.gradients) == 4
    for number, found in enumerate(watch.gradients):
        assert max(len(parts) for parts in watch.samples[number].values()) > 1  # several micro-batches a stream
        rows = jacobian(watch, number, model())
        assert bool((rows @ rows.T < 0).any())
        close(found, expected(name, rows, number))
        assert not torch.allclose(found, rows.sum(dim=0), atol=1e-3)


class Twice(Method):
    needs = frozenset({"one stream each"})

    def factors(self, plan: Any, items: Any) -> np.ndarray:
        return np.array([2.0, 1.0, 0.0])


class Logits(Method):
    def term(self, trained: ForwardResult) -> Tensor | None:
        return trained.output["logits"].square().sum() / 100 if trained.micro.stream_ids[0] == 1 else None


def test_loss_weights_and_terms_are_part_of_the_gradients(tmp_path: Path) -> None:
    _, watch = run(tmp_path / "weighed", "pcgrad", methods=[Twice()])
    for number, found in enumerate(watch.gradients):
        rows = torch.tensor([[2.0], [1.0]]) * jacobian(watch, number, Classifier())[:2]
        close(found, expected("pcgrad", rows, number))
    _, watch = run(tmp_path / "with a term", "upgrad", methods=[Logits()], max_steps=1)
    model = Classifier()
    rows = jacobian(watch, 0, model)
    term = sum((model(**inputs)["logits"].square().sum() / 100 for inputs in watch.samples[0][1]), torch.zeros(()))
    rows[1] += torch.cat([gradient.flatten() for gradient in torch.autograd.grad(term, list(model.parameters()))])
    close(watch.gradients[0], expected("upgrad", rows, 0))


@pytest.mark.parametrize("name", ["cagrad", "mgda"])  # which scale what they are given
def test_one_stream_is_trained_as_the_trainer_does(tmp_path: Path, name: str) -> None:
    one = {"train_dataset": {"a": at_odds()["a"]}, "mixing": None, "max_steps": 2}
    (plain, first), (trainer, second) = (run(tmp_path / str(rule), rule, **one) for rule in (None, name))
    assert all(torch.equal(*pair) for pair in zip(first.gradients, second.gradients, strict=True))
    assert torch.equal(weights_of(plain.model), weights_of(trainer.model))


def test_one_stream_in_a_step_and_streams_that_come_and_go(tmp_path: Path) -> None:
    data = at_odds()
    streams = [Stream("a", data["a"]), Stream("b", data["b"], enters_at=0.4), Stream("c", data["c"], leaves_at=0.7)]
    _, watch = run(tmp_path, "upgrad", train_dataset=streams, mixing=[1, 1, 1], max_steps=10, batch_size=5)
    rows = [jacobian(watch, number, Classifier()) for number in range(10)]
    assert {len(own) for own in rows} == {2, 3}
    for number, found in enumerate(watch.gradients):
        close(found, expected("upgrad", rows[number], number))
    _, watch = run(tmp_path, "cagrad", batch_size=1, max_steps=3)
    for number, found in enumerate(watch.gradients):  # neither scaled nor turned
        close(found, jacobian(watch, number, Classifier())[0], 1e-15)


def test_what_is_frozen_or_reached_by_no_stream_has_no_gradient(tmp_path: Path) -> None:
    def frozen() -> TwoSides:
        model = TwoSides()
        model.body.requires_grad_(False)
        return model

    seen: list[set[str]] = []

    class Look(Method):
        def end_backward(self, model: nn.Module) -> None:
            seen.append({name for name, parameter in model.named_parameters() if parameter.grad is not None})

    before = frozen().state_dict()
    trainer, _ = run(tmp_path, "upgrad", model=frozen, weight_decay=0.1, methods=[Look()])
    assert seen == [{f"{layer}.{part}" for layer in ("left", "right", "head") for part in ("weight", "bias")}] * 4
    for name, value in trainer.model.state_dict().items():
        assert torch.equal(value, before[name]) == name.startswith(("body", "none"))


def test_clipping_and_the_logged_norm_are_of_the_aggregate(tmp_path: Path) -> None:
    trainer, watch = run(tmp_path, "pcgrad", max_grad_norm=0.01)
    assert logged(trainer, "grad_norm") == pytest.approx([float(gradient.norm()) for gradient in watch.gradients])
    first, last = watch.models[:2]
    moved = torch.cat([(last[name] - first[name]).flatten() for name in first])
    assert float(moved.norm()) == pytest.approx(0.5 * 0.01, rel=1e-3)


@pytest.mark.parametrize("name", [n if n == "pcgrad" else pytest.param(n, marks=FULL) for n in NAMES])
def test_a_resumed_run_goes_on_to_the_bit(name: str, tmp_path: Path) -> None:
    options = {"max_steps": 8, "optim": "adamw_torch", "learning_rate": 0.05, "logging_steps": 3}
    whole = make_trainer(tmp_path / "whole", name, **options, save_strategy="steps", save_steps=4)
    whole.train()
    resumed = make_trainer(tmp_path / "resumed", name, **options)
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-4"))
    assert state_of(resumed) == state_of(whole)


class Poisoned(Classifier):
    """Its first loss on class 1 is not a number."""

    is_healthy = False

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        output = super().forward(x, labels)
        if self.training and int(labels[0]) == 1 and torch.is_grad_enabled() and not self.is_healthy:
            self.is_healthy = True
            output = {name: value * float("nan") for name, value in output.items()}
        return output


def test_what_is_not_finite_is_left_to_others(tmp_path: Path) -> None:
    trainer, watch = run(tmp_path / "warn", "upgrad", model=Poisoned, max_steps=1)
    assert bool(watch.gradients[0].isnan().any())  # as without an aggregator
    trainer, watch = run(tmp_path / "skip", "upgrad", model=Poisoned, nonfinite="skip")
    assert torch.equal(torch.cat([v.flatten() for v in watch.models[0].values()]), weights_of(Classifier()))
    assert all(torch.equal(watch.models[0][name], value) for name, value in watch.models[1].items())
    assert not torch.equal(weights_of(trainer.model), weights_of(Classifier()))
    assert bool(weights_of(trainer.model).isfinite().all())
    with pytest.raises(NonFiniteLossError):
        run(tmp_path / "raise", "upgrad", model=Poisoned, nonfinite="raise")


def test_what_it_cannot_be_used_beside(tmp_path: Path) -> None:
    def sparse() -> Classifier:
        model = Classifier()
        model.table = nn.Embedding(4, 2, sparse=True)
        return model

    memory = {"train_dataset": {"new": points(30, 1, 0), "memory": ReplayBuffer(12)}, "mixing": [0.5, 0.5]}
    cases: list[tuple[Any, dict[str, Any], str]] = [
        ("upgrad", {**memory, "methods": [AGEM()]}, "conflict"),
        ("upgrad", {"methods": [GradientAggregation()]}, "conflict"),
        ("upgrad", {"optim": "galore_adamw_layerwise"}, "optim"),
        ("upgrad", {"model": sparse}, "conflict"),
        (GradientAggregation, {}, "conflict"),
    ]
    for conflict, changes, option in cases:
        with refused(option, ErrorFacts):
            make_trainer(tmp_path, conflict, **changes).train()


@FULL
def test_a_step_that_is_repeated_for_lack_of_memory_comes_out_the_same(tmp_path: Path) -> None:
    def no_room(gradient: Tensor) -> None:
        raise torch.OutOfMemoryError("no room")

    class Small(Classifier):
        def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
            output = super().forward(x, labels)
            if output["logits"].requires_grad and len(x) > 2 and int(labels[0]) == 1:
                output["logits"].register_hook(no_room)
            return output

    plain, _ = run(tmp_path / "1", "upgrad")
    repeated, _ = run(tmp_path / "2", "upgrad", model=Small, auto_find_batch_size=True)
    assert repeated._parts.run.splitting.cap.max_samples < 3
    close(weights_of(repeated.model), weights_of(plain.model))
