"""One run of `benchmarks.quality`: a scenario under a policy, how well it goes and what it takes."""

import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import PrinterCallback, TrainerCallback, TrainingArguments
from transformers.utils import logging

from benchmarks.quality.cache import Run
from benchmarks.quality.data import PARTS, Splits
from benchmarks.quality.policies import BY_SIMILARITY, NUM_SAMPLES, REFERENCE_LOSSES, UNIFORM, make, similar_shares
from benchmarks.quality.scenarios import Scenario
from mixer import MixingTrainer, Objective, Policy, Stream
from mixer.measurements import EvaluationLoss, asked

NUM_PLACES = 12  # of the run, at which the objective is taken
_COURSE_ROWS = 128  # of a target's test part at each place; all of them at the end
_ROWS = 64  # of a batch that is evaluated: more take longer a row

Metrics = dict[str, dict[str, float]]


class _Course(TrainerCallback):
    """Takes the objective at places of the run, and the processor time of training without that."""

    def __init__(self, measure: Callable[[nn.Module], float], num_steps: int):
        self._measure, self.values = measure, list[float]()
        self._places = {round(place * num_steps / NUM_PLACES) for place in range(1, NUM_PLACES + 1)}
        self.places: list[float] = []

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Starts the clock; evaluations that a policy follows count."""
        self.cpu_seconds = -time.process_time()

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """Takes the objective at a place."""
        if state.global_step in self._places:
            started = time.process_time()
            self.values.append(self._measure(model))
            self.places.append(state.global_step / state.max_steps)
            self.cpu_seconds -= time.process_time() - started

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stops the clock."""
        self.cpu_seconds += time.process_time()


def evaluate(model: nn.Module, dataset: Any, most: int | None = None) -> dict[str, float]:
    """Evaluates a model without the trainer, whose policy must not see it.

    Args:
        model: The model; it stays in the mode that it is in.
        dataset: Blocks, which are all of one length, or sentences.
        most: About how many rows to take; `None` for all.

    Returns:
        The `loss`, and the `accuracy` of sentences.
    """
    was_training, totals = model.training, {"loss": 0.0}
    rows = np.arange(0, len(dataset), 1 if most is None else -(-len(dataset) // most))
    device = next(model.parameters()).device
    model.eval()
    with torch.no_grad():
        for chunk in np.split(rows, range(_ROWS, len(rows), _ROWS)):
            inputs = {name: values.to(device) for name, values in dataset.read_columns(chunk).items()}
            outputs = model(**inputs)
            totals["loss"] += float(outputs.loss) * len(chunk)
            if outputs.logits.ndim == 2 and outputs.logits.shape[1] > 1:
                right = (outputs.logits.argmax(dim=-1) == inputs["labels"]).sum()
                totals["accuracy"] = totals.get("accuracy", 0.0) + float(right)
    model.train(was_training)
    return {name: total / len(rows) for name, total in totals.items()}


def run_once(run: Run, folder: Path, data_dir: Path | None, session: str = "") -> None:
    """Trains once and writes the result, unless that is there.

    Args:
        run: What to run.
        folder: Where results are kept.
        data_dir: Folder of the data, for scenarios that need one.
        session: When the benchmark was called: times of one session are compared.
    """
    if run.result(folder) is None:
        _run(run, folder, data_dir, session)


def _run(run: Run, folder: Path, data_dir: Path | None, session: str) -> None:
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    torch.set_num_threads(1)
    parts = run.scenario.read(data_dir)
    needs_reference = REFERENCE_LOSSES in run.settings.values()
    known: dict[str, Any] = {NUM_SAMPLES: run.scenario.num_steps * int(run.scenario.content["batch_size"])}
    if BY_SIMILARITY in run.settings.values():
        known[BY_SIMILARITY] = similar_shares(run.scenario, parts)
    reference: Mapping[str, Any] = {}
    if needs_reference:
        reference = _reference(run, folder, data_dir, session)
        known[REFERENCE_LOSSES] = {name: reference["validation"][name]["loss"] for name in run.scenario.streams}
    policy, model = make(run.class_name, run.settings, known), run.scenario.new_model(run.seed)
    measured = {"reference_seconds": reference.get("cpu_seconds", 0.0), **_train(run, policy, model, parts)}
    run.write(folder, {"session": session, **measured})


def _reference(run: Run, folder: Path, data_dir: Path | None, session: str) -> Mapping[str, Any]:
    """The result that uniform mixing comes to with the same seed and budget."""
    uniform = Run(run.scenario, UNIFORM, "Uniform", {}, run.seed)
    run_once(uniform, folder, data_dir, session)
    result = uniform.result(folder)
    assert result is not None
    return result


def new_trainer(
    scenario: Scenario,
    model: nn.Module,
    arguments: TrainingArguments,
    parts: Mapping[str, Splits],
    mixing: Policy,
    **options: Any,
) -> MixingTrainer:
    """Builds the trainer of a scenario's run, which prints nothing.

    Args:
        scenario: The scenario.
        model: The model.
        arguments: Its training arguments.
        parts: What `Scenario.read` gave.
        mixing: The policy.
        **options: Other options of `MixingTrainer`.

    Returns:
        The trainer.
    """
    trainer = MixingTrainer(
        model,
        arguments,
        train_dataset=[Stream(name, parts[name]["train"], **scenario.options_of(name)) for name in scenario.streams],
        mixing=mixing,
        batch_size=scenario.content["batch_size"],
        **options,
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def _train(run: Run, policy: Policy, model: nn.Module, parts: Mapping[str, Splits]) -> dict[str, Any]:
    scenario, objective = run.scenario, run.scenario.objective
    course = _Course(partial(_value, objective, parts), scenario.num_steps)
    first = _metrics(model, {name: parts[name] for name in objective.bounds})
    with tempfile.TemporaryDirectory() as output:
        arguments = scenario.arguments(output, run.seed, bool(asked(policy.needs, EvaluationLoss)))
        held = {name: own["validation"] for name, own in parts.items()}
        options = {"eval_dataset": held, "objective": objective, "callbacks": [course]}
        trainer = new_trainer(scenario, model, arguments, parts, policy, **options)
        trainer.train()
        counts = trainer.ledger.to_pandas().groupby("stream")["count"].sum()
    return {
        # Policies that aim at a reference's losses need those of all streams.
        **_metrics(model, parts if run.name == UNIFORM else {name: parts[name] for name in objective.names}),
        "first": first,
        "course": [course.places, course.values],
        "cpu_seconds": course.cpu_seconds,
        "shares": {name: float(counts[name] / counts.sum()) for name in scenario.streams},
    }


def _value(objective: Objective, parts: Mapping[str, Splits], model: nn.Module) -> float:
    tests = {name: parts[name]["test"] for name in objective.importance}
    return objective.value({name: evaluate(model, own, _COURSE_ROWS)[objective.metric] for name, own in tests.items()})


def _metrics(model: nn.Module, parts: Mapping[str, Splits]) -> dict[str, Metrics]:
    return {part: {name: evaluate(model, own[part]) for name, own in parts.items()} for part in PARTS[1:]}
