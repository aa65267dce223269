"""Subclasses as people write them, in both shapes and on one data set or two: what their overrides see and do.

A step takes all samples, so that its gradient does not depend on their order: the Trainer with gradient accumulation,
with the same overrides, is what every run is compared with.
"""

import functools
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader
from transformers import Trainer

from mixer import MixingMixin, MixingTrainer
from mixer.loading.step import StepBatch
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
KINDS = [
    (shape, data) for shape in ("above", "below") for data in DATA
]  # Mine(MixingTrainer), Mine(MixingMixin, Theirs)


@dataclass
class Record:
    """The calls of overrides: arguments by name of the method, and what they returned."""

    calls: dict[str, list[Any]] = field(default_factory=dict)
    results: dict[str, list[Any]] = field(default_factory=dict)

    def add(self, name: str, *seen: Any) -> None:
        self.calls.setdefault(name, []).append(seen)

    def returns(self, name: str, result: Any) -> Any:
        self.results.setdefault(name, []).append(result)
        return result


def kind(value: Any) -> Any:
    """Describes an argument: names and shapes of a batch, the number in a tensor, the type of anything else."""
    if isinstance(value, MutableMapping):
        return "batch", sorted((name, kind_of_tensor(tensor)) for name, tensor in value.items())
    if isinstance(value, torch.Tensor):
        return "tensor", value.item()
    return value if isinstance(value, (bool, int, str, type(None))) else type(value).__name__


def kind_of_tensor(tensor: Any) -> Any:
    return type(tensor).__name__, str(tensor.dtype), tensor.dim()


# ---- What people override ----


def overriding(base: type[Trainer]) -> type[Trainer]:
    """Overrides what is not the step itself; each override notes its call and has an effect."""

    class Mine(base):  # type: ignore[valid-type, misc]
        record = Record()
        is_predicting = False

        def compute_loss(
            self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
        ) -> Any:
            if torch.is_grad_enabled() or self.is_predicting:  # otherwise the run finds out how losses are normalised
                name = "compute_loss in evaluation" if self.is_predicting else "compute_loss"
                self.record.add(name, *map(kind, (model, inputs, return_outputs, num_items_in_batch)))
            loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
            return (2 * loss, outputs) if return_outputs else 2 * loss

        def prediction_step(
            self, model: Any, inputs: Any, prediction_loss_only: bool, ignore_keys: Any = None
        ) -> tuple[Any, Any, Any]:
            self.record.add("prediction_step", *map(kind, (model, inputs, prediction_loss_only, ignore_keys)))
            self.record.add("rows", inputs["input_ids"].clone())
            self.is_predicting = True
            result = super().prediction_step(model, inputs, prediction_loss_only, ignore_keys)
            self.is_predicting = False
            return result

        def evaluate(self, eval_dataset: Any = None, ignore_keys: Any = None, metric_key_prefix: str = "eval") -> Any:
            self.record.add("evaluate", self.state.global_step, kind(ignore_keys), metric_key_prefix)
            metrics = super().evaluate(eval_dataset, ignore_keys, metric_key_prefix)
            metrics[f"{metric_key_prefix}_mine"] = 1.0
            return self.record.returns("evaluate", metrics)

        def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
            self.record.add("log", self.state.global_step, sorted(logs), kind(start_time))
            super().log({**logs, "mine": 1.0}, start_time)

        def create_optimizer(self, *args: Any) -> Any:
            self.record.add("create_optimizer", *map(kind, args))
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
            return self.record.returns("create_optimizer", self.optimizer)

        def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
            self.record.add("create_scheduler", num_training_steps, isinstance(optimizer, torch.optim.Optimizer))
            self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer or self.optimizer, lambda step: 0.5**step)
            return self.record.returns("create_scheduler", self.lr_scheduler)

        def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
            self.record.add("get_eval_dataloader", kind(eval_dataset))
            data = self.eval_dataset[eval_dataset] if isinstance(eval_dataset, str) else eval_dataset
            rows = [(data or self.eval_dataset)[place] for place in range(4)]
            return DataLoader(rows, batch_size=2, collate_fn=self.data_collator)  # type: ignore[arg-type]

        def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
            self.record.add("save_model", Path(str(output_dir)).name, _internal_call)
            super().save_model(output_dir, _internal_call)
            (Path(str(output_dir)) / "mine.txt").write_text("saved")

    return Mine


