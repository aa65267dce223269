"""Subclasses as people write them, in both shapes and on one data set or two: what their overrides see and do.

A step takes all samples, so that its gradient does not depend on their order: the Trainer with gradient accumulation,
with the same overrides, is what every run is compared with.
"""

from collections.abc import Iterable, MutableMapping
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
SHAPES = ("above", "below")  # class Mine(MixingTrainer), and class Mine(MixingMixin, Theirs)


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


class Runs:
    """Trains a subclass once for each shape and data, when a test asks for it."""

    def __init__(self, override: Any, folder: Path, factors: list[float] | None = None, **changes: Any):
        self.override, self.folder, self.factors, self.changes = override, folder, factors, changes
        self.done: dict[tuple[str, str], Any] = {}

    def of(self, shape: str, data: str) -> Any:
        """Returns the trained trainer; each test that asks for a run that failed fails with it."""
        if (shape, data) not in self.done:
            try:
                self.done[shape, data] = self._train(shape, data)
            except Exception as error:
                self.done[shape, data] = error
        if isinstance(found := self.done[shape, data], Exception):
            raise found
        return found

    def expected(self, data: str = "one") -> Any:
        """Returns the Trainer's own run, on all samples as one data set and the same evaluation sets."""
        return self.of("stock", data)

    def _train(self, shape: str, data: str) -> Any:
        trainer_class: Any = self.override(MixingTrainer if shape == "above" else Trainer)
        if shape == "below":
            trainer_class = type("Combined", (MixingMixin, trainer_class), {})
        options = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": NUM_MICRO_BATCHES, **self.changes}
        sets = {**DATA[data], "train_dataset": TOGETHER} if shape == "stock" else DATA[data]
        args = arguments(self.folder / f"{shape}-{data}", **options)
        methods = {} if self.factors is None else {"methods": [Weighted(self.factors)]}
        trainer = trainer_class(model=build_model("llama"), args=args, **sets, **methods)
        trainer.train()
        return trainer


