"""What each rank does in the distributed tests: `torchrun ... worker.py FOLDER SCENARIO...`."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer, TrainerCallback

from benchmarks.quality.losses import LOSSES, padded, ragged, small_model, whole_gradient
from mixer import LossChange, MixingTrainer, Uniform
from tests.helpers import (
    MODEL_DATA,
    GradientRecorder,
    Tokens,
    arguments,
    build_model,
    three_streams,
    weights_of,
)
from tests.ranks.launch import end_with, message_of


def gradients(folder: Path) -> dict[str, Any]:
    """Gradients of steps with unequal counts on the ranks, several micro-batches, and a rank without samples."""
    results: dict[str, Any] = {}
    for name in MODEL_DATA:
        recorder = GradientRecorder()
        trainer = MixingTrainer(
            model=build_model(name),
            args=arguments(folder / name, per_device_train_batch_size=2, max_steps=6),
            train_dataset=three_streams(MODEL_DATA[name]),
            batch_size=9,
            mixing=Uniform(),
            callbacks=[recorder],
        )
        trainer.train()
        torch.save(torch.stack(recorder.gradients), folder / f"{name}-rank{trainer.args.process_index}.pt")
        assert not trainer._parts.run.loader.by_stream
        results[name] = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return results


class _DividesByItems(MixingTrainer):
    """Computes a loss of its own, divided by the items of all ranks, and leaves the number of ranks out."""

    def compute_loss(self, model: Any, inputs: Any, *args: Any, num_items_in_batch: Any = None, **kwargs: Any) -> Any:
        return model(**inputs)["loss"] * len(inputs["labels"]) / num_items_in_batch


def own_loss(folder: Path) -> float:
    """The norm of the gradient of such a loss."""
    recorder = GradientRecorder()
    trainer = _DividesByItems(
        _WithoutLogits(),
        arguments(folder / "own-loss", per_device_train_batch_size=2, max_steps=1),
        train_dataset=three_streams("sequence-classification"),
        batch_size=9,
        callbacks=[recorder],
    )
    trainer.train()
    return float(recorder.gradients[0].norm())


class _WithoutLogits(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = build_model("bert-classifier")

    def forward(self, input_ids: Any, attention_mask: Any, labels: Any) -> Any:
        return {"loss": self.inner(input_ids=input_ids, attention_mask=attention_mask, labels=labels).loss}


def kinds_of_loss(folder: Path) -> dict[str, float]:
    """How far the gradients of losses are from those of the whole batch, whatever they are divided by."""
    rows, errors = ragged(13, 1), {}
    for name, (loss, is_exact) in LOSSES.items():
        recorder = GradientRecorder()
        args = arguments(folder / "kinds", per_device_train_batch_size=2, max_steps=1)
        data = {"a": rows[:5], "b": rows[5:]}
        trainer = MixingTrainer(small_model(), args, padded, data, batch_size=13, compute_loss_func=loss)
        trainer.add_callback(recorder)
        trainer.train()
        exact = whole_gradient(loss, rows)
        if is_exact:
            errors[name] = float((recorder.gradients[0] - exact).norm() / exact.norm())
    return errors


class _CountsRows(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = build_model("bert-classifier")
        self.register_buffer("num_rows", torch.zeros((), dtype=torch.int64))

    def forward(self, input_ids: Any, attention_mask: Any, labels: Any) -> Any:
        self.num_rows += len(labels)
        return {"loss": self.inner(input_ids=input_ids, attention_mask=attention_mask, labels=labels).loss}


def turns(folder: Path) -> dict[str, Any]:
    """Losses of many streams whose rows are unknown, measured in turns."""
    data = Tokens(60, 1, "sequence-classification")
    streams = {f"s{k}": [data[3 * k + i] for i in range(3)] for k in range(20)}
    args = arguments(folder / "turns", per_device_train_batch_size=4, max_steps=3, learning_rate=0.0)
    trainer = MixingTrainer(_CountsRows(), args, train_dataset=streams, batch_size=20, mixing=Uniform())
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return {"losses": losses, "num_rows": int(trainer.model.num_rows)}


def stock_gradient(folder: Path) -> float:
    """The norm ratio of the stock Trainer's gradient for a head that ignores the item count."""
    recorder = GradientRecorder()
    data = Tokens(8, 1, "sequence-classification")
    args = arguments(folder / "stock", per_device_train_batch_size=4, max_steps=1, train_sampling_strategy="sequential")
    trainer = Trainer(build_model("bert-classifier"), args, train_dataset=data, callbacks=[recorder])
    trainer.train()
    own = GradientRecorder()
    args = arguments(folder / "own", per_device_train_batch_size=4, max_steps=1, train_sampling_strategy="sequential")
    mixing = MixingTrainer(build_model("bert-classifier"), args, train_dataset=data, callbacks=[own])
    mixing.train()
    return float(recorder.gradients[0].norm() / own.gradients[0].norm())


