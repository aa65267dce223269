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
from benchmarks.quality.policies import (
    BY_SIMILARITY,
    BY_TARGET,
    NUM_SAMPLES,
    REFERENCE_LOSSES,
    UNIFORM,
    make,
    similar_shares,
)
from benchmarks.quality.scenarios import WITH_OWN, Scenario
from mixer import MixingTrainer, Policy, Stream
from mixer.measurements import EvaluationLoss, asked
from mixer.models.inputs import TASK, takes_task

# Places of the run at which the objective is taken, and rows of a target's test part there; all of them at the end.
_COURSE = 12, 128
_COURSE_OF_OWN = 6, 64  # of models with real weights, which take longer
_ROWS = 64  # of a batch that is evaluated: more take longer a row

Metrics = dict[str, dict[str, float]]


class _Course(TrainerCallback):
    """Takes the objective at places of the run, and the processor time of training without that."""

    def __init__(self, measure: Callable[[nn.Module], float], num_steps: int, num_places: int):
        self._measure, self.values = measure, list[float]()
        self._places = {round(place * num_steps / num_places) for place in range(1, num_places + 1)}
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


def evaluate(model: nn.Module, dataset: Any, head: str, most: int | None = None) -> dict[str, float]:
    """Evaluates a model without the trainer, whose policy must not see it.

    Args:
        model: The model; it stays in the mode that it is in.
        dataset: Blocks, which are all of one length, or sentences.
        head: The head to evaluate it with, of a model with several.
        most: About how many rows to take; `None` for all.

    Returns:
        The `loss`, and the `accuracy` of sentences.
    """
    was_training, totals = model.training, {"loss": 0.0}
    rows = np.arange(0, len(dataset), 1 if most is None else -(-len(dataset) // most))
    device, task = next(model.parameters()).device, {TASK: head} if takes_task(model) else {}
    model.eval()
    with torch.no_grad():
        for chunk in np.split(rows, range(_ROWS, len(rows), _ROWS)):
            inputs = {name: values.to(device) for name, values in dataset.read_columns(chunk).items()}
            outputs = model(**task, **inputs)
            totals["loss"] += float(outputs.loss) * len(chunk)
            if outputs.logits.ndim == 2:
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
    for setting in {BY_SIMILARITY, BY_TARGET} & {own for own in run.settings.values() if isinstance(own, str)}:
        known[setting] = similar_shares(run.scenario, parts, setting == BY_TARGET)
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
    num_places, num_rows = _COURSE_OF_OWN if scenario.size in WITH_OWN else _COURSE
    course = _Course(partial(_value, scenario, parts, num_rows), scenario.num_steps, num_places)
    first = _metrics(scenario, model, {name: parts[name] for name in objective.bounds})
    with tempfile.TemporaryDirectory() as output:
        arguments = scenario.arguments(output, run.seed, bool(asked(policy.needs, EvaluationLoss)))
        held = {name: own["validation"] for name, own in parts.items()}
        options = {"eval_dataset": held, "objective": objective, "callbacks": [course]}
        trainer = new_trainer(scenario, model, arguments, parts, policy, **options)
        trainer.train()
        counts = trainer.ledger.to_pandas().groupby("stream")["count"].sum()
    return {
        # Policies that aim at a reference's losses need those of all streams.
        **_metrics(scenario, model, parts if run.name == UNIFORM else {name: parts[name] for name in objective.names}),
        "first": first,
        "course": [course.places, course.values],
        "cpu_seconds": course.cpu_seconds,
        "shares": {name: float(counts[name] / counts.sum()) for name in scenario.streams},
    }


def _value(scenario: Scenario, parts: Mapping[str, Splits], num_rows: int, model: nn.Module) -> float:
    objective, found = scenario.objective, {}
    for name in objective.importance:
        found[name] = evaluate(model, parts[name]["test"], scenario.head_of(name), num_rows)[objective.metric]
    return objective.value(found)


def _metrics(scenario: Scenario, model: nn.Module, parts: Mapping[str, Splits]) -> dict[str, Metrics]:
    return {
        part: {name: evaluate(model, own[part], scenario.head_of(name)) for name, own in parts.items()}
        for part in PARTS[1:]
    }
