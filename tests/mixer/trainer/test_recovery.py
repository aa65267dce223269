"""Steps that run out of memory on one rank: the error is put into the model."""

import json
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from torch import nn
from transformers import DataCollatorForLanguageModeling, LlamaForCausalLM, TrainerCallback

from mixer import MixingTrainer
from mixer.loading.memory import MicroBatchCap, MicroBatchMemoryError
from tests.helpers import GradientRecorder, Tokens, build_model, weights_of
from tests.mixer.loaders import make_loader, num_own
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
    "by-length": lambda: {"train_sampling_strategy": "group_by_length"},
    "default-size": lambda: {"batch_size": None, "gradient_accumulation_steps": 2},
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
    assert found._parts.run.loader.cap == MicroBatchCap(2)


def test_the_step_is_repeated_once_for_each_halving(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = build_model("llama")
    seen = limit_memory(model, 4, "training")
    runs.train(tmp_path, model, auto_find_batch_size=True, max_steps=2, batch_size=8)
    assert seen == [8, 4, 4, 4, 4]
    warnings = [record.getMessage() for record in caplog.records if "ran out of memory" in record.getMessage()]
    assert warnings == [
        "Step 1 ran out of memory on rank 0. It is repeated with at most 4 samples per micro-batch instead of 8 "
        "samples; the total batch size stays the same."
    ]


def test_a_collator_that_draws_counts_its_items_anew(tmp_path: Path) -> None:
    class Tokenizer:
        """As much of one as the collator asks for."""

        mask_token, mask_token_id, padding_side, pad_token_id = "[MASK]", 1, "right", 0

        def __len__(self) -> int:
            return 64

        def pad(self, rows: Any, **options: Any) -> Any:
            return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}

        def get_special_tokens_mask(self, row: list[int], **options: Any) -> list[int]:
            return [int(token == 0) for token in row]

        def convert_tokens_to_ids(self, token: str) -> int:
            return 1

    rows = [{key: row[key] for key in ("input_ids", "attention_mask")} for row in Tokens(40, 1).rows]
    options: dict[str, Any] = {"train_dataset": rows, "data_collator": DataCollatorForLanguageModeling(Tokenizer())}
    small = run(tmp_path / "a", model="bert-masked-lm", per_device_train_batch_size=2, **options)
    found = run(tmp_path / "b", 2, model="bert-masked-lm", **options)
    assert torch.equal(small.gradients, found.gradients)
    assert small.ledger.to_pandas()["items"].equals(found.ledger.to_pandas()["items"])


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


def test_a_sample_that_does_not_fit_ends_the_run(tmp_path: Path) -> None:
    message = r"Step 1 ran out of memory on rank 0 with a single sample"
    with pytest.raises(MicroBatchMemoryError, match=message) as caught:
        run(tmp_path, 0)
    assert isinstance(caught.value.__cause__, torch.OutOfMemoryError)


@pytest.mark.parametrize("where", ["forward", "training", "backward"])
def test_without_recovery_the_error_names_the_cap(where: str, tmp_path: Path) -> None:
    message = r"micro-batches of at most 8 samples. Set per_device_train_batch_size=4, with batch_size=9 .*auto_find"
    model = build_model("llama")
    limit_memory(model, 4, where)
    with pytest.raises(MicroBatchMemoryError, match=message):
        run(tmp_path, model=model)


def test_an_optimizer_that_steps_in_the_backward_is_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build_model("llama")
    limit_memory(model, 4, "backward")
    trainer = runs.make(tmp_path, model, auto_find_batch_size=True, batch_size=9)
    monkeypatch.setattr("mixer.trainer.out_of_memory.steps_in_backward", lambda args: True)
    message = r"=4, with batch_size=9 .* cannot repeat the step: optim='.*' updates weights"
    with pytest.raises(MicroBatchMemoryError, match=message):
        trainer.train()


def test_other_errors_are_raised_as_they_are_and_the_arguments_shown(tmp_path: Path) -> None:
    class Reader(TrainerCallback):
        shown = False

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.shown = args.auto_find_batch_size

    def fail(module: nn.Module, args: Any) -> None:
        raise KeyError("lost")

    reader, model = Reader(), build_model("llama")
    model.register_forward_pre_hook(fail)
    trainer = runs.make(tmp_path, model, auto_find_batch_size=True, callbacks=[reader])
    with pytest.raises(KeyError, match="lost"):
        trainer.train()
    assert reader.shown
    assert trainer.args.auto_find_batch_size


def test_workers_load_nothing_twice(tmp_path: Path) -> None:
    batches = run(tmp_path, 2, dataloader_num_workers=1, dataloader_persistent_workers=True).ledger.timings()
    assert (batches["hits"] + batches["misses"]).tolist() == batches["total"].tolist()
    assert batches["hits"].tolist()[1:] == batches["total"].tolist()[1:]


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("is_by_stream", [False, True])
@pytest.mark.parametrize("cap", [1, 2, 3])
def test_ranks_that_cut_anew_keep_their_samples_and_stay_in_step(world_size: int, is_by_stream: bool, cap: int) -> None:
    numbers, rows = set(), 0
    for rank in range(world_size):
        loader = make_loader(rank=rank, world_size=world_size, batch_size=17, micro_batch_size=4)
        loader.keeps_samples, loader.by_stream = True, is_by_stream
        batch = loader.next_batch()
        assert batch is not None
        loader.cap = MicroBatchCap(cap)
        again = loader.resplit(batch)
        assert again["x"].tolist() == batch["x"].tolist()
        assert max(len(micro.stream_ids) for micro in again.micro_batches) <= cap
        numbers.add(len(again.micro_batches))
        rows += num_own(again)
    assert len(numbers) == 1
    assert rows == 17
