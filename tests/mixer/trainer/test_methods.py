import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from mixer import MixingTrainer
from mixer.mixture.step_plan import StepPlan
from mixer.run.hooks import ForwardResult
from mixer.trainer.method import Method, RunContext
from mixer.utils.errors import InvalidTypeError
from replay import ReplayBuffer
from tests.helpers import GradientRecorder, build_model
from tests.mixer.trainer import runs
from tests.refusals import refused


class Recorded(Method):
    name = "recorded"

    def __init__(self, first: int = -1):
        self._first = first
        self.needs = frozenset({"one stream each"} if first >= 0 else ())
        self.calls: list[Any] = []

    def attach(self, run: RunContext) -> None:
        self.calls.append(("attach", [stream.name for stream in run.streams], run.world_size))

    def has_priority(self, stream_id: int) -> bool:
        return stream_id == self._first

    def begin_step(self, model: nn.Module, batch: Any) -> None:
        self.calls.append(("begin", batch.plan.step))

    def end_micro_batch(self, model: nn.Module, trained: ForwardResult, ends_priority: bool) -> None:
        assert trained.row_losses is not None
        assert len(trained.row_losses) == len(trained.items) == len(trained.micro.positions)
        self.calls.append(("micro", int(trained.micro.stream_ids[0]), ends_priority))

    def end_backward(self, model: nn.Module) -> None:
        self.calls.append(("backward",))

    def close(self, batch: Any) -> None:
        self.calls.append(("close", batch.plan.step))

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        (folder / "calls.json").write_text(json.dumps(len(self.calls)))

    def load(self, folder: Path, allow_inexact: bool = False) -> None:
        self.calls.append(("load", json.loads((folder / "calls.json").read_text())))


class Entropy(Method):
    """Adds `scale` times the mean square of the logits over the step's samples."""

    def __init__(self, scale: float):
        self.scale = scale

    def term(self, trained: ForwardResult) -> Tensor:
        per_row = trained.output.logits.square().mean(dim=-1)
        return self.scale * per_row.sum() / trained.plan.total


class _Late(Method):
    def __init__(self, need: str):
        self._need = need

    def attach(self, run: RunContext) -> None:
        self.needs = frozenset({self._need})


class Weighted(Method):
    needs = frozenset({"one stream each"})

    def __init__(self, factors: list[float]):
        self._factors = np.array(factors)

    def factors(self, plan: StepPlan, items: Any) -> Any:
        assert (items > 0).tolist() == (plan.counts > 0).tolist()
        return self._factors


def make(folder: Path, methods: Any, **changes: Any) -> MixingTrainer:
    return runs.make(folder, "bert-classifier", methods=methods, **{"mixing": "Uniform", "batch_size": 12, **changes})


def train(folder: Path, methods: Any, **changes: Any) -> MixingTrainer:
    recorder = GradientRecorder()
    trainer = make(folder, methods, callbacks=[recorder], **changes)
    trainer.gradients = recorder.gradients  # type: ignore[attr-defined]
    trainer.train()
    return trainer


def test_calls_come_in_order_and_what_goes_first_comes_first(tmp_path: Path) -> None:
    method = Recorded()
    train(tmp_path, [method], max_steps=2, per_device_train_batch_size=6)
    assert [call[:1] if call[0] == "micro" else call for call in method.calls] == [
        ("attach", ["a", "b", "c"], 1),
        *[c for step in (1, 2) for c in (("begin", step), ("micro",), ("micro",), ("backward",), ("close", step))],
    ]
    method = Recorded(first=1)
    train(tmp_path, [method], max_steps=1, per_device_train_batch_size=2)
    micros = [call[1:] for call in method.calls if call[0] == "micro"]
    assert micros == [(1, False), (1, True), (0, False), (0, False), (2, False), (2, False)]


