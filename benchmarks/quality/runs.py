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

from benchmarks.quality.answers import exact_answers
from benchmarks.quality.cache import Run
from benchmarks.quality.data import PARTS, Splits
from benchmarks.quality.policies import NUM_SAMPLES, REFERENCE_LOSSES, SFT, UNIFORM, known_shares, make
from benchmarks.quality.scenarios import Scenario
from mixer import MixingTrainer, Policy, Stream
from mixer.measurements import EvaluationLoss, asked
from mixer.models.inputs import TASK, takes_task

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


def evaluate(
    model: nn.Module, dataset: Any, head: str, most: int | None = None, in_half: bool = False
) -> dict[str, float]:
    """Evaluates a model without the trainer, whose policy must not see it.

    Args:
        model: The model; it stays in the mode that it is in.
        dataset: Blocks, which are all of one length, or sentences.
        head: The head to evaluate it with, of a model with several.
        most: About how many rows to take; `None` for all.
        in_half: Whether the run computes in `bfloat16`.

    Returns:
        The `loss`, and the `accuracy` of sentences.
    """
    was_training, totals = model.training, {"loss": 0.0}
    rows = np.arange(0, len(dataset), 1 if most is None else -(-len(dataset) // most))
    at_once = getattr(dataset, "num_rows_at_once", _ROWS)
    device, task = next(model.parameters()).device, {TASK: head} if takes_task(model) else {}
    model.eval()
    with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=in_half):
        for chunk in np.split(rows, range(at_once, len(rows), at_once)):
            inputs = {name: values.to(device) for name, values in dataset.read_columns(chunk).items()}
            outputs = model(**task, **inputs)
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
    shares = run.settings.get("weights")
    if isinstance(shares, str):
        known[shares] = known_shares(shares, run.scenario, parts)
    reference: Mapping[str, Any] = {}
    if needs_reference:
        reference = _reference(run, folder, data_dir, session)
        known[REFERENCE_LOSSES] = {name: reference["validation"][name]["loss"] for name in run.scenario.streams}
    model = run.scenario.new_model(run.seed)
    trains = (
        partial(_train_mixed, run, make(run.class_name, run.settings, known))
        if run.class_name != SFT
        else partial(_train_concatenated, run)
    )
    measured = {"reference_seconds": reference.get("cpu_seconds", 0.0), **_train(run, trains, model, parts)}
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


def _train(run: Run, trains: Callable[..., dict[str, Any]], model: Any, parts: Mapping[str, Splits]) -> dict[str, Any]:
    scenario, objective = run.scenario, run.scenario.objective
    in_half = bool(scenario.content["training"].get("bf16"))
    course = _Course(partial(_value, scenario, parts, in_half), scenario.num_steps, scenario.num_places)
    first = _metrics(scenario, model, {name: parts[name] for name in objective.bounds}, in_half)
    with tempfile.TemporaryDirectory() as output:
        trained = trains(model, parts, output, course)
    # Policies that aim at a reference's losses need those of all streams.
    judged = parts if run.name == UNIFORM else {name: parts[name] for name in objective.names}
    return {
        **_metrics(scenario, model, judged, in_half),
        "first": first,
        "course": [course.places, course.values],
        "cpu_seconds": course.cpu_seconds,
        **trained,
        **exact_answers(scenario, model, parts),
    }


def _train_mixed(
    run: Run, policy: Policy, model: nn.Module, parts: Mapping[str, Splits], output: str, course: _Course
) -> dict[str, Any]:
    """Trains by a policy; gives the streams' shares and the tokens."""
    scenario = run.scenario
    needs = asked(policy.needs, EvaluationLoss)
    arguments = scenario.arguments(output, run.seed, bool(needs))
    arguments.eval_on_start = any(need.before_first_step for need in needs)
    held = {name: own["validation"] for name, own in parts.items()}
    options = {"eval_dataset": held, "objective": scenario.objective, "callbacks": [course]}
    trainer = new_trainer(scenario, model, arguments, parts, policy, **options)
    trainer.train()
    sums = trainer.ledger.to_pandas().groupby("stream")[["count", "tokens"]].sum()
    shares = {name: float(sums["count"][name] / sums["count"].sum()) for name in scenario.streams}
    return {"shares": shares, "tokens": int(sums["tokens"].sum())}


def _train_concatenated(
    run: Run, model: Any, parts: Mapping[str, Splits], output: str, course: _Course
) -> dict[str, Any]:
    from benchmarks.quality import concatenation  # it needs TRL

    return concatenation.train(run.scenario, model, parts, Path(output), run.seed, [course])


def _value(scenario: Scenario, parts: Mapping[str, Splits], in_half: bool, model: nn.Module) -> float:
    objective, most, found = scenario.objective, scenario.num_course_rows, {}
    for name in objective.importance:
        metrics = evaluate(model, parts[name]["test"], scenario.head_of(name), most, in_half)
        found[name] = metrics[objective.metric]
    return objective.value(found)


def _metrics(scenario: Scenario, model: nn.Module, parts: Mapping[str, Splits], in_half: bool) -> dict[str, Metrics]:
    return {
        part: {name: evaluate(model, own[part], scenario.head_of(name), in_half=in_half) for name, own in parts.items()}
        for part in PARTS[1:]
    }