def changing_inputs(base: type[Trainer]) -> type[Trainer]:
    """Drops an input in `training_step`, adds another, and passes the micro-batch on."""

    class Mine(base):  # type: ignore[valid-type, misc]
        record = Record()

        def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
            self.record.add("training_step", *map(kind, (model, inputs, num_items_in_batch)))
            self.record.add("inputs", type(inputs), len(inputs["input_ids"]), self.state.global_step)
            del inputs["attention_mask"]
            inputs["position_ids"] = inputs["input_ids"] % 5
            return self.record.returns("training_step", super().training_step(model, inputs, num_items_in_batch))

        def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            if torch.is_grad_enabled():
                self.record.add("compute_loss", sorted(inputs))
            return super().compute_loss(model, inputs, *args, **kwargs)

    return Mine


def stepping_alone(base: type[Trainer]) -> type[Trainer]:
    """Does its own forward and backward, as the Trainer does."""

    class Mine(base):  # type: ignore[valid-type, misc]
        def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
            model.train()
            loss = self.compute_loss(model, self._prepare_inputs(inputs), num_items_in_batch=num_items_in_batch)
            self.accelerator.backward(loss)
            return loss.detach()

    return Mine


def as_it_is(base: type[Trainer]) -> type[Trainer]:
    """Overrides nothing."""
    return base


# ---- Runs ----


