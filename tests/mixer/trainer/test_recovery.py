"""Steps that run out of memory on one rank: the error is put into the model."""

import json
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from torch import nn
from transformers import DataCollatorForLanguageModeling, LlamaConfig, LlamaForCausalLM, TrainerCallback

from mixer import MixingTrainer
from mixer.loading.memory import MicroBatchCap, MicroBatchMemoryError
from tests.helpers import GradientRecorder, Tokens, arguments, build_model, three_streams, weights_of
from tests.mixer.loaders import make_loader, num_own


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


def run(folder: Path, most_rows: int | None = None, where: str = "forward", **changes: Any) -> MixingTrainer:
    options = {"auto_find_batch_size": most_rows is not None, "max_steps": 4, **changes.pop("args", {})}
    fields = {"model": build_model("llama"), "train_dataset": three_streams(), "batch_size": 9, **changes}
    if most_rows is not None:
        limit_memory(fields["model"], most_rows, where)
    recorder = GradientRecorder()
    trainer = MixingTrainer(args=arguments(folder, **options), callbacks=[recorder], **fields)
    trainer.train()
    trainer.gradients = torch.stack(recorder.gradients)
    return trainer


def iterable_streams() -> dict[str, Any]:
    rows = [{name: values.tolist() for name, values in row.items()} for row in Tokens(20, 1).rows]
    return {"rows": datasets.Dataset.from_list(rows).to_iterable_dataset(), "more": Tokens(11, 2)}


SETUPS: dict[str, Any] = {
    "map": dict,
    "workers": lambda: {"args": {"dataloader_num_workers": 1}},
    "iterable": lambda: {"train_dataset": iterable_streams(), "mixing": {"rows": 1, "more": 1}},
    "tokens": lambda: {"max_tokens_per_micro_batch": 96},
    "by-length": lambda: {"args": {"train_sampling_strategy": "group_by_length"}},
    "default-size": lambda: {"batch_size": None, "args": {"gradient_accumulation_steps": 2}},
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
        torch.manual_seed(0)
        sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
        return LlamaForCausalLM(LlamaConfig(vocab_size=64, pad_token_id=0, attention_dropout=0.3, **sizes))

    small = run(tmp_path / "a", model=with_dropout(), args={"per_device_train_batch_size": 2})
    model = with_dropout()
    found = run(tmp_path / "b", 2, where, model=model)
    assert torch.equal(weights_of(small.model), weights_of(found.model))
    assert found._parts.run.loader.cap == MicroBatchCap(2)


def test_the_step_is_repeated_once_for_each_halving(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = build_model("llama")
    seen = limit_memory(model, 4, "training")
    trainer = MixingTrainer(
        model,
        arguments(tmp_path, auto_find_batch_size=True, max_steps=2),
        train_dataset=three_streams(),
        batch_size=8,
    )
    trainer.train()
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
    options = {"train_dataset": rows, "data_collator": DataCollatorForLanguageModeling(Tokenizer())}
    small = run(tmp_path / "a", model=build_model("bert-masked-lm"), args={"per_device_train_batch_size": 2}, **options)
    found = run(tmp_path / "b", 2, model=build_model("bert-masked-lm"), **options)
    assert torch.equal(small.gradients, found.gradients)
    assert small.ledger.to_pandas()["items"].equals(found.ledger.to_pandas()["items"])


def test_the_cap_is_saved_and_taken_up(tmp_path: Path) -> None:
    whole = run(tmp_path, 2, args={"save_strategy": "steps", "save_steps": 2})
    state = json.loads((tmp_path / "checkpoint-2" / "mixing.json").read_text())
    assert state["micro_batch_cap"] == {"max_samples": 2, "max_tokens": None, "was_halved": True}
    assert json.loads((tmp_path / "checkpoint-2" / "trainer_state.json").read_text())["train_batch_size"] == 8
    model = build_model("llama")
    seen = limit_memory(model, 2)
    args = arguments(tmp_path / "resumed", auto_find_batch_size=True, max_steps=4)
    resumed = MixingTrainer(model, args, train_dataset=three_streams(), batch_size=9)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert max(seen) == 2
    assert torch.equal(weights_of(whole.model), weights_of(model))


def test_a_sample_that_does_not_fit_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(
        MicroBatchMemoryError, match=r"Step 1 ran out of memory on rank 0 with a single sample"
    ) as caught:
        run(tmp_path, 0)
    assert isinstance(caught.value.__cause__, torch.OutOfMemoryError)


@pytest.mark.parametrize("where", ["forward", "training", "backward"])
def test_without_recovery_the_error_names_the_cap(where: str, tmp_path: Path) -> None:
    model = build_model("llama")
    limit_memory(model, 4, where)
    message = r"micro-batches of at most 8 samples. Set per_device_train_batch_size=4, with batch_size=9 .*auto_find"
    with pytest.raises(MicroBatchMemoryError, match=message):
        run(tmp_path, model=model)


def test_an_optimizer_that_steps_in_the_backward_is_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build_model("llama")
    limit_memory(model, 4, "backward")
    args = arguments(tmp_path, auto_find_batch_size=True)
    trainer = MixingTrainer(model, args, train_dataset=three_streams(), batch_size=9)
    monkeypatch.setattr("mixer.trainer.out_of_memory.steps_in_backward", lambda args: True)
    message = r"=4, with batch_size=9 .* cannot repeat the step: optim='.*' updates weights"
    with pytest.raises(MicroBatchMemoryError, match=message):
        trainer.train()


def test_other_errors_are_raised_as_they_are(tmp_path: Path) -> None:
    model = build_model("llama")

    def fail(module: nn.Module, args: Any) -> None:
        raise KeyError("lost")

    model.register_forward_pre_hook(fail)
    with pytest.raises(KeyError, match="lost"):
        run(tmp_path, 4, model=model)


def test_the_arguments_are_shown_as_they_are(tmp_path: Path) -> None:
    class Reader(TrainerCallback):
        shown = False

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.shown = args.auto_find_batch_size

    reader = Reader()
    args = arguments(tmp_path, auto_find_batch_size=True, max_steps=1)
    trainer = MixingTrainer(build_model("llama"), args, train_dataset=three_streams(), callbacks=[reader])
    trainer.train()
    assert reader.shown
    assert args.auto_find_batch_size


def test_workers_load_nothing_twice(tmp_path: Path) -> None:
    options = {"dataloader_num_workers": 1, "dataloader_persistent_workers": True}
    batches = run(tmp_path, 2, args=options).ledger.timings()
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
