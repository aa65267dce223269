"""Whole runs: one stream is trained as by the Trainer, several by the gradient and the shares that are asked for."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Trainer, TrainerCallback

import mixer
from mixer import MixingTrainer, Policy, Stream
from tests.helpers import MODEL_DATA, Tokens, arguments, build_model, weights_of
from tests.mixer.trainer.runs import as_drawn, gradients_of, make, train


class _Events(TrainerCallback):
    def __init__(self, stop_at: int):
        self.seen: list[Any] = []
        self.stop_at = stop_at
        for event in ("epoch_begin", "epoch_end", "evaluate", "save"):
            setattr(self, f"on_{event}", lambda _, state, *__, name=event, **___: self._note(name, state))

    def _note(self, name: str, state: Any) -> None:
        self.seen.append((name, state.global_step, state.epoch, state.max_steps))

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._note("step", state)
        if state.global_step == self.stop_at:
            control.should_epoch_stop = True


def _run_both(folder: Path, model: str, num_samples: int, stop_at: int = 0, **changes: Any) -> list[Trainer]:
    """Trains by the Trainer and by ours; events, epochs, steps and learning rates are the same."""
    data = Tokens(num_samples, 1, MODEL_DATA[model])
    both: list[Trainer] = []
    found = []
    for kind in (Trainer, MixingTrainer):
        options = {"optim": "adamw_torch", "learning_rate": 1e-2, "max_grad_norm": 1.0, "max_steps": -1, **changes}
        args = arguments(folder / kind.__name__, **options)
        own: Any = data
        if kind is Trainer:  # it gets the samples in our order: epoch after epoch
            args.train_sampling_strategy = "sequential"
            own = as_drawn(data)
        events = _Events(stop_at)
        evaluation = Tokens(4, 9, MODEL_DATA[model])
        trainer = kind(build_model(model), args, train_dataset=own, eval_dataset=evaluation, callbacks=[events])
        trainer.train()
        both.append(trainer)
        keys = ("epoch", "step", "learning_rate")
        found.append([*events.seen, *([entry.get(key) for key in keys] for entry in trainer.state.log_history)])
    assert found[0] == found[1]
    return both


@pytest.mark.parametrize("model", ["llama", pytest.param("gpt2", marks=pytest.mark.full), "bert-tokens"])
def test_one_data_set_gives_the_weights_of_the_trainer_to_the_bit(tmp_path: Path, model: str) -> None:
    options = {"eval_strategy": "epoch", "save_strategy": "epoch", "lr_scheduler_type": "cosine", "warmup_steps": 1}
    stock, ours = _run_both(tmp_path, model, num_samples=21, num_train_epochs=1, **options)
    assert torch.equal(weights_of(stock.model), weights_of(ours.model))
    for mine, theirs in zip(ours.state.log_history, stock.state.log_history, strict=True):
        for key in ("loss", "grad_norm", "train_loss"):
            assert mine.get(key) == pytest.approx(theirs.get(key), abs=1e-6)
        # Of GPT-2 the Trainer divides by the first label of a row too, which is not predicted; rows have four.
        if "eval_loss" in theirs:
            assert mine["eval_loss"] == pytest.approx(theirs["eval_loss"] * (4 / 3 if model == "gpt2" else 1), abs=1e-6)


@pytest.mark.parametrize(
    ("num_samples", "changes"),
    [
        (20, {"num_train_epochs": 2.5}),
        (21, {"num_train_epochs": 3, "dataloader_drop_last": True}),
        (37, {"num_train_epochs": 2, "gradient_accumulation_steps": 3, "dataloader_drop_last": True}),
        (21, {"max_steps": 7, "save_strategy": "steps", "save_steps": 3, "logging_steps": 3}),
        (21, {"max_steps": 7, "eval_strategy": "steps", "eval_steps": 2, "save_strategy": "epoch"}),
        (5, {"num_train_epochs": 2}),
        (30, {"num_train_epochs": 2, "stop_at": 1}),
    ],
    ids=str,
)
def test_steps_and_events_are_those_of_the_trainer(tmp_path: Path, num_samples: int, changes: dict[str, Any]) -> None:
    _run_both(tmp_path, "llama", num_samples, **changes)


@pytest.mark.parametrize("model", MODEL_DATA)
def test_micro_batches_give_the_gradient_of_the_whole_batch(tmp_path: Path, model: str) -> None:
    whole, parts = (
        gradients_of(tmp_path, model, per_device_train_batch_size=size, batch_size=9, max_steps=3) for size in (64, 2)
    )
    torch.testing.assert_close(parts, whole, rtol=0, atol=1e-6)


class _Weighing(Policy):
    def __init__(self, loss_weights: list[float]):
        super().__init__()
        self.decision = mixer.Decision(np.ones(len(loss_weights)), np.array(loss_weights))

    def start(self, _: Any) -> mixer.Decision:
        return self.decision

    update = start


@pytest.mark.parametrize("model", ["llama", "bert-classifier"])
def test_loss_weights_weigh_the_gradients_of_the_streams(tmp_path: Path, model: str) -> None:
    def gradient(size: int, weights: list[float]) -> torch.Tensor:
        sizes = {"per_device_train_batch_size": size, "batch_size": 9}
        return gradients_of(tmp_path, model, mixing=_Weighing(weights), max_steps=1, **sizes)[0]

    alone = [gradient(64, weights) for weights in np.eye(3).tolist()]
    weighted = gradient(4, [0.5, 2.0, 1.0])
    torch.testing.assert_close(weighted, 0.5 * alone[0] + 2.0 * alone[1] + alone[2], rtol=0, atol=1e-6)


def _mean_loss(rows: Any) -> float:
    return float((rows["loss"] * rows["items"]).sum() / rows["items"].sum())


def test_log_entries_and_ledger_add_up(tmp_path: Path) -> None:
    trainer = train(tmp_path, max_steps=6, logging_steps=2, batch_size=9, mixing=[3, 2, 1])
    rows = trainer.ledger.to_pandas()
    assert len(rows) == 18
    assert (rows["staleness"] == 0).all()
    assert (rows.groupby("stream")["count"].cumsum() == rows["seen"]).all()
    assert (rows["coverage"] == np.minimum(1, rows["seen"] / rows["stream"].map({"a": 20, "b": 11, "c": 6}))).all()
    entry, own = trainer.state.log_history[1], rows[rows["step"].isin([3, 4])]
    assert entry["loss"] == pytest.approx(own.groupby("step").apply(_mean_loss).mean(), abs=1e-5)
    for name, group in own.groupby("stream"):
        assert entry[f"count/{name}"] == group["count"].sum()
        assert entry[f"loss/{name}"] == pytest.approx(_mean_loss(group), rel=1e-9)
        assert entry[f"coverage/{name}"] == group["coverage"].iloc[-1]
        assert entry[f"weight/{name}"] == group["weight"].iloc[-1]
    assert entry["train_coverage"] == pytest.approx(36 / 37)


@pytest.mark.parametrize("mode", ["all", "non_padding"])
def test_tokens_and_items_are_counted_without_padding(tmp_path: Path, mode: str) -> None:
    data = Tokens(8, 1)
    options = {"max_steps": 1, "per_device_train_batch_size": 3, "include_num_input_tokens_seen": mode}
    trainer = train(tmp_path, train_dataset=data, batch_size=8, **options)
    row = trainer.ledger.to_pandas().iloc[0]
    assert row["tokens"] == sum(int(sample["attention_mask"].sum()) for sample in data.rows)
    assert row["items"] == sum(int((sample["labels"][1:] != -100).sum()) for sample in data.rows)
    assert trainer.state.num_input_tokens_seen == (row["tokens"] if mode == "non_padding" else 8 * 12)
    assert trainer.state.total_flos > 0


def test_exhausted_streams_end_the_run(tmp_path: Path) -> None:
    streams = [Stream("once", Tokens(10, 1), max_epochs=1), Stream("twice", Tokens(6, 2), max_epochs=2)]
    options = {"max_steps": 100, "eval_strategy": "steps", "eval_steps": 100, "save_strategy": "steps"}
    options |= {"train_dataset": streams, "eval_dataset": {"once": Tokens(3, 5)}}
    trainer = train(tmp_path, mixing=mixer.Uniform(), **options)
    assert trainer.ledger.to_pandas().groupby("stream")["count"].sum().to_dict() == {"once": 10, "twice": 12}
    assert any("eval_once_loss" in entry for entry in trainer.state.log_history)
    assert (tmp_path / f"checkpoint-{trainer.state.global_step}").is_dir()


SAVED = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2}


def test_other_fixed_weights_are_refused_on_resume_unless_they_are_set_on_purpose(tmp_path: Path) -> None:
    only = {name: dict.fromkeys("abc", 0.0) | {name: 8.0} for name in "ab"}
    train(tmp_path, mixing=only["a"], **SAVED)
    with pytest.raises(ValueError, match=r"weights were .* change them by set_weights"):
        train(tmp_path, resume=tmp_path / "checkpoint-2", mixing=only["b"], **SAVED)
    resumed = make(tmp_path, mixing=only["a"], **SAVED)
    resumed.mixing.set_weights(only["b"])
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert resumed.ledger.to_pandas().query("step == 3")["count"].tolist() == [0, 8, 0]


def test_training_again_keeps_the_controller_and_the_old_ledger_and_leaves_the_model_as_it_was(tmp_path: Path) -> None:
    trainer = make(tmp_path, max_steps=2)
    mixing = trainer.mixing
    assert isinstance(mixing, mixer.Mixing)
    assert mixing.weights == pytest.approx({"a": 20 / 37, "b": 11 / 37, "c": 6 / 37})
    ledgers = []
    for weights in (None, None, [0, 0, 1]):
        if weights is not None:
            mixing.set_weights(weights)
        trainer.train()
        ledgers.append(trainer.ledger.to_pandas())
        assert trainer.mixing is mixing
    assert ledgers[1][["step", "count"]].equals(ledgers[0][["step", "count"]])
    assert ledgers[2]["count"].tolist() == [0, 0, 8] * 2
    assert (tmp_path / "ledger-1" / "ledger.json").is_file()
    assert not trainer.model._forward_hooks
    assert "_loss_function" not in trainer.model.__dict__
