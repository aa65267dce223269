"""Steps that run out of memory on one rank, and those that come in parts beside a step inside the backward."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from torch import nn
from transformers import LlamaForCausalLM

from mixer import Budget, GroupDRO, MixingTrainer, Probing, schedules
from mixer.loading.batching import MicroBatchCap, MicroBatchMemoryError, Size
from mixer.loading.loaded_step import MicroBatch
from mixer.models.side_state import Snapshot
from mixer.trainer.agreement import StepAgreement
from mixer.utils.device import is_out_of_memory
from tests.helpers import GradientRecorder, Tokens, build_model, weights_of
from tests.mixer.trainer import runs
from tests.mixer.trainer.runs import make, train
from tests.refusals import refused


def limit_memory(model: nn.Module, most_rows: int, where: str = "forward") -> list[int]:
    """Lets memory run out where a model sees more rows than so many; gives the rows of every forward to train."""
    seen: list[int] = []

    def before(module: nn.Module, args: Any, kwargs: Any) -> None:
        rows = len(kwargs["input_ids"])
        if torch.is_grad_enabled():
            seen.append(rows)
        if rows > most_rows and (where == "forward" or (where == "training" and torch.is_grad_enabled())):
            raise torch.OutOfMemoryError("no room")

    def after(module: nn.Module, args: Any, output: Any) -> None:
        def fail(gradient: torch.Tensor) -> None:
            raise torch.OutOfMemoryError("no room")

        if where == "backward" and len(output) > most_rows and output.requires_grad:
            output.register_hook(fail)

    model.register_forward_pre_hook(before, with_kwargs=True)
    model.get_input_embeddings().register_forward_hook(after)
    return seen


def run(
    folder: Path, most_rows: int | None = None, where: str = "forward", resume: Any = None, **changes: Any
) -> MixingTrainer:
    """Trains, within limited memory or without limits; the trainer has the gradients of each step."""
    options = {"model": "llama", "batch_size": 9, "max_steps": 4, **changes}
    model = build_model(options.pop("model")) if isinstance(options["model"], str) else options.pop("model")
    if most_rows is not None:
        limit_memory(model, most_rows, where)
        options["auto_find_batch_size"] = True
    recorder = GradientRecorder()
    trainer = runs.train(folder, model, resume, callbacks=[recorder], **options)
    trainer.gradients = torch.stack(recorder.gradients)
    return trainer


def iterable_streams() -> dict[str, Any]:
    rows = [{name: values.tolist() for name, values in row.items()} for row in Tokens(20, 1).rows]
    return {"rows": datasets.Dataset.from_list(rows).to_iterable_dataset(), "more": Tokens(11, 2)}


SETUPS: dict[str, Any] = {
    "map": dict,
    "workers": lambda: {"dataloader_num_workers": 1},
    "iterable": lambda: {"train_dataset": iterable_streams(), "mixing": {"rows": 1, "more": 1}},
    "tokens": lambda: {"max_tokens_per_micro_batch": 96},
}


@pytest.mark.parametrize("name", SETUPS)
def test_gradients_and_ledger_are_those_of_the_undisturbed_run(name: str, tmp_path: Path) -> None:
    whole, halved = run(tmp_path / "a", **SETUPS[name]()), run(tmp_path / "b", 2, **SETUPS[name]())
    assert whole.gradients.abs().max() > 1e-3
    torch.testing.assert_close(halved.gradients, whole.gradients, rtol=0, atol=1e-6)
    torch.testing.assert_close(weights_of(halved.model), weights_of(whole.model), rtol=0, atol=1e-6)
    for column in ("step", "stream", "count", "items", "tokens"):
        assert halved.ledger.to_pandas()[column].equals(whole.ledger.to_pandas()[column])
    totals, batches = whole.ledger.timings()["total"], halved.ledger.timings()
    assert batches["total"].tolist() == totals.tolist()
    assert (batches["micro_batches"] >= -(-totals // 2)).all()


@pytest.mark.parametrize("where", ["forward", "training", "backward"])
def test_a_repeated_step_is_that_of_the_smaller_cap_to_the_bit(where: str, tmp_path: Path) -> None:
    def with_dropout() -> nn.Module:
        config = build_model("llama").config
        config.attention_dropout = 0.3
        torch.manual_seed(0)
        return LlamaForCausalLM(config)

    small = run(tmp_path / "a", model=with_dropout(), per_device_train_batch_size=2)
    found = run(tmp_path / "b", 2, where, model=with_dropout())
    assert torch.equal(weights_of(small.model), weights_of(found.model))
    assert found._parts.run.splitting.cap == MicroBatchCap(2)


def test_the_step_is_repeated_once_for_each_halving(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = build_model("llama")
    seen = limit_memory(model, 4, "training")
    runs.train(tmp_path, model, auto_find_batch_size=True, max_steps=2, batch_size=8)
    assert seen == [8, 4, 4, 4, 4]
    [warning] = [record.getMessage() for record in caplog.records if "ran out of memory" in record.getMessage()]
    assert warning.startswith("Step 1 ran out of memory on rank 0. It is repeated with at most 4 samples per micro-b")
    with pytest.raises(MicroBatchMemoryError, match=r"Step 1 ran out of memory on rank 0 with a single sample"):
        run(tmp_path, 0)


def test_a_growing_batch_is_one_forward_until_memory_runs_out_and_the_found_size_is_kept(tmp_path: Path) -> None:
    def growing(folder: Path, most_rows: int, resume: Path | None = None) -> list[int]:
        model = build_model("llama")
        seen = limit_memory(model, most_rows, "training")
        options: dict[str, Any] = {"per_device_train_batch_size": 2, "save_strategy": "steps", "save_steps": 3}
        batch_size = schedules.Function(lambda step, size: 2 ** (step + 1))  # 2, 4, 8, 16
        sizes = {"max_samples_per_micro_batch": 100, "batch_size": batch_size, "auto_find_batch_size": True}
        runs.train(folder, model, resume, max_steps=4, **sizes, **options)
        return seen

    assert growing(tmp_path / "a", 100) == [2, 4, 8, 16]
    assert growing(tmp_path / "b", 6) == [2, 4, 8, 4, 4, *[4] * 4]
    assert growing(tmp_path / "c", 100, tmp_path / "b" / "checkpoint-3") == [4] * 4


def test_the_cap_is_saved_and_taken_up(tmp_path: Path) -> None:
    whole = run(tmp_path, 2, save_strategy="steps", save_steps=2)
    state = json.loads((tmp_path / "checkpoint-2" / "mixing.json").read_text())
    assert state["micro_batch_cap"] == {"max_samples": 2, "max_tokens": None, "was_halved": True}
    assert json.loads((tmp_path / "checkpoint-2" / "trainer_state.json").read_text())["train_batch_size"] == 8
    model = build_model("llama")
    seen = limit_memory(model, 2)
    run(tmp_path / "resumed", model=model, resume=tmp_path / "checkpoint-2", auto_find_batch_size=True)
    assert max(seen) == 2
    assert torch.equal(weights_of(whole.model), weights_of(model))


@pytest.mark.parametrize("where", ["forward", "training", "backward", "a backward with updates"])
def test_without_recovery_the_error_names_the_cap(where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, is_repeatable = build_model("llama"), "updates" not in where
    trainer = runs.make(tmp_path, model, batch_size=9, auto_find_batch_size=not is_repeatable)
    limit_memory(model, 4, where if is_repeatable else "backward")
    message = r"micro-batches of at most 8 samples. Set per_device_train_batch_size=4, with batch_size=9 .*auto_find"
    if not is_repeatable:
        monkeypatch.setattr("mixer.trainer.agreement.steps_in_backward", lambda args: True)
        message = r"=4, with batch_size=9 .* cannot repeat the step: optim='.*' updates weights"
    with pytest.raises(MicroBatchMemoryError, match=message):
        trainer.train()


@pytest.mark.parametrize(
    ("cap", "largest", "expected"),
    [
        (MicroBatchCap(16), Size(16, 100), MicroBatchCap(8)),
        (MicroBatchCap(16), Size(5, 100), MicroBatchCap(2)),
        (MicroBatchCap(3), Size(3, 100), MicroBatchCap(1)),
        (MicroBatchCap(1), Size(1, 100), None),
        (MicroBatchCap(8, 4096), Size(4, 4000), MicroBatchCap(8, 2000)),
        (MicroBatchCap(8, 10**9), Size(4, 4000), MicroBatchCap(8, 2000)),
        (MicroBatchCap(8, 1), Size(2, 0), MicroBatchCap(8, 1)),
        (MicroBatchCap(8, 10), Size(1, 4000), None),
    ],
)
def test_a_cap_is_halved_to_what_matters(cap: MicroBatchCap, largest: Size, expected: MicroBatchCap | None) -> None:
    assert cap.halved(largest) == expected


def test_a_cap_that_was_found_is_taken_up_where_it_is_smaller() -> None:
    configured = MicroBatchCap(16, 4096)
    found = MicroBatchCap(16, 512).state_dict(configured)
    assert configured.lowered_to(found) == MicroBatchCap(16, 512)
    assert configured.lowered_to(None) == configured
    for own in (MicroBatchCap(8, 128), MicroBatchCap(16)):
        assert own.lowered_to(found) == own
    assert MicroBatchCap(32).lowered_to(MicroBatchCap(8).state_dict(MicroBatchCap(8))) == MicroBatchCap(32)


def test_the_window_closes_over_the_largest_that_went_through_after_the_first_step() -> None:
    batches = [({"x": torch.zeros(2, 7), "y": torch.zeros(2), "name": "a"}, 2), ({"x": torch.zeros(3, 4)}, 3)]
    micros = [MicroBatch(inputs, np.zeros(size, dtype=np.int64), False) for inputs, size in batches]
    assert Size.largest(micros) == Size(3, 14)
    assert Size.largest([]) == Size(0, 0)
    trainer: Any = SimpleNamespace(args=SimpleNamespace(auto_find_batch_size=True))
    agreement = StepAgreement((trainer, None, None, None), None, [], None)  # type: ignore[arg-type]
    agreement.begin_run()
    are_larger = []
    # The optimizer had no state in the first step.
    for largest in [(4, 400), (4, 400), (4, 400), (3, 10), (5, 10), (1, 401), (5, 401)]:
        agreement._largest = Size(*largest)
        are_larger.append(agreement._is_larger)
        agreement.note_trained()
    assert are_larger == [True, True, False, False, True, True, False]


def test_what_counts_as_out_of_memory() -> None:
    texts = ("CUDA out of memory. Tried to allocate 2 GiB", "DefaultCPUAllocator: can't allocate memory: 4 bytes")
    for error in (torch.OutOfMemoryError("CUDA"), torch.cuda.OutOfMemoryError("x"), *map(RuntimeError, texts)):
        assert is_out_of_memory(error)
    assert not is_out_of_memory(RuntimeError("shapes do not match"))
    assert not is_out_of_memory(ValueError("out of memory."))


class _Counting(torch.nn.Module):
    """Counts rows in every way that a forward can: in place, by another tensor, and in attributes."""

    late: int

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("in_place", torch.zeros(()))
        self.register_buffer("bound_anew", torch.zeros(2**15))
        self.tensor, self.number = torch.zeros(()), 0

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        for counter in (self.in_place, self.tensor):
            counter += len(rows)
        self.bound_anew = self.bound_anew + len(rows)
        self.late = self.number = self.number + len(rows)
        return rows


def test_a_snapshot_brings_back_whatever_a_forward_changes() -> None:
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.Dropout(), _Counting())
    counter, buffers = model[2], dict(model.named_buffers())
    start, found = Snapshot(model, torch.device("cpu")), []
    for _ in range(2):
        found.append(model(torch.arange(12.0).reshape(4, 3)))
        assert counter.number == 4
        start.restore()
    assert torch.equal(*found)
    assert model[0].running_mean.tolist() == [0, 0, 0]
    assert counter.in_place == counter.tensor == counter.number == model[0].num_batches_tracked == 0
    assert not counter.bound_anew.any()
    assert all(buffer is buffers[name] for name, buffer in model.named_buffers())
    assert not hasattr(counter, "late")


class Lomo(MixingTrainer):
    """Has an optimizer that steps when it is told to in place of one whose package is not installed."""

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.accelerator.backward = lambda loss, learning_rate=None: loss.backward()
        return self.optimizer


class _NoRows(Lomo):
    """Computes its loss where nobody can tell rows apart."""

    def compute_loss(self, model: Any, inputs: Any, *args: Any, num_items_in_batch: Any = None, **kwargs: Any) -> Any:
        return model(**inputs).loss + 0.5


@pytest.mark.parametrize(
    ("kind", "options", "step"),
    [
        (Lomo, {"mixing": GroupDRO()}, 1),
        (_NoRows, {}, 2),  # the first one shows that it has no rows
        (Lomo, {"probe": Probing(interval_steps=1, homogeneous=True)}, 1),
    ],
)
def test_a_step_in_parts_is_refused_before_it_is_trained(kind: type, options: Any, step: int, tmp_path: Path) -> None:
    trainer = make(tmp_path, kind=kind, optim="lomo", batch_size=8, **options)
    before = weights_of(trainer.model).clone()
    with pytest.raises(ValueError, match=rf"optim='lomo' .* 3 micro-batches of step {step}\. .* one stream"):
        trainer.train()
    assert step > 1 or torch.equal(weights_of(trainer.model), before)
    fits = train(tmp_path, kind=Lomo, optim="lomo", batch_size=8)
    assert fits.ledger.timings()["micro_batches"].tolist() == [1, 1, 1]


def test_a_learning_rate_by_layer_cannot_follow_the_data(tmp_path: Path) -> None:
    options = {"optim": "galore_adamw_layerwise", "max_steps": -1}
    with refused("optim"):
        make(tmp_path, budget=Budget(samples=24), **options)
    make(tmp_path, budget=Budget(epochs=2), **options)