class _WeightsOnOneRank(TrainerCallback):
    def __init__(self, mixing: Callable[[], Any]):
        self.mixing = mixing

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 2 and args.process_index == 1:
            self.mixing().set_weights({"a": 1, "b": 5, "c": 1})


def disagreement(folder: Path) -> str:
    trainer = MixingTrainer(build_model("llama"), arguments(folder / "disagreement"), train_dataset=three_streams())
    trainer.add_callback(_WeightsOnOneRank(lambda: trainer.mixing))
    return message_of(trainer.train)


def failing_policy(folder: Path) -> str:
    """A policy that fails on one rank only."""

    def weights(step: int, weights: Any) -> Any:
        if step == 2 and torch.distributed.get_rank() == 1:
            raise ValueError("no idea")
        return weights

    args = arguments(folder / "failing")
    return message_of(MixingTrainer(build_model("llama"), args, train_dataset=three_streams(), mixing=weights).train)


class _Broken(Tokens):
    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        if index == 7:
            raise OSError("disk on fire")
        return super().__getitem__(index)


def broken_sample(folder: Path) -> str:
    streams = {"good": Tokens(20, 1), "bad": _Broken(12, 2)}
    args = arguments(folder / "broken", max_steps=10)
    return message_of(MixingTrainer(build_model("llama"), args, train_dataset=streams, batch_size=8).train)


class _InfiniteForLabel(torch.nn.Module):
    """A classifier whose loss is infinite for rows that hold the token 63."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = build_model("bert-classifier")

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, labels: torch.Tensor) -> Any:
        output = self.inner(input_ids=input_ids, attention_mask=attention_mask)
        bad = (input_ids == 63).any(dim=1, keepdim=True)
        logits = torch.where(bad, output.logits * float("inf"), output.logits)
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


def nonfinite(folder: Path) -> dict[str, Any]:
    good, bad = Tokens(16, 1, "sequence-classification"), Tokens(16, 2, "sequence-classification")
    for rows, replacement in ((good.rows, 1), (bad.rows, 63)):
        for row in rows:
            row["input_ids"] = torch.where(row["input_ids"] >= 63, 1, row["input_ids"])
            row["input_ids"][0] = replacement
    results: dict[str, Any] = {}
    for mode in ("skip", "raise"):
        model = _InfiniteForLabel()
        before = weights_of(model)
        trainer = MixingTrainer(
            model,
            arguments(folder / mode, max_steps=2, weight_decay=0.1),
            train_dataset={"good": good, "bad": bad},
            batch_size=6,
            nonfinite=mode,
        )
        if mode == "raise":
            results[mode] = message_of(trainer.train)
        else:
            trainer.train()
            results[mode] = bool(torch.equal(before, weights_of(model)))
    return results


def resume(folder: Path) -> bool:
    """Whether a run that was saved half-way and resumed ends with the weights of the uninterrupted one."""
    ends = []
    for name, half in (("whole", False), ("resumed", True)):
        args = arguments(folder / name, max_steps=8, save_strategy="steps", save_steps=4, optim="adamw_torch")
        for _ in range(2 if half else 1):
            trainer = MixingTrainer(
                build_model("llama"),
                args,
                train_dataset=three_streams(),
                batch_size=5,
                mixing=LossChange(num_warmup_observations=1),
            )
            trainer.train(resume_from_checkpoint=str(folder / name / "checkpoint-4") if len(ends) == 2 else None)
            ends.append(weights_of(trainer.model))
    return torch.equal(ends[0], ends[2])


def main() -> None:
    folder = Path(sys.argv[1])
    results = {name: globals()[name](folder) for name in sys.argv[2:]}
    end_with(results, folder, "results")


if __name__ == "__main__":
    main()
