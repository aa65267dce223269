import json
import math
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Subset
from transformers import (
    DataCollatorForLanguageModeling,
    DataCollatorWithFlattening,
    DataCollatorWithPadding,
    EarlyStoppingCallback,
    LlamaForCausalLM,
    Trainer,
    TrainerCallback,
    default_data_collator,
)

from mixer import (
    Decision,
    Fixed,
    Floor,
    Grouping,
    LossChange,
    Mixing,
    MixingMixin,
    MixingTrainer,
    Mixture,
    Observation,
    Order,
    Policy,
    Proportional,
    Scheduled,
    Stream,
    Uniform,
)
from mixer.trainer.step import NonFiniteLossError
from tests.helpers import (
    MODEL_DATA,
    GradientRecorder,
    Tokens,
    arguments,
    build_model,
    three_streams,
    weights_of,
)

# ---- A one-stream trainer is the Trainer ----


class _Events(TrainerCallback):
    def __init__(self) -> None:
        self.names: list[Any] = []

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.names.append(("epoch begins", state.global_step))

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.names.append(("step", state.global_step, state.epoch, state.max_steps))

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.names.append(("epoch ends", state.global_step, state.epoch))

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.names.append(("evaluated", state.global_step))

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.names.append(("saved", state.global_step))


def _run_both(tmp_path: Path, model_name: str, num_samples: int, **changes: Any) -> list[tuple[Trainer, _Events]]:
    data = Tokens(num_samples, 1, MODEL_DATA[model_name])
    order = Order(num_samples, Stream("train", data).order_key(42))
    both: list[tuple[Trainer, _Events]] = []
    for trainer_class in (Trainer, MixingTrainer):
        options = {"optim": "adamw_torch", "learning_rate": 1e-2, "max_grad_norm": 1.0, "max_steps": -1, **changes}
        args = arguments(tmp_path / trainer_class.__name__, **options)
        own = data
        if trainer_class is Trainer:  # the stock Trainer gets the samples in our order: epoch after epoch
            args.train_sampling_strategy = "sequential"
            own = Subset(data, order.indices(0, num_samples).tolist())
        events = _Events()
        trainer = trainer_class(
            build_model(model_name), args, train_dataset=own, eval_dataset=Tokens(4, 9, MODEL_DATA[model_name])
        )
        trainer.add_callback(events)
        trainer.train()
        both.append((trainer, events))
    return both


@pytest.mark.parametrize("model_name", ["llama", "gpt2", "bert-classifier", "bert-tokens"])
def test_one_data_set_gives_the_weights_of_the_trainer_to_the_bit(tmp_path: Path, model_name: str) -> None:
    (stock, stock_events), (ours, our_events) = _run_both(
        tmp_path,
        model_name,
        num_samples=21,
        num_train_epochs=1,
        eval_strategy="epoch",
        save_strategy="epoch",
        lr_scheduler_type="cosine",
        warmup_steps=1,
    )
    assert torch.equal(weights_of(stock.model), weights_of(ours.model))
    assert our_events.names == stock_events.names
    for mine, theirs in zip(ours.state.log_history, stock.state.log_history, strict=True):
        for key in ("epoch", "step", "learning_rate"):
            assert mine.get(key) == theirs.get(key)
        for key in ("loss", "grad_norm", "eval_loss", "train_loss"):
            assert mine.get(key) == pytest.approx(theirs.get(key), abs=1e-6)


@pytest.mark.parametrize(
    "changes",
    [
        {"num_train_epochs": 2.5, "num_samples": 20},
        {"num_train_epochs": 3, "num_samples": 21, "dataloader_drop_last": True},
        {"num_train_epochs": 2, "num_samples": 37, "gradient_accumulation_steps": 2},
        {"max_steps": 7, "num_samples": 21, "save_strategy": "steps", "save_steps": 3},
        {"max_steps": 7, "num_samples": 21, "eval_strategy": "steps", "eval_steps": 2, "logging_steps": 3},
        {"num_train_epochs": 2, "num_samples": 5},
    ],
)
def test_steps_epochs_and_events_are_those_of_the_trainer(tmp_path: Path, changes: dict[str, Any]) -> None:
    (stock, stock_events), (ours, our_events) = _run_both(tmp_path, "llama", **changes)
    assert our_events.names == stock_events.names
    keys = ("epoch", "step", "learning_rate")
    mine = [[entry.get(key) for key in keys] for entry in ours.state.log_history]
    assert mine == [[entry.get(key) for key in keys] for entry in stock.state.log_history]


