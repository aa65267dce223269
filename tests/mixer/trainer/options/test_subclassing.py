"""Subclasses as people write them, in both shapes and on one data set or two: what their overrides see and do.

A step takes all samples, so that its gradient does not depend on their order: the Trainer with gradient accumulation,
with the same overrides, is what every run is compared with.
"""

import functools
import inspect
import sys
from collections import defaultdict
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader
from transformers import Trainer

import mixer
from mixer import MixingMixin, MixingTrainer
from mixer.loading.loaded_step import StepBatch
from tests.helpers import Tokens, arguments, build_model, weights_of
from tests.mixer.trainer.test_methods import Weighted

NUM_STEPS, NUM_MICRO_BATCHES = 3, 3
TRAINED = {"a": Tokens(8, 1), "b": Tokens(4, 2)}  # three micro-batches, of several streams or of one each
EVALUATED = {"a": Tokens(6, 3), "b": Tokens(5, 4)}
TOGETHER = ConcatDataset(list(TRAINED.values()))
DATA: dict[str, dict[str, Any]] = {
    "one": {"train_dataset": TOGETHER, "eval_dataset": EVALUATED["a"]},
    "two": {"train_dataset": TRAINED, "eval_dataset": EVALUATED},
}
# Mine(MixingTrainer), Mine(MixingMixin, Theirs)
KINDS = [(shape, data) for shape in ("above", "below") for data in DATA]


def kind(value: Any) -> Any:
    """Describes an argument: names and shapes of a batch, the number in a tensor, the type of anything else."""
    if isinstance(value, MutableMapping):
        return sorted((name, type(own).__name__, str(own.dtype), own.dim()) for name, own in value.items())
    if isinstance(value, torch.Tensor):
        return "tensor", value.item()
    if isinstance(value, torch.optim.Optimizer):
        return "optimizer"
    if isinstance(value, str):
        return Path(value).name
    return value if isinstance(value, (bool, int, type(None))) else type(value).__name__


def noted(method: Any) -> Any:
    """Notes what an override is called with, and what it returns; not when the run finds out how losses are counted."""
    signature, name = inspect.signature(method), method.__name__

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = signature.bind(self, *args, **kwargs)
        given.apply_defaults()
        seen = {key: kind(value) for key, value in given.arguments.items() if key != "self"}
        result = method(self, *args, **kwargs)
        if name != "compute_loss" or torch.is_grad_enabled():
            self.calls[name].append((self.state.global_step, seen))
            self.results[name].append(result)
        return result

    return call


def overriding(base: type[Trainer]) -> type[Trainer]:
    class Mine(base):  # type: ignore[valid-type, misc]
        @noted
        def compute_loss(
            self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
        ) -> Any:
            loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
            return (2 * loss, outputs) if return_outputs else 2 * loss

        @noted
        def prediction_step(self, model: Any, inputs: Any, prediction_loss_only: bool, ignore_keys: Any = None) -> Any:
            return super().prediction_step(model, inputs, prediction_loss_only, ignore_keys)

        @noted
        def evaluate(self, eval_dataset: Any = None, ignore_keys: Any = None, metric_key_prefix: str = "eval") -> Any:
            metrics = super().evaluate(eval_dataset, ignore_keys, metric_key_prefix)
            metrics[f"{metric_key_prefix}_mine"] = 1.0
            return metrics

        def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
            super().log({**logs, "mine": 1.0}, start_time)

        @noted
        def create_optimizer(self, model: Any = None) -> Any:
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
            return self.optimizer

        @noted
        def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
            self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer or self.optimizer, lambda step: 0.5**step)
            return self.lr_scheduler

        @noted
        def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
            data = self.eval_dataset[eval_dataset] if isinstance(eval_dataset, str) else eval_dataset
            rows = [(data or self.eval_dataset)[place] for place in range(4)]
            return DataLoader(rows, batch_size=2, collate_fn=self.data_collator)  # type: ignore[arg-type]

        @noted
        def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
            super().save_model(output_dir, _internal_call)
            (Path(str(output_dir)) / "mine.txt").write_text("saved")

    return Mine


def changing_inputs(base: type[Trainer]) -> type[Trainer]:
    class Mine(base):  # type: ignore[valid-type, misc]
        @noted
        def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
            self.calls["inputs"].append((type(inputs), len(inputs["input_ids"]), self.state.global_step))
            del inputs["attention_mask"]
            inputs["position_ids"] = inputs["input_ids"] % 5
            return super().training_step(model, inputs, num_items_in_batch)

        @noted
        def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            self.calls["columns"] += [sorted(inputs)] * torch.is_grad_enabled()
            return super().compute_loss(model, inputs, *args, **kwargs)

    return Mine


def stepping_alone(base: type[Trainer]) -> type[Trainer]:
    class Mine(base):  # type: ignore[valid-type, misc]
        def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
            model.train()
            loss = self.compute_loss(model, self._prepare_inputs(inputs), num_items_in_batch=num_items_in_batch)
            self.accelerator.backward(loss)
            return loss.detach()

    return Mine