Run = Callable[..., Any]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Trains a subclass once for each shape and data; the stock Trainer has all samples as one data set."""

    @functools.cache
    def trained(override: Any, shape: str = "stock", data: str = "one", factors: tuple[float, ...] = ()) -> Any:
        trainer_class: Any = override(MixingTrainer if shape == "above" else Trainer)
        if shape == "below":
            trainer_class = type("Combined", (MixingMixin, trainer_class), {})
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


def distance(one: Any, other: Any) -> float:
    return float((weights_of(one.model) - weights_of(other.model)).abs().max())


def losses_of(trainer: Any) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


# ---- What is not the step itself ----

AS_BY_THE_TRAINER = (
    *("compute_loss", "compute_loss in evaluation", "prediction_step", "evaluate", "create_optimizer"),
    *("create_scheduler", "get_eval_dataloader", "save_model"),
)


@pytest.mark.parametrize(("shape", "data"), KINDS)
def test_overrides_are_called_as_by_the_trainer_and_change_the_weights(run: Run, shape: str, data: str) -> None:
    found, stock = run(overriding, shape, data), run(overriding, "stock", data)
    for name in AS_BY_THE_TRAINER:
        assert found.record.calls[name] == stock.record.calls[name], name
    assert len(found.record.calls["compute_loss"]) == NUM_STEPS * NUM_MICRO_BATCHES
    assert_same_weights(found, stock)
    assert distance(stock, run(as_it_is)) > 1e-3


@pytest.mark.parametrize(("shape", "data"), KINDS)
def test_what_they_make_is_used(run: Run, shape: str, data: str) -> None:
    trainer = run(overriding, shape, data)
    (optimizer,), (scheduler,) = (trainer.record.results[name] for name in ("create_optimizer", "create_scheduler"))
    assert trainer.optimizer.optimizer is optimizer
    assert scheduler is getattr(trainer.lr_scheduler, "scheduler", trainer.lr_scheduler)
    rates = [entry["learning_rate"] for entry in trainer.state.log_history if "learning_rate" in entry]
    assert rates == [0.05, 0.025, 0.0125]
    saved = sorted(path.parent.name for path in Path(trainer.args.output_dir).glob("*/mine.txt"))
    assert saved == ["checkpoint-2", "checkpoint-3"]


@pytest.mark.parametrize(("shape", "data"), KINDS)
def test_evaluations_are_those_of_the_subclass(run: Run, shape: str, data: str) -> None:
    record = run(overriding, shape, data).record
    assert {step for step, *_ in record.calls["evaluate"]} == {2, NUM_STEPS}  # a run ends with an evaluation
    names = {name for metrics in record.results["evaluate"] for name in metrics if name.endswith("_loss")}
    assert names >= ({"eval_loss"} if data == "one" else {"eval_a_loss", "eval_b_loss"})
    assert all(any(name.endswith("_mine") for name in metrics) for metrics in record.results["evaluate"])
    rows = torch.cat([batch for (batch,) in record.calls["rows"]])
    sets = list(EVALUATED.values()) if data == "two" else [EVALUATED["a"]]
    once = torch.stack([one[place]["input_ids"] for one in sets for place in range(4)])
    assert torch.equal(rows, once.repeat(2, 1))


@pytest.mark.parametrize(("shape", "data"), KINDS)
def test_the_log_shows_the_streams_and_keeps_what_is_added(run: Run, shape: str, data: str) -> None:
    trainer = run(overriding, shape, data)
    calls, stock = trainer.record.calls["log"], run(overriding, "stock", data).record.calls["log"]
    if data == "two":  # the mean over the sets has an entry of its own
        calls = [call for call in calls if "eval_loss" not in call[1]]
    trained = [names for _, names, _ in calls if "loss" in names]
    assert len(trained) == NUM_STEPS
    names = ["a", "b"] if data == "two" else ["train"]
    assert all({f"loss/{name}", f"count/{name}"} <= set(entry) for entry in trained for name in names)
    for (step, entry, start), (stock_step, stock_entry, stock_start) in zip(calls, stock, strict=True):
        assert (step, start) == (stock_step, stock_start)
        assert set(stock_entry) <= set(entry)
    assert all(entry["mine"] == 1.0 for entry in trainer.state.log_history)


# ---- The step ----


@pytest.mark.parametrize(("shape", "data"), KINDS)
def test_a_step_gets_each_micro_batch_by_itself_and_returns_a_loss(run: Run, shape: str, data: str) -> None:
    record, stock = run(changing_inputs, shape, data).record, run(changing_inputs).record
    seen = record.calls["inputs"]
    assert all(issubclass(kind, MutableMapping) and not issubclass(kind, StepBatch) for kind, _, _ in seen)
    steps = [step for step in range(NUM_STEPS) for _ in range(NUM_MICRO_BATCHES)]
    assert [(rows, step) for _, rows, step in seen] == [(4, step) for step in steps]
    assert record.calls["training_step"] == stock.calls["training_step"]
    losses = record.results["training_step"]
    assert all(isinstance(loss, torch.Tensor) and loss.dim() == 0 and not loss.requires_grad for loss in losses)
    for step in range(0, NUM_STEPS * NUM_MICRO_BATCHES, NUM_MICRO_BATCHES):
        own = slice(step, step + NUM_MICRO_BATCHES)
        found, expected = (torch.stack(one[own]).sum() for one in (losses, stock.results["training_step"]))
        assert float(found) == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize(("shape", "data"), KINDS)
def test_what_it_changes_reaches_the_model(run: Run, shape: str, data: str) -> None:
    trainer, stock = run(changing_inputs, shape, data), run(changing_inputs)
    assert trainer.record.calls["compute_loss"] == [(["input_ids", "labels", "position_ids"],)] * 9
    assert_same_weights(trainer, stock)
    assert distance(stock, run(as_it_is)) > 1e-3


@pytest.mark.parametrize(("shape", "data"), KINDS)
def test_one_without_super_trains_as_the_trainers_own(run: Run, shape: str, data: str) -> None:
    alone, plain = run(stepping_alone, shape, data), run(as_it_is, shape, data)
    assert_same_weights(alone, plain)
    assert_same_weights(alone, run(as_it_is))
    assert losses_of(alone) == pytest.approx(losses_of(plain), rel=1e-5)


@pytest.mark.parametrize("shape", ["above", "below"])
def test_one_without_super_keeps_the_factors_of_streams(run: Run, shape: str) -> None:
    alone, plain = (run(override, shape, "two", (0.5, 3.0)) for override in (stepping_alone, as_it_is))
    assert_same_weights(alone, plain)
