"""One run of `benchmarks.quality`: a mixture under a policy, how well it ends and what it takes."""

import inspect
import io
import json
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PrinterCallback, TrainerCallback
from transformers.utils import logging

from benchmarks.domains import Stopwatch
from benchmarks.quality.cache import Run, write_whole
from benchmarks.quality.conflict import gradients_seen
from benchmarks.quality.data import Splits
from benchmarks.quality.policies import REFERENCE_LOSSES, UNIFORM, interval_of, make
from mixer import DoReMi, MixingTrainer, Policy

PLACES = (0.0, 0.25, 0.5, 0.75, 1.0)  # of the run, at which weights are noted


class _Clock(TrainerCallback):
    """Measures the processor time of training, evaluations and all."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Starts."""
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Ends."""
        self.seconds, self.cpu_seconds = time.perf_counter() - self._wall, time.process_time() - self._cpu


def run_once(run: Run, folder: Path, data_dir: Path | None) -> None:
    """Trains once and writes the result, unless that is there.

    Args:
        run: What to run.
        folder: Where results are kept.
        data_dir: Folder of the data, for mixtures that need one.
    """
    if run.result(folder) is not None:
        return
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    torch.set_num_threads(1)
    parts = run.mixture.read(data_dir)
    needs_reference = REFERENCE_LOSSES in run.settings.values()
    num_samples = run.mixture.num_steps * run.mixture.batch
    policy = None if needs_reference else make(run.class_name, run.settings, num_samples)
    reference: dict[str, Any] = {}
    options = dict(run.options)
    if policy is None or "excess_loss" in policy.needs:
        reference, model = _reference(run, folder, data_dir)
        policy = policy or make(run.class_name, run.settings, num_samples, reference["validation_losses"])
        if "excess_loss" in policy.needs:
            options["reference_model"] = model
    measured = {"reference_seconds": reference.get("cpu_seconds", 0.0), **_train(run, policy, parts, folder, options)}
    write_whole(run.path(folder), json.dumps({"key": run.key(), "name": run.name, **measured}, indent=2).encode())


def _reference(run: Run, folder: Path, data_dir: Path | None) -> tuple[dict[str, Any], nn.Module]:
    """The model that uniform mixing comes to with the same seed and budget, and its result."""
    uniform = Run(run.mixture, UNIFORM, "Uniform", {}, run.seed)
    weights = uniform.path(folder).with_suffix(".pt")
    if not weights.is_file() or uniform.result(folder) is None:
        uniform.path(folder).unlink(missing_ok=True)  # results of uniform mixing come with the model, or not at all
        run_once(uniform, folder, data_dir)
    result = uniform.result(folder)
    assert result is not None
    model = run.mixture.new_model(run.seed)
    model.load_state_dict(torch.load(weights, weights_only=True))
    return result, model


def _train(
    run: Run, policy: Policy, parts: Mapping[str, Splits], folder: Path, options: dict[str, Any]
) -> dict[str, Any]:
    task, stopwatch, clock = run.mixture, Stopwatch(), _Clock()
    missing = [name for name in options if name not in _trainer_arguments()]
    if missing:
        raise ValueError(f"{run.name} needs the trainer's {missing}, which this version does not have.")
    evaluates = "evaluation_loss" in policy.needs
    with tempfile.TemporaryDirectory() as output:
        model = task.new_model(run.seed)
        trainer = MixingTrainer(
            model,
            task.arguments(output, run.seed, interval_of(task.num_steps) if evaluates else None),
            train_dataset={name: own["train"] for name, own in parts.items()},
            eval_dataset={name: own["validation"] for name, own in parts.items()},
            mixing=policy,
            batch_size=task.batch,
            callbacks=[stopwatch, clock],
            **options,
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
        times: dict[str, Any] = {
            "seconds": clock.seconds,
            "cpu_seconds": clock.cpu_seconds,
            "evaluation_seconds": clock.seconds - stopwatch.seconds[-1],
            "probe_seconds": float(trainer.ledger.timings()["probe_seconds"].sum()),
        }
        if run.name == UNIFORM:
            weights = io.BytesIO()
            torch.save(model.state_dict(), weights)
            write_whole(run.path(folder).with_suffix(".pt"), weights.getvalue())
        if isinstance(policy, DoReMi):
            times["averaged_weights"] = policy.averaged_weights
        times["gradients"] = gradients_seen(trainer.ledger.gradients())
        return {**_quality(trainer, parts, task.compute_metrics), **times, **_weights(trainer, list(parts))}


def _trainer_arguments() -> set[str]:
    return {name for owner in MixingTrainer.__mro__ for name in inspect.signature(owner).parameters}


def _quality(trainer: MixingTrainer, parts: Mapping[str, Splits], compute_metrics: Any) -> dict[str, Any]:
    trainer.compute_metrics = compute_metrics
    found: dict[str, Any] = {}
    for part in ("validation", "test"):
        metrics = trainer.evaluate({name: own[part] for name, own in parts.items()})
        found[f"{part}_losses"] = {name: metrics[f"eval_{name}_loss"] for name in parts}
        if compute_metrics is not None:
            found[f"{part}_accuracies"] = {name: metrics[f"eval_{name}_accuracy"] for name in parts}
    return found


def _weights(trainer: MixingTrainer, streams: list[str]) -> dict[str, Any]:
    """Each stream's weight at the places, and its share of all samples."""
    table = trainer.ledger.to_pandas()
    weights = table.pivot(index="step", columns="stream", values="weight")
    counts = table.groupby("stream")["count"].sum()
    rows = [round(place * (len(weights) - 1)) for place in PLACES]
    return {
        "weights": {name: weights[name].iloc[rows].tolist() for name in streams},
        "shares": {name: float(counts[name] / counts.sum()) for name in streams},
    }