Run = Callable[..., Any]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Trains a subclass once for each shape and data; the stock Trainer has all samples as one data set."""

    @functools.cache
    def trained(override: Any, shape: str = "stock", data: str = "one", factors: tuple[float, ...] = ()) -> Any:
        base = MixingTrainer if shape == "above" else Trainer
        own: Any = base if override is None else override(base)
        bases = (MixingMixin, own) if shape == "below" else (own,)
        trainer_class: Any = type("Mine", bases, {"calls": defaultdict(list), "results": defaultdict(list)})
        options: dict[str, Any] = {"gradient_accumulation_steps": NUM_MICRO_BATCHES, "per_device_train_batch_size": 4}
        if override is overriding:
            options |= {"eval_strategy": "steps", "eval_steps": 2, "per_device_eval_batch_size": 2}
            options |= {"save_strategy": "steps", "save_steps": 2}
        sets = {**DATA[data], "train_dataset": TOGETHER} if shape == "stock" else DATA[data]
        methods = {"methods": [Weighted(list(factors))]} if factors else {}
        args = arguments(tmp_path_factory.mktemp("run"), **options)
        trainer = trainer_class(model=build_model("llama"), args=args, **sets, **methods)
        trainer.train()
        return trainer

    return trained


def assert_same_weights(found: Any, expected: Any) -> None:
    torch.testing.assert_close(weights_of(found.model), weights_of(expected.model), rtol=0, atol=1e-6)


@pytest.mark.parametrize(("shape", "data"), KINDS)
def test_overrides_are_called_as_by_the_trainer_and_change_the_weights(run: Run, shape: str, data: str) -> None:
    found, stock = run(overriding, shape, data), run(overriding, "stock", data)
    for name in stock.calls:
        assert found.calls[name] == stock.calls[name], name
    assert len(found.calls["compute_loss"]) == NUM_STEPS * NUM_MICRO_BATCHES
    assert len(stock.calls) == 7
    (optimizer,), (scheduler,) = (found.results[name] for name in ("create_optimizer", "create_scheduler"))
    assert found.optimizer.optimizer is optimizer
    assert scheduler is getattr(found.lr_scheduler, "scheduler", found.lr_scheduler)
    saved = sorted(path.parent.name for path in Path(found.args.output_dir).glob("*/mine.txt"))
    assert saved == ["checkpoint-2", "checkpoint-3"]
    assert all(any(name.endswith("_mine") for name in metrics) for metrics in found.results["evaluate"])
    assert all(entry["mine"] == 1.0 for entry in found.state.log_history)
    assert_same_weights(found, stock)
    assert (weights_of(stock.model) - weights_of(run(None).model)).abs().max() > 1e-3


@pytest.mark.parametrize(("shape", "data"), KINDS)
def test_a_step_gets_each_micro_batch_and_its_changes_reach_the_model(run: Run, shape: str, data: str) -> None:
    trainer, stock = run(changing_inputs, shape, data), run(changing_inputs)
    seen = trainer.calls["inputs"]
    assert all(issubclass(kind, MutableMapping) and not issubclass(kind, StepBatch) for kind, _, _ in seen)
    steps = [step for step in range(NUM_STEPS) for _ in range(NUM_MICRO_BATCHES)]
    assert [own[1:] for own in seen] == [(4, step) for step in steps]
    assert trainer.calls["training_step"] == stock.calls["training_step"]
    losses, expected = (torch.stack(own.results["training_step"]).view(NUM_STEPS, -1) for own in (trainer, stock))
    assert not losses.requires_grad
    torch.testing.assert_close(losses.sum(dim=1), expected.sum(dim=1), rtol=1e-5, atol=0)
    assert trainer.calls["columns"] == [["input_ids", "labels", "position_ids"]] * 9
    assert_same_weights(trainer, stock)
    assert (weights_of(stock.model) - weights_of(run(None).model)).abs().max() > 1e-3


@pytest.mark.parametrize(("shape", "data"), KINDS)
def test_one_without_super_trains_as_the_trainers_own(run: Run, shape: str, data: str) -> None:
    alone, plain = run(stepping_alone, shape, data), run(None, shape, data)
    assert_same_weights(alone, plain)
    assert_same_weights(alone, run(None))
    losses = [[entry["loss"] for entry in own.state.log_history if "loss" in entry] for own in (alone, plain)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    if data == "two":  # and keeps the factors of streams
        assert_same_weights(*(run(override, shape, data, (0.5, 3.0)) for override in (stepping_alone, None)))


def test_without_sentence_transformers_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "mixer.trainer.sentence_transformers.trainers", raising=False)
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    monkeypatch.setitem(sys.modules, "sentence_transformers.base.trainer", None)
    with pytest.raises(ImportError) as caught:
        _ = mixer.MixingSentenceTransformerTrainer
    assert "adaptive-mixer[sentence-transformers]" in str(caught.value)