def test_an_epoch_that_a_callback_stops_ends_as_in_the_trainer(tmp_path: Path) -> None:
    class Stopper(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            control.should_epoch_stop = state.global_step == 1

    epochs = []
    for trainer_class in (Trainer, MixingTrainer):
        args = arguments(tmp_path / trainer_class.__name__, max_steps=-1, num_train_epochs=2)
        trainer = trainer_class(build_model("llama"), args, train_dataset=Tokens(30, 1), callbacks=[Stopper()])
        trainer.train()
        epochs.append([entry["epoch"] for entry in trainer.state.log_history])
    assert epochs[0] == epochs[1]


def test_dropping_the_last_batch_with_accumulation_drops_what_the_trainer_drops(tmp_path: Path) -> None:
    changes = {"num_train_epochs": 2, "gradient_accumulation_steps": 3, "dataloader_drop_last": True}
    (_, stock_events), (ours, our_events) = _run_both(tmp_path, "llama", num_samples=37, **changes)
    assert our_events.names == stock_events.names
    assert ours.ledger.timings()["total"].tolist() == [24, 8] * 2


def test_a_subclass_that_computes_its_own_loss_is_scaled_right(tmp_path: Path) -> None:
    class Own(MixingTrainer):
        def compute_loss(self, model: nn.Module, inputs: Any, return_outputs: bool = False, **kwargs: Any) -> Any:
            labels = inputs.pop("labels")
            outputs = model(**inputs)
            loss = nn.functional.cross_entropy(outputs.logits, labels)
            return (loss, outputs) if return_outputs else loss

    gradients = []
    for size in (64, 2):
        recorder = GradientRecorder()
        args = arguments(tmp_path / str(size), per_device_train_batch_size=size, max_steps=1)
        data = three_streams("sequence-classification")
        Own(build_model("bert-classifier"), args, train_dataset=data, batch_size=9, callbacks=[recorder]).train()
        gradients.append(recorder.gradients[0])
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-6)


def test_stock_gradient_of_a_head_that_ignores_the_item_count_is_too_large(tmp_path: Path) -> None:
    data, norms = Tokens(8, 1, "sequence-classification"), []
    for trainer_class in (Trainer, MixingTrainer):
        recorder = GradientRecorder()
        args = arguments(tmp_path, per_device_train_batch_size=2, gradient_accumulation_steps=4, max_steps=1)
        args.train_sampling_strategy = "sequential"
        trainer_class(build_model("bert-classifier"), args, train_dataset=data, callbacks=[recorder]).train()
        norms.append(float(recorder.gradients[0].norm()))
    assert norms[0] / norms[1] == pytest.approx(4.0, abs=1e-4)


def test_a_trainer_without_training_data_still_evaluates(tmp_path: Path) -> None:
    trainer = MixingTrainer(build_model("llama"), arguments(tmp_path), eval_dataset=Tokens(4, 1))
    assert trainer.evaluate()["eval_loss"] > 0
    with pytest.raises(ValueError, match="no train_dataset"):
        _ = trainer.mixing


# ---- The gradient of a step ----


def _gradient(tmp_path: Path, name: str, per_device: int, **changes: Any) -> torch.Tensor:
    recorder = GradientRecorder()
    trainer = MixingTrainer(
        build_model(name),
        arguments(tmp_path / str(per_device), per_device_train_batch_size=per_device, max_steps=5),
        train_dataset=three_streams(MODEL_DATA[name]),
        batch_size=9,
        callbacks=[recorder],
        **changes,
    )
    trainer.train()
    return torch.stack(recorder.gradients)


@pytest.mark.parametrize("name", MODEL_DATA)
def test_micro_batches_give_the_gradient_of_the_whole_batch(tmp_path: Path, name: str) -> None:
    whole, parts = _gradient(tmp_path, name, 64), _gradient(tmp_path, name, 2)
    torch.testing.assert_close(parts, whole, rtol=0, atol=1e-6)


def test_gradient_is_the_mean_over_all_items_of_the_batch(tmp_path: Path) -> None:
    data, model = Tokens(6, 1), build_model("llama")
    batch = default_data_collator([data[index] for index in range(6)])
    output = model(**{key: value for key, value in batch.items() if key != "labels"})
    logits, labels = output.logits[:, :-1].reshape(-1, 64), batch["labels"][:, 1:].reshape(-1)
    nn.functional.cross_entropy(logits, labels).backward()
    expected = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    recorder = GradientRecorder()
    args = arguments(tmp_path, per_device_train_batch_size=4, max_steps=1)
    MixingTrainer(build_model("llama"), args, train_dataset=data, batch_size=6, callbacks=[recorder]).train()
    torch.testing.assert_close(recorder.gradients[0], expected, rtol=0, atol=1e-6)


class _Weighing(Policy):
    def __init__(self, loss_weights: list[float]):
        super().__init__()
        self.decision = Decision(np.ones(len(loss_weights)), np.array(loss_weights))

    def start(self, mixture: Mixture) -> Decision:
        return self.decision

    def update(self, observation: Observation) -> Decision:
        return self.decision


@pytest.mark.parametrize("name", ["llama", "bert-classifier"])
def test_loss_weights_weigh_the_gradients_of_the_streams(tmp_path: Path, name: str) -> None:
    alone = [_gradient(tmp_path / str(k), name, 64, mixing=_Weighing(np.eye(3)[k].tolist()))[0] for k in range(3)]
    weighted = _gradient(tmp_path / "all", name, 4, mixing=_Weighing([0.5, 2.0, 1.0]))[0]
    torch.testing.assert_close(weighted, 0.5 * alone[0] + 2.0 * alone[1] + alone[2], rtol=0, atol=1e-6)


def test_losses_are_logged_without_their_weights(tmp_path: Path) -> None:
    logs = []
    for number, mixing in enumerate((Uniform(), _Weighing([0.25, 4.0, 0.0]))):
        args = arguments(tmp_path / str(number), max_steps=1, learning_rate=0.0)
        trainer = MixingTrainer(build_model("llama"), args, train_dataset=three_streams(), mixing=mixing, batch_size=9)
        trainer.train()
        logs.append(trainer.state.log_history[0])
    for key in ("loss", "loss/a", "loss/b", "loss/c"):
        assert logs[0][key] == pytest.approx(logs[1][key], abs=1e-5)