@pytest.fixture(scope="module")
def rest(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    evaluation = {"eval_strategy": "steps", "eval_steps": 2, "per_device_eval_batch_size": 2}
    saving = {"save_strategy": "steps", "save_steps": 2}
    return Runs(overriding, tmp_path_factory.mktemp("rest"), **evaluation, **saving)


@pytest.fixture(scope="module")
def changing(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(changing_inputs, tmp_path_factory.mktemp("changing"))


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(stepping_alone, tmp_path_factory.mktemp("alone"))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(as_it_is, tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module")
def weighed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Runs]:
    return {
        override.__name__: Runs(override, tmp_path_factory.mktemp(override.__name__), factors=[0.5, 3.0])
        for override in (stepping_alone, as_it_is)
    }


@pytest.fixture(params=SHAPES)
def shape(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=list(DATA))
def data(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def assert_same_weights(found: Any, expected: Any) -> None:
    torch.testing.assert_close(weights_of(found.model), weights_of(expected.model), rtol=0, atol=1e-6)


def distance(one: Any, other: Any) -> float:
    return float((weights_of(one.model) - weights_of(other.model)).abs().max())


# ---- What is not the step itself ----

AS_BY_THE_TRAINER = (
    *("compute_loss", "compute_loss in evaluation", "prediction_step", "evaluate", "create_optimizer"),
    *("create_scheduler", "get_eval_dataloader", "save_model"),
)


@pytest.mark.parametrize("name", AS_BY_THE_TRAINER)
def test_an_override_is_called_as_by_the_trainer(rest: Runs, shape: str, data: str, name: str) -> None:
    calls = rest.of(shape, data).record.calls[name]
    assert calls == rest.expected(data).record.calls[name]


def test_overrides_change_the_weights_as_in_the_trainer(rest: Runs, plain: Runs, shape: str, data: str) -> None:
    assert_same_weights(rest.of(shape, data), rest.expected(data))
    assert distance(rest.expected(data), plain.expected()) > 1e-3


def test_a_loss_is_computed_once_a_micro_batch(rest: Runs, shape: str, data: str) -> None:
    calls = rest.of(shape, data).record.calls["compute_loss"]
    assert len(calls) == NUM_STEPS * NUM_MICRO_BATCHES


def test_the_optimizer_and_its_schedule_are_used(rest: Runs, shape: str, data: str) -> None:
    trainer = rest.of(shape, data)
    (optimizer,), (scheduler,) = (trainer.record.results[name] for name in ("create_optimizer", "create_scheduler"))
    assert trainer.optimizer.optimizer is optimizer
    assert scheduler is getattr(trainer.lr_scheduler, "scheduler", trainer.lr_scheduler)
    rates = [entry["learning_rate"] for entry in trainer.state.log_history if "learning_rate" in entry]
    assert rates == [0.05, 0.025, 0.0125]


def test_evaluation_runs_at_its_steps_and_its_metrics_stay(rest: Runs, shape: str, data: str) -> None:
    trainer = rest.of(shape, data)
    assert {step for step, *_ in trainer.record.calls["evaluate"]} == {2, NUM_STEPS}  # a run ends with an evaluation
    losses = {name for metrics in trainer.record.results["evaluate"] for name in metrics if name.endswith("_loss")}
    assert losses >= ({"eval_loss"} if data == "one" else {"eval_a_loss", "eval_b_loss"})
    assert all(any(name.endswith("_mine") for name in metrics) for metrics in trainer.record.results["evaluate"])


def test_an_evaluation_takes_the_loader_and_the_steps_of_the_subclass(rest: Runs, shape: str, data: str) -> None:
    seen, sets = rest.of(shape, data).record.calls["rows"], DATA[data]["eval_dataset"]
    rows = torch.cat([batch for (batch,) in seen])
    expected: Iterable[Tokens] = sets.values() if data == "two" else [sets]
    once = torch.stack([one[place]["input_ids"] for one in expected for place in range(4)])
    assert torch.equal(rows, once.repeat(2, 1))


def test_the_log_shows_the_streams_and_keeps_what_is_added(rest: Runs, shape: str, data: str) -> None:
    trainer = rest.of(shape, data)
    calls, stock = trainer.record.calls["log"], rest.expected(data).record.calls["log"]
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


def test_checkpoints_are_saved_by_the_subclass(rest: Runs, shape: str, data: str) -> None:
    trainer = rest.of(shape, data)
    saved = sorted(path.parent.name for path in Path(trainer.args.output_dir).glob("*/mine.txt"))
    assert saved == ["checkpoint-2", "checkpoint-3"]


# ---- The step ----


class TestStep:
    def test_it_gets_each_micro_batch_by_itself(self, changing: Runs, shape: str, data: str) -> None:
        seen = changing.of(shape, data).record.calls["inputs"]
        for batch_type, _, _ in seen:
            assert issubclass(batch_type, MutableMapping)
            assert not issubclass(batch_type, StepBatch)
        assert [(rows, step) for _, rows, step in seen] == [
            (4, step) for step in range(NUM_STEPS) for _ in range(NUM_MICRO_BATCHES)
        ]

    def test_it_is_called_as_by_the_trainer(self, changing: Runs, shape: str, data: str) -> None:
        calls = changing.of(shape, data).record.calls["training_step"]
        assert calls == changing.expected().record.calls["training_step"]

    def test_it_returns_a_loss(self, changing: Runs, shape: str, data: str) -> None:
        losses = changing.of(shape, data).record.results["training_step"]
        for loss in losses:
            assert isinstance(loss, torch.Tensor)
            assert loss.dim() == 0
            assert not loss.requires_grad
        stock = changing.expected().record.results["training_step"]
        for step in range(0, NUM_STEPS * NUM_MICRO_BATCHES, NUM_MICRO_BATCHES):
            found, expected = (torch.stack(one[step : step + NUM_MICRO_BATCHES]).sum() for one in (losses, stock))
            assert float(found) == pytest.approx(float(expected), rel=1e-5)

    def test_what_it_changes_reaches_the_model(self, changing: Runs, plain: Runs, shape: str, data: str) -> None:
        trainer = changing.of(shape, data)
        assert trainer.record.calls["compute_loss"] == [(["input_ids", "labels", "position_ids"],)] * 9
        assert_same_weights(trainer, changing.expected())
        assert distance(changing.expected(), plain.expected()) > 1e-3

    def test_one_without_super_trains_as_the_trainers_own(
        self, alone: Runs, plain: Runs, shape: str, data: str
    ) -> None:
        assert_same_weights(alone.of(shape, data), plain.of(shape, data))
        assert_same_weights(alone.of(shape, data), plain.expected())
        found, expected = (
            [entry["loss"] for entry in runs.of(shape, data).state.log_history if "loss" in entry]
            for runs in (alone, plain)
        )
        assert found == pytest.approx(expected, rel=1e-5)

    def test_one_without_super_keeps_the_factors_of_streams(self, weighed: dict[str, Runs], shape: str) -> None:
        expected = weighed["as_it_is"].of(shape, "two")
        assert_same_weights(weighed["stepping_alone"].of(shape, "two"), expected)
