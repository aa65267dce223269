"""Steps that run out of memory on one rank: the error is put into the model."""

import json
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from torch import nn
from transformers import LlamaForCausalLM

from mixer import MixingTrainer, schedules
from mixer.loading.batching import MicroBatchCap, MicroBatchMemoryError
from tests.helpers import GradientRecorder, Tokens, build_model, weights_of
from tests.mixer.trainer import runs


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