class _Opaque(nn.Module):
    """A model that gives its loss and nothing to tell its rows apart by."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = build_model("bert-classifier")

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, labels: torch.Tensor) -> Any:
        return {"loss": self.inner(input_ids=input_ids, attention_mask=attention_mask, labels=labels).loss}


def test_a_loss_without_rows_is_split_into_micro_batches_of_one_stream(tmp_path: Path) -> None:
    rows = []
    for number, model in enumerate((_Opaque(), build_model("bert-classifier"))):
        data = three_streams("sequence-classification")
        args = arguments(tmp_path / str(number), max_steps=4)
        trainer = MixingTrainer(model, args, train_dataset=data, batch_size=9)
        trainer.train()
        rows.append(trainer.ledger.to_pandas())
        assert bool(trainer._parts.run.loader.by_stream) is (number == 0)
    np.testing.assert_allclose(rows[0]["loss"], rows[1]["loss"], atol=1e-5)


def test_labels_that_are_all_ignored_give_no_gradient_and_no_error(tmp_path: Path) -> None:
    for name in ("llama", "bert-tokens"):
        data = Tokens(8, 1, MODEL_DATA[name])
        for row in data.rows:
            row["labels"] = torch.full_like(row["labels"], -100)
        model = build_model(name)
        before = weights_of(model)
        streams = {"silent": data, "loud": Tokens(8, 2, MODEL_DATA[name])}
        silent = MixingTrainer(model, arguments(tmp_path, max_steps=2), train_dataset=streams, mixing=[1, 0])
        silent.train()
        assert torch.equal(before, weights_of(model))
        assert silent.ledger.to_pandas()["loss"].isna().all()


def test_a_loss_of_ones_own_that_is_not_cross_entropy_is_split_by_stream(tmp_path: Path) -> None:
    def focal(outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
        terms = nn.functional.cross_entropy(outputs.logits, labels, reduction="none")
        return ((1 - (-terms).exp()) ** 0.1 * terms).mean()

    data = three_streams("sequence-classification")
    trainer = MixingTrainer(
        build_model("bert-classifier"),
        arguments(tmp_path),
        train_dataset=data,
        compute_loss_func=focal,
        batch_size=9,
    )
    trainer.train()
    assert trainer._parts.run.loader.by_stream
    rows = trainer.ledger.to_pandas().query("step == 2")
    expected = (rows["loss"] * rows["items"]).sum() / rows["items"].sum()
    assert trainer.state.log_history[1]["loss"] == pytest.approx(expected, abs=1e-6)


def test_packed_batches_are_of_one_stream_each(tmp_path: Path) -> None:
    ragged = {name: [{"input_ids": list(range(2, 5 + i % 4))} for i in range(9)] for name in ("a", "b")}
    trainer = MixingTrainer(
        build_model("llama"),
        arguments(tmp_path),
        data_collator=DataCollatorWithFlattening(),
        train_dataset=ragged,
        mixing=LossChange(num_warmup_observations=1),
    )
    trainer.train()
    rows = trainer.ledger.to_pandas()
    assert rows["loss"].notna().all()
    assert (rows["items"] > 0).all()
    assert trainer.state.log_history[0]["loss"] == pytest.approx(
        (rows["loss"] * rows["items"])[:2].sum() / rows["items"][:2].sum(), abs=1e-6
    )


def test_regression_with_whole_numbers(tmp_path: Path) -> None:
    data = three_streams("regression")
    for stream in data.values():
        for number, row in enumerate(stream.rows):
            row["labels"] = torch.tensor(number % 5)
    trainer = MixingTrainer(build_model("bert-regression"), arguments(tmp_path), train_dataset=data, batch_size=9)
    trainer.train()
    rows = trainer.ledger.to_pandas().query("step == 1")
    expected = (rows["loss"] * rows["items"]).sum() / rows["items"].sum()
    assert trainer.state.log_history[0]["loss"] == pytest.approx(expected, abs=1e-5)


def test_a_micro_batch_without_items_leaves_the_logged_loss_alone(tmp_path: Path) -> None:
    data = {name: Tokens(9, seed, "token-classification") for seed, name in enumerate("ab")}
    for row in data["b"].rows:
        row["labels"] = torch.full_like(row["labels"], -100)
    args = arguments(tmp_path, per_device_train_batch_size=2, logging_nan_inf_filter=False)
    trainer = MixingTrainer(build_model("bert-tokens"), args, train_dataset=data, batch_size=8)
    trainer.train()
    for entry in trainer.state.log_history[:3]:
        assert entry["loss"] == pytest.approx(entry["loss/a"], abs=1e-6)


def test_a_stream_of_loss_weight_zero_is_no_reason_to_stop(tmp_path: Path) -> None:
    trainer = MixingTrainer(
        _Opaque(),
        arguments(tmp_path),
        train_dataset=three_streams("sequence-classification"),
        mixing=_Weighing([1.0, 0.0, 1.0]),
        nonfinite="raise",
    )
    trainer.train()
    assert trainer.state.global_step == 3


@pytest.mark.parametrize("name", ["llama", "bert-classifier"])
def test_label_smoothing_keeps_losses_by_stream(tmp_path: Path, name: str) -> None:
    args = arguments(tmp_path, label_smoothing_factor=0.1)
    trainer = MixingTrainer(build_model(name), args, train_dataset=three_streams(MODEL_DATA[name]), batch_size=9)
    trainer.train()
    assert not trainer._parts.run.loader.by_stream
    rows = trainer.ledger.to_pandas().query("step == 1")
    expected = (rows["loss"] * rows["items"]).sum() / rows["items"].sum()
    assert trainer.state.log_history[0]["loss"] == pytest.approx(expected, abs=1e-6)


def test_looking_at_the_loader_does_not_move_the_run(tmp_path: Path) -> None:
    trainer = MixingTrainer(build_model("llama"), arguments(tmp_path), train_dataset=three_streams())
    batch = next(iter(trainer.get_train_dataloader()))
    assert len(batch.micro_batches) == 1
    trainer.train()
    assert trainer.ledger.to_pandas()["seen"].iloc[-3:].sum() == 24


def test_an_auxiliary_loss_is_logged_as_other(tmp_path: Path) -> None:
    class WithAuxiliary(LlamaForCausalLM):
        def forward(self, input_ids: Any = None, attention_mask: Any = None, labels: Any = None, **kwargs: Any) -> Any:
            output = super().forward(input_ids, attention_mask, labels=labels, **kwargs)
            output.loss = output.loss + 0.1
            return output

    model = WithAuxiliary(build_model("llama").config)
    trainer = MixingTrainer(model, arguments(tmp_path), train_dataset=three_streams(), batch_size=8)
    trainer.train()
    assert trainer.state.log_history[0]["loss/other"] == pytest.approx(0.1, abs=1e-5)


# ---- What the streams did ----


def test_log_entries_and_ledger_add_up(tmp_path: Path) -> None:
    args = arguments(tmp_path, max_steps=6, logging_steps=2)
    trainer = MixingTrainer(build_model("llama"), args, train_dataset=three_streams(), batch_size=9, mixing=[3, 2, 1])
    trainer.train()
    rows = trainer.ledger.to_pandas()
    assert len(rows) == 18
    assert (rows["staleness"] == 0).all()
    assert (rows.groupby("stream")["count"].cumsum() == rows["seen"]).all()
    assert (rows["coverage"] == np.minimum(1, rows["seen"] / rows["stream"].map({"a": 20, "b": 11, "c": 6}))).all()
    entry = trainer.state.log_history[1]
    two = rows[rows["step"].isin([3, 4])]
    for name, group in two.groupby("stream"):
        assert entry[f"count/{name}"] == group["count"].sum()
        expected = (group["loss"] * group["items"]).sum() / group["items"].sum()
        assert entry[f"loss/{name}"] == pytest.approx(expected, rel=1e-9)
        assert entry[f"coverage/{name}"] == group["coverage"].iloc[-1]
        assert entry[f"weight/{name}"] == group["weight"].iloc[-1]
    assert entry["train_coverage"] == pytest.approx(36 / 37)


def test_tokens_and_items_are_counted_without_padding(tmp_path: Path) -> None:
    data = Tokens(8, 1)
    trainer = MixingTrainer(build_model("llama"), arguments(tmp_path, max_steps=1), train_dataset=data)
    trainer.train()
    row = trainer.ledger.to_pandas().iloc[0]
    assert row["tokens"] == sum(int(sample["attention_mask"].sum()) for sample in data.rows)
    assert row["items"] == sum(int((sample["labels"][1:] != -100).sum()) for sample in data.rows)


@pytest.mark.parametrize("mode", ["all", "non_padding"])
def test_number_of_input_tokens_seen(tmp_path: Path, mode: str) -> None:
    data = Tokens(8, 1)
    args = arguments(tmp_path, max_steps=1, per_device_train_batch_size=3, include_num_input_tokens_seen=mode)
    trainer = MixingTrainer(build_model("llama"), args, train_dataset=data, batch_size=8)
    trainer.train()
    counted = sum(int(sample["attention_mask"].sum()) for sample in data.rows)
    assert trainer.state.num_input_tokens_seen == (counted if mode == "non_padding" else 8 * 12)
    assert trainer.state.total_flos > 0


def test_set_weights_from_a_callback_rules_the_next_step(tmp_path: Path) -> None:
    class OnlyB(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 2:
                trainer.mixing.set_weights({"a": 0, "b": 1, "c": 0})

    args = arguments(tmp_path, max_steps=4)
    trainer = MixingTrainer(build_model("llama"), args, train_dataset=three_streams(), callbacks=[OnlyB()])
    trainer.train()
    counts = trainer.ledger.to_pandas().pivot_table(index="step", columns="stream", values="count")
    assert (counts.loc[:2, ["a", "c"]].sum() > 0).all()
    assert counts.loc[3].tolist() == [0, 8, 0]
    assert trainer.state.log_history[2]["weight/b"] == 1.0


def test_set_weights_before_training_holds_from_the_first_step(tmp_path: Path) -> None:
    trainer = MixingTrainer(build_model("llama"), arguments(tmp_path, max_steps=1), train_dataset=three_streams())
    trainer.mixing.set_weights([0, 0, 1])
    trainer.train()
    assert trainer.ledger.to_pandas()["count"].tolist() == [0, 0, 8]


def test_a_function_rules_every_step(tmp_path: Path) -> None:
    trainer = MixingTrainer(
        build_model("llama"),
        arguments(tmp_path, max_steps=3),
        train_dataset=three_streams(),
        mixing=lambda step, weights: np.eye(3)[step],
    )
    trainer.train()
    assert trainer.ledger.to_pandas()["count"].tolist() == [8, 0, 0, 0, 8, 0, 0, 0, 8]


def test_a_function_that_returns_nonsense_is_named_with_its_step(tmp_path: Path) -> None:
    trainer = MixingTrainer(
        build_model("llama"),
        arguments(tmp_path, max_steps=3),
        train_dataset=three_streams(),
        mixing=lambda step, weights: [1, 1, math.nan if step == 2 else 1],
    )
    with pytest.raises(ValueError, match=r"step 2.*'c' has nan"):
        trainer.train()
    assert trainer.ledger.to_pandas()["step"].tolist() == [1, 1, 1, 2, 2, 2]  # what was trained is recorded


def test_exhausted_streams_end_the_run(tmp_path: Path) -> None:
    streams = [Stream("once", Tokens(10, 1), max_epochs=1), Stream("twice", Tokens(6, 2), max_epochs=2)]
    args = arguments(tmp_path, max_steps=100, eval_strategy="steps", eval_steps=100, save_strategy="steps")
    trainer = MixingTrainer(
        build_model("llama"), args, train_dataset=streams, eval_dataset={"once": Tokens(3, 5)}, mixing=Uniform()
    )
    trainer.train()
    seen = trainer.ledger.to_pandas().groupby("stream")["count"].sum()
    assert seen.to_dict() == {"once": 10, "twice": 12}
    assert any("eval_once_loss" in entry for entry in trainer.state.log_history)
    assert (tmp_path / f"checkpoint-{trainer.state.global_step}").is_dir()


def test_a_stream_of_weight_zero_that_outlives_the_others_ends_the_run(tmp_path: Path) -> None:
    streams = [Stream("used", Tokens(10, 1), weight=1, max_epochs=1), Stream("unused", Tokens(9, 2), weight=0)]
    trainer = MixingTrainer(build_model("llama"), arguments(tmp_path, max_steps=50), train_dataset=streams)
    trainer.train()
    assert trainer.state.global_step == 2


def test_a_run_without_loss_policies_reads_losses_late_but_all_of_them(tmp_path: Path) -> None:
    trainer = MixingTrainer(build_model("llama"), arguments(tmp_path, max_steps=3), train_dataset=three_streams())
    trainer.train()
    assert trainer.ledger.to_pandas().query("count > 0")["loss"].notna().all()


def test_groupings_rule_the_shares(tmp_path: Path) -> None:
    streams = [
        Stream("a", Tokens(20, 1), groups={"language": "en"}),
        Stream("b", Tokens(20, 2), groups={"language": "en"}),
        Stream("c", Tokens(20, 3), groups={"language": "de"}),
    ]
    trainer = MixingTrainer(
        build_model("llama"),
        arguments(tmp_path, max_steps=5),
        train_dataset=streams,
        groupings=[Grouping("language", weights={"en": 1, "de": 1})],
    )
    trainer.train()
    assert trainer.ledger.to_pandas().groupby("stream")["count"].sum().to_dict() == {"a": 10, "b": 10, "c": 20}


def test_streams_of_different_kinds_of_data_sets_train_together(tmp_path: Path) -> None:
    rows = [{key: value.tolist() for key, value in row.items()} for row in Tokens(9, 1).rows]
    arrow = datasets.Dataset.from_list([{**row, "unused": "text"} for row in rows])
    streams = datasets.DatasetDict({"arrow": arrow, "more": arrow})
    trainer = MixingTrainer(build_model("llama"), arguments(tmp_path, max_steps=2), train_dataset=streams)
    trainer.train()
    mixed = {"arrow": arrow, "list": [{**row, "unused": "text"} for row in rows], "torch": Tokens(9, 1)}
    trainer = MixingTrainer(build_model("llama"), arguments(tmp_path, max_steps=2), train_dataset=mixed)
    trainer.train()
    assert trainer.ledger.to_pandas().groupby("stream")["count"].sum().sum() == 16


class _TokenColumns(Tokens):
    def read_columns(self, indices: np.ndarray) -> dict[str, torch.Tensor]:
        columns = {name: torch.stack([self[i][name] for i in indices.tolist()]) for name in self.rows[0]}
        return {**columns, "unused": torch.zeros(len(indices))}


@pytest.mark.parametrize("label_name", ["labels", "label", "label_ids"])
def test_reading_by_columns_trains_alike(tmp_path: Path, label_name: str) -> None:
    ends = []
    for number, data_class in enumerate((Tokens, _TokenColumns)):
        data = {name: data_class(9, seed, "sequence-classification") for seed, name in enumerate("ab")}
        for dataset in data.values():
            for row in dataset.rows:
                row[label_name] = row.pop("labels")
        args = arguments(tmp_path / str(number), per_device_train_batch_size=3)
        trainer = MixingTrainer(build_model("bert-classifier"), args, train_dataset=data, batch_size=8)
        trainer.train()
        ends.append(weights_of(trainer.model))
    assert torch.equal(*ends)


def test_hugging_face_collators(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    vocabulary = {f"w{number}": number for number in range(62)} | {"[MASK]": 62, "[PAD]": 63}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(vocabulary, unk_token="w0")),
        pad_token="[PAD]",
        mask_token="[MASK]",
    )
    ragged = {name: [{"input_ids": list(range(2, 4 + i % 5))} for i in range(9)] for name in ("a", "b")}
    labelled = {name: [{**row, "labels": i % 3} for i, row in enumerate(rows)] for name, rows in ragged.items()}
    for model, data, collator in (
        ("llama", ragged, DataCollatorForLanguageModeling(tokenizer, mlm=False)),
        ("bert-masked-lm", ragged, DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.5)),
        ("bert-classifier", labelled, DataCollatorWithPadding(tokenizer)),
    ):
        trainer = MixingTrainer(build_model(model), arguments(tmp_path), data_collator=collator, train_dataset=data)
        trainer.train()
        assert np.isfinite(trainer.state.log_history[-1]["train_loss"])


# ---- Losses that are not finite ----


class _NanFor63(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = build_model("bert-classifier")

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, labels: torch.Tensor) -> Any:
        logits = self.inner(input_ids=input_ids, attention_mask=attention_mask).logits
        logits = torch.where((input_ids == 63).any(dim=1, keepdim=True), logits * math.nan, logits)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def _with_nan(tmp_path: Path, **changes: Any) -> MixingTrainer:
    good, bad = Tokens(16, 1, "sequence-classification"), Tokens(16, 2, "sequence-classification")
    for rows, replacement in ((good.rows, 1), (bad.rows, 63)):
        for row in rows:
            row["input_ids"] = torch.where(row["input_ids"] >= 63, 1, row["input_ids"])
            row["input_ids"][0] = replacement
    args = arguments(tmp_path, max_steps=changes.pop("max_steps", 2), weight_decay=0.1)
    return MixingTrainer(_NanFor63(), args, train_dataset={"good": good, "bad": bad}, batch_size=6, **changes)


def test_nonfinite_warns_and_names_the_stream(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trainer = _with_nan(tmp_path, mixing=LossChange(num_warmup_observations=1), max_steps=1)
    trainer.train()
    assert "loss of stream 'bad' is not finite" in caplog.text
    assert "'good'" not in caplog.text
    policy = trainer.mixing.policy.state_dict()
    assert policy["num_observations"][1] == 0
    losses = trainer.ledger.to_pandas().groupby("stream")["loss"].count()
    assert losses["bad"] == 0
    assert losses["good"] == 1


def test_nonfinite_skips_the_step(tmp_path: Path) -> None:
    trainer = _with_nan(tmp_path, nonfinite="skip")
    before = weights_of(trainer.model)
    trainer.train()
    assert torch.equal(before, weights_of(trainer.model))
    assert trainer.state.global_step == 2


def test_nonfinite_raises(tmp_path: Path) -> None:
    with pytest.raises(NonFiniteLossError, match=r"Step 1: the loss of \['bad'\]"):
        _with_nan(tmp_path, nonfinite="raise").train()


# ---- Evaluation ----


@pytest.mark.parametrize(
    ("options", "weights"), [({}, [1, 1, 1]), ({"eval_weights": {"c": 5, "b": 0, "a": 1}}, [1, 0, 5])]
)
def test_evaluation_over_a_dict_gives_the_mean_whatever_the_mixture_and_the_worst(
    tmp_path: Path, options: dict[str, Any], weights: list[float]
) -> None:
    trainer = MixingTrainer(
        build_model("llama"),
        arguments(tmp_path),
        train_dataset=three_streams(),
        eval_dataset={name: Tokens(4, seed) for seed, name in enumerate("abc")},
        mixing=Fixed({"a": 2, "b": 1, "c": 1}),
        **options,
    )
    metrics = trainer.evaluate()
    losses = [metrics[f"eval_{name}_loss"] for name in "abc"]
    assert metrics["eval_loss"] == pytest.approx(np.average(losses, weights=weights), rel=1e-12)
    assert metrics["eval_worst_loss"] == max(losses)
    part = {name: trainer.eval_dataset[name] for name in "ab"}
    assert trainer.evaluate(part)["eval_loss"] == pytest.approx(np.average(losses[:2], weights=weights[:2]), rel=1e-12)
    others = {**part, "held out": part["a"]}
    assert trainer.evaluate(others)["eval_loss"] == pytest.approx((2 * losses[0] + losses[1]) / 3, rel=1e-12)


def test_the_best_model_is_loaded_at_the_end_by_the_average(tmp_path: Path) -> None:
    args = arguments(
        tmp_path,
        max_steps=4,
        eval_strategy="steps",
        eval_steps=1,
        save_strategy="steps",
        save_steps=1,
        load_best_model_at_end=True,
        metric_for_best_model="eval_worst_loss",
        greater_is_better=False,
        learning_rate=3.0,
    )
    evaluation = {name: Tokens(4, seed) for seed, name in enumerate("abc")}
    trainer = MixingTrainer(
        build_model("llama"),
        args,
        train_dataset=three_streams(),
        eval_dataset=evaluation,
        callbacks=[EarlyStoppingCallback(early_stopping_patience=10)],
    )
    trainer.train()
    worst = [entry["eval_worst_loss"] for entry in trainer.state.log_history if "eval_worst_loss" in entry]
    assert trainer.state.best_metric == min(worst)
    assert trainer.evaluate()["eval_worst_loss"] == pytest.approx(min(worst), abs=1e-5)


@pytest.mark.parametrize("metric", ["eval_loss", "eval_worst_loss", "eval_a_loss"])
def test_early_stopping_follows_the_average_and_the_worst(tmp_path: Path, metric: str) -> None:
    args = arguments(
        tmp_path,
        max_steps=20,
        learning_rate=0.0,
        eval_strategy="steps",
        eval_steps=1,
        save_strategy="steps",
        save_steps=1,
        load_best_model_at_end=True,
        metric_for_best_model=metric,
        greater_is_better=False,
    )
    evaluation = {name: Tokens(4, seed) for seed, name in enumerate("abc")}
    stopping = EarlyStoppingCallback(early_stopping_patience=3)
    trainer = MixingTrainer(
        build_model("llama"), args, train_dataset=three_streams(), eval_dataset=evaluation, callbacks=[stopping]
    )
    trainer.train()
    assert trainer.state.global_step == 4


def test_evaluation_losses_reach_the_policy_and_the_ledger(tmp_path: Path) -> None:
    args = arguments(tmp_path, max_steps=4, eval_strategy="steps", eval_steps=1)
    evaluation = {name: Tokens(4, seed) for seed, name in enumerate("abc")}
    policy = LossChange(loss="evaluation", num_warmup_observations=1)
    trainer = MixingTrainer(
        build_model("llama"), args, train_dataset=three_streams(), eval_dataset=evaluation, mixing=policy
    )
    trainer.train()
    assert policy.state_dict()["num_observations"] == [3, 3, 3]  # the fourth evaluation came after the last step
    recorded = trainer.ledger.evaluations()
    assert recorded["step"].tolist() == [1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4]


def test_metrics_are_computed_per_stream(tmp_path: Path) -> None:
    trainer = MixingTrainer(
        build_model("bert-classifier"),
        arguments(tmp_path),
        train_dataset=three_streams("sequence-classification"),
        eval_dataset={"a": Tokens(4, 1, "sequence-classification")},
        compute_metrics=lambda prediction: {"accuracy": float((prediction.predictions.argmax(-1) == 1).mean())},
    )
    assert "eval_a_accuracy" in trainer.evaluate()


# ---- Saving and resuming ----


@pytest.mark.parametrize("saved_at", [4, 5])
def test_resuming_continues_to_the_bit(tmp_path: Path, saved_at: int) -> None:
    ends: list[Any] = []
    for number, checkpoint in enumerate((None, None, f"checkpoint-{saved_at}")):
        folder = tmp_path / ("whole" if number == 0 else "resumed")
        args = arguments(folder, max_steps=9, save_strategy="steps", save_steps=saved_at, optim="adamw_torch")
        trainer = MixingTrainer(
            build_model("llama"),
            args,
            train_dataset=three_streams(),
            mixing=LossChange(num_warmup_observations=1),
            batch_size=8,
        )
        trainer.train(resume_from_checkpoint=str(folder / checkpoint) if checkpoint else None)
        ends.append((weights_of(trainer.model), trainer.ledger.to_pandas(), trainer.state.log_history[:-1]))
    whole, _, resumed = ends
    assert torch.equal(whole[0], resumed[0])
    assert whole[1].equals(resumed[1])
    assert whole[2] == resumed[2]


def test_resuming_is_exact_with_a_random_collator_and_micro_batches_by_stream(tmp_path: Path) -> None:
    def masking(samples: list[Any]) -> Any:
        batch = default_data_collator(samples)
        batch["input_ids"] = torch.where(torch.rand(batch["input_ids"].shape) < 0.3, 1, batch["input_ids"])
        return batch

    ends = []
    for checkpoint in (None, "checkpoint-2"):
        torch.manual_seed(0)
        args = arguments(tmp_path, max_steps=4, save_strategy="steps", save_steps=2)
        data = three_streams("sequence-classification")
        trainer = MixingTrainer(_Opaque(), args, data_collator=masking, train_dataset=data, batch_size=9)
        trainer.train(resume_from_checkpoint=checkpoint and str(tmp_path / checkpoint))
        ends.append(weights_of(trainer.model))
    assert torch.equal(*ends)


def test_the_saved_arguments_are_the_users(tmp_path: Path) -> None:
    args = arguments(tmp_path, max_steps=2, save_strategy="steps", save_steps=1, gradient_accumulation_steps=3)
    trainer = MixingTrainer(build_model("llama"), args, train_dataset=three_streams())
    trainer.train()
    saved = torch.load(tmp_path / "checkpoint-1" / "training_args.bin", weights_only=False)
    assert saved.gradient_accumulation_steps == args.gradient_accumulation_steps == 3
    assert trainer.ledger.timings()["total"].tolist() == [24, 13]


def test_the_batch_size_of_the_saved_run_rules(tmp_path: Path) -> None:
    for per_device, checkpoint in ((8, None), (4, "checkpoint-2")):
        args = arguments(tmp_path, max_steps=4, save_steps=2, save_strategy="steps")
        args.per_device_train_batch_size = per_device
        trainer = MixingTrainer(build_model("llama"), args, train_dataset=three_streams())
        trainer.train(resume_from_checkpoint=checkpoint and str(tmp_path / checkpoint))
    assert trainer.ledger.timings()["total"].tolist() == [8, 8, 8, 8]


def test_a_state_of_another_run_is_refused_with_the_difference(tmp_path: Path) -> None:
    def trainer(**changes: Any) -> MixingTrainer:
        args = arguments(tmp_path, max_steps=4, save_steps=2, save_strategy="steps", seed=changes.pop("seed", 42))
        return MixingTrainer(build_model("llama"), args, **{"train_dataset": three_streams(), **changes})

    trainer().train()
    checkpoint = str(tmp_path / "checkpoint-2")
    streams = three_streams()
    for changes, message in (
        ({"train_dataset": {"a": streams["a"], "b": streams["b"]}}, r"streams were \['a', 'b', 'c'\]"),
        ({"train_dataset": {**streams, "b": Tokens(10, 2)}}, r"length was 11"),
        ({"seed": 1}, r"data seed was 42 when the run was saved and is 1 now"),
        ({"mixing": LossChange()}, r"policy was Proportional and is LossChange now"),
        ({"mixing": Floor(Proportional())}, r"policy was Proportional and is Floor\(Proportional\) now"),
        ({"batch_size": 5}, r"batch_size was 8"),
    ):
        with pytest.raises(ValueError, match=message):
            trainer(**changes).train(resume_from_checkpoint=checkpoint)
    (tmp_path / "checkpoint-2" / "mixing.json").write_text("{torn")
    with pytest.raises(ValueError, match="torn"):
        trainer().train(resume_from_checkpoint=checkpoint)
    (tmp_path / "checkpoint-2" / "mixing.json").unlink()
    with pytest.raises(ValueError, match=r"mixing\.json is missing"):
        trainer().train(resume_from_checkpoint=checkpoint)


def test_other_fixed_weights_are_refused_on_resume_unless_they_are_set_on_purpose(tmp_path: Path) -> None:
    def trainer(weights: dict[str, float]) -> MixingTrainer:
        args = arguments(tmp_path, max_steps=4, save_steps=2, save_strategy="steps")
        return MixingTrainer(build_model("llama"), args, train_dataset=three_streams(), mixing=weights)

    trainer({"a": 8, "b": 0, "c": 0}).train()
    checkpoint = str(tmp_path / "checkpoint-2")
    with pytest.raises(ValueError, match=r"weights were .* call trainer.mixing.set_weights before train"):
        trainer({"a": 0, "b": 8, "c": 0}).train(resume_from_checkpoint=checkpoint)
    resumed = trainer({"a": 8, "b": 0, "c": 0})
    resumed.mixing.set_weights({"a": 0, "b": 1, "c": 0})
    resumed.train(resume_from_checkpoint=checkpoint)
    counts = resumed.ledger.to_pandas().query("step == 3")["count"].tolist()
    assert counts == [0, 8, 0]


def test_a_controller_that_was_kept_stays_the_controller(tmp_path: Path) -> None:
    trainer = MixingTrainer(build_model("llama"), arguments(tmp_path), train_dataset=three_streams())
    mixing = trainer.mixing
    trainer.train()
    assert trainer.mixing is mixing
    mixing.set_weights([0, 0, 1])
    trainer.train()
    assert trainer.ledger.to_pandas()["count"].tolist() == [0, 0, 8] * 3


def test_training_again_starts_a_new_run_and_keeps_the_old_ledger(tmp_path: Path) -> None:
    trainer = MixingTrainer(build_model("llama"), arguments(tmp_path), train_dataset=three_streams())
    trainer.train()
    first = trainer.ledger.to_pandas()
    trainer.train()
    assert trainer.ledger.to_pandas()[["step", "count"]].equals(first[["step", "count"]])
    assert (tmp_path / "ledger-1" / "ledger.json").is_file()


def test_the_state_is_small_plain_json(tmp_path: Path) -> None:
    args = arguments(tmp_path, max_steps=2, save_strategy="steps", save_steps=2)
    streams = {f"stream{number}": Tokens(5, number) for number in range(10)}
    MixingTrainer(build_model("llama"), args, train_dataset=streams, mixing=LossChange()).train()
    path = tmp_path / "checkpoint-2" / "mixing.json"
    assert json.loads(path.read_text())["format"] == 2
    assert path.stat().st_size < 4096


def test_the_model_is_left_as_it_was(tmp_path: Path) -> None:
    model = build_model("llama")
    MixingTrainer(model, arguments(tmp_path), train_dataset=three_streams()).train()
    assert not model._forward_hooks
    assert "_loss_function" not in model.__dict__


# ---- Composition ----


def test_the_mixin_composes_with_a_subclass(tmp_path: Path) -> None:
    class Counting(Trainer):
        steps = 0

        def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
            Counting.steps += 1
            return super().training_step(*args, **kwargs)

    class MixingCounting(MixingMixin, Counting):
        pass

    args = arguments(tmp_path, max_steps=2, per_device_train_batch_size=2)
    MixingCounting(build_model("llama"), args, train_dataset=three_streams(), batch_size=8).train()
    assert Counting.steps == 8


def test_model_init_and_a_second_run_start_from_scratch(tmp_path: Path) -> None:
    args = arguments(tmp_path, max_steps=2)
    trainer = MixingTrainer(None, args, train_dataset=three_streams(), model_init=lambda: build_model("llama"))
    ends = []
    for _ in range(2):
        trainer.train()
        ends.append(weights_of(trainer.model))
    assert torch.equal(*ends)


def test_a_scheduled_mixture_moves_over_the_run(tmp_path: Path) -> None:
    mixing = Scheduled([(0.0, {"a": 1, "b": 0, "c": 0}), (1.0, {"a": 0, "b": 1, "c": 0})])
    args = arguments(tmp_path, max_steps=10)
    trainer = MixingTrainer(build_model("llama"), args, train_dataset=three_streams(), mixing=mixing)
    trainer.train()
    weights = trainer.ledger.to_pandas().query("stream == 'a'")["weight"].to_numpy()
    np.testing.assert_allclose(weights, 1.0 - np.arange(10) / 10, atol=1e-12)


def test_mixing_is_a_controller(tmp_path: Path) -> None:
    trainer = MixingTrainer(build_model("llama"), arguments(tmp_path), train_dataset=three_streams())
    assert isinstance(trainer.mixing, Mixing)
    assert trainer.mixing.weights == pytest.approx({"a": 20 / 37, "b": 11 / 37, "c": 6 / 37})