@pytest.mark.parametrize("cap", [12, 5, 1])
def test_a_term_is_added_to_the_loss_whole_and_logged_whatever_the_micro_batches(tmp_path: Path, cap: int) -> None:
    steps: list[Any] = []

    class Watching(Entropy):
        def begin_step(self, model: nn.Module, batch: Any) -> None:
            steps.append(batch)

    options = {"max_steps": 1, "per_device_train_batch_size": cap}
    plain, trainer = (train(tmp_path, methods, **options) for methods in ([], [Watching(0.5)]))
    model = build_model("bert-classifier").train()
    inputs = [micro.inputs for micro in steps[0].micro_batches]
    batch = {name: torch.cat([own[name] for own in inputs]) for name in ("input_ids", "attention_mask")}
    (0.5 * model(**batch).logits.square().mean()).backward()
    grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    expected = torch.cat([gradient.flatten() for gradient in grads])
    torch.testing.assert_close(trainer.gradients[0] - plain.gradients[0], expected, rtol=1e-4, atol=1e-6)
    first, second = plain.state.log_history[0], trainer.state.log_history[0]
    assert first["loss"] == second["loss"]
    assert "loss/other" not in second
    assert second["term/Watching"] > 0


def test_factors_weigh_the_losses_of_streams(tmp_path: Path) -> None:
    factors = [*np.eye(3).tolist(), [0.5, 2.0, 3.0]]
    a, b, c, whole = (train(tmp_path, [Weighted(own)], max_steps=1).gradients[0] for own in factors)
    torch.testing.assert_close(whole, 0.5 * a + 2.0 * b + 3.0 * c, rtol=1e-4, atol=1e-6)


def test_methods_that_do_not_go_together_are_refused(tmp_path: Path) -> None:
    again = type("Again", (Weighted,), {})([1.0, 3.0, 1.0])
    with refused("methods"):
        make(tmp_path, [Weighted([1.0, 2.0, 0.5]), again]).train()
    with refused("methods", found=["recorded"]):
        make(tmp_path, [Recorded(), Recorded()])


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        (Entropy(0.5), "Pass a list: methods=[Entropy"),
        ([Entropy(0.5), Entropy], "methods[1] must be a method, got the class Entropy. Pass an instance"),
        (["DER"], "Methods are instances, such as DER('memory')"),
        ([ReplayBuffer(4)], "It is a stream: train_dataset="),
    ],
)
def test_what_is_no_method_is_refused(tmp_path: Path, methods: Any, message: str) -> None:
    with refused("methods", InvalidTypeError) as caught:
        make(tmp_path, methods)
    assert message in str(caught.value)


def test_a_method_goes_from_run_to_run_but_is_in_one_at_a_time(tmp_path: Path) -> None:
    method = Recorded()
    first = train(tmp_path, [method], max_steps=1)
    second = train(tmp_path, [method], max_steps=1)
    assert vars(method)["_attached_to"] is second._parts.methods._context
    with refused("methods"):
        first.train()


def test_state_and_means_of_terms_go_with_checkpoints(tmp_path: Path) -> None:
    changes = {"max_steps": 6, "save_strategy": "steps", "save_steps": 2, "logging_steps": 3}
    whole = train(tmp_path, [Recorded(), Entropy(0.5)], **changes)
    method = Recorded()
    trainer = make(tmp_path, [method, Entropy(0.5)], **changes)
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert method.calls[1][0] == "load"
    assert [call[1] for call in method.calls if call[0] == "begin"] == [3, 4, 5, 6]
    assert runs.logged(trainer, "term/Entropy") == runs.logged(whole, "term/Entropy")
    trainer.train()
    assert len(runs.logged(trainer, "term/Entropy")) == 2


@pytest.mark.parametrize("value", [[1, 2], 0.5, None])
def test_data_under_the_name_of_a_hook_is_refused_where_it_is_set(value: Any) -> None:
    with refused("memory_counts", InvalidTypeError):
        Entropy(0.5).memory_counts = value
    with refused("save", InvalidTypeError):
        type("Bad", (Method,), {"save": value})


@pytest.mark.parametrize("need", ["one stream each", "samples", "gradients"])
def test_a_need_that_is_unknown_or_comes_only_once_a_method_is_attached_is_refused(tmp_path: Path, need: str) -> None:
    with refused("methods") as error:
        make(tmp_path, [_Late(need)])
    assert error.value.found == [need]


def test_a_flag_that_is_no_longer_read_names_what_is() -> None:
    with refused("one_stream_each", kind=InvalidTypeError):
        type("Old", (Method,), {"one_stream_each": True})
    with refused("takes_weights", kind=InvalidTypeError):
        Entropy(0.5).takes_weights = True
