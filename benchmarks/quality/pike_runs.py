"""One run of `benchmarks.quality.pike`: the demo's domains and model under a policy; its losses and what it saw."""

import functools
import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from transformers import PrinterCallback, TrainingArguments
from transformers.utils import logging

from benchmarks.common import QUIET
from benchmarks.domains import Data, Stopwatch, new_model, read_domains
from mixer import BalancedPiKE, MixingTrainer, PiKE, Policy, Proportional, Uniform
from mixer.gradients.records import measurements_in
from mixer.policies.gradient_statistics import alignment_of, conflict_of

UNIFORM, PROPORTIONAL = "Uniform", "Proportional"
PLACES = (0.0, 0.25, 0.5, 0.75, 1.0)  # of the run, at which weights are noted


@dataclass(frozen=True)
class Scale:
    """How much is trained and evaluated.

    Args:
        num_steps: Steps of a run.
        batch: Samples of a step.
        num_blocks: Blocks of the domains: python, C++, English.
        num_validation_blocks: Blocks that each domain is evaluated on.
        block_length: Bytes of a block.
        hidden: Width of the model.
        layers: Its depth.
        interval: Steps from one measurement and decision of PiKE to the next.
    """

    num_steps: int = 240
    batch: int = 32
    num_blocks: tuple[int, int, int] = (6_000, 3_000, 1_500)
    num_validation_blocks: int = 128
    block_length: int = 128
    hidden: int = 144
    layers: int = 4
    interval: int = 10


QUICK = Scale(8, 12, (80, 60, 40), 4, 16, 32, 1, 2)


def policies(interval: int) -> dict[str, Callable[[], Policy]]:
    """Lists what is compared; beside what a name says, every policy has its defaults.

    Args:
        interval: Steps from one decision to the next.

    Returns:
        Makers of policies by name; the first two are the baselines.
    """
    found: dict[str, Callable[[], Policy]] = {
        UNIFORM: Uniform,
        PROPORTIONAL: Proportional,
        "PiKE": lambda: PiKE(interval_steps=interval),
        "PiKE, no noise term": lambda: PiKE(interval_steps=interval, noise_rate=0.0),
        "PiKE, conceptual": lambda: PiKE(interval_steps=interval, mode="conceptual"),
    }
    for tau in (1.0, 3.0, 5.0):
        found[f"BalancedPiKE, tau {tau:g}"] = lambda tau=tau: BalancedPiKE(  # type: ignore[misc]
            tau=tau, interval_steps=interval
        )
    return found


def run_once(name: str, scale: Scale, seed: int, folder: Path) -> None:
    """Trains once and writes the result, unless that is there.

    Args:
        name: Name of the policy.
        scale: How much is trained.
        seed: Seed of the weights and of the order of the samples.
        folder: Where results are kept.
    """
    path = result_path(folder, name, seed)
    if read_result(path, scale) is not None:
        return
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    torch.set_num_threads(1)
    result = {"scale": asdict(scale), "policy": name, "seed": seed, **_train(name, scale, seed)}
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(result, indent=2) + "\n")
    os.replace(part, path)


def result_path(folder: Path, name: str, seed: int) -> Path:
    """Names the file of a run's result.

    Args:
        folder: Where results are kept.
        name: Name of the policy.
        seed: The seed.

    Returns:
        The file.
    """
    return folder / f"{name.replace(', ', '-').replace(' ', '-')}-{seed}.json"


def read_result(path: Path, scale: Scale) -> dict[str, Any] | None:
    """Reads the result of an earlier run.

    Args:
        path: The file.
        scale: How much was to be trained.

    Returns:
        The result; `None` if there is none of this scale.
    """
    if not path.is_file():
        return None
    result: dict[str, Any] = json.loads(path.read_text())
    return result if result["scale"] == json.loads(json.dumps(asdict(scale))) else None


def _train(name: str, scale: Scale, seed: int) -> dict[str, Any]:
    stopwatch = Stopwatch()
    data = _load(scale)
    with tempfile.TemporaryDirectory() as folder:
        trainer = MixingTrainer(
            new_model(scale.hidden, scale.layers, scale.block_length, seed),
            _training_arguments(folder, scale, seed),
            train_dataset={domain: splits["train"] for domain, splits in data.items()},
            eval_dataset={domain: splits["validation"] for domain, splits in data.items()},
            mixing=policies(scale.interval)[name](),
            batch_size=scale.batch,
            callbacks=[stopwatch],
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
        losses = trainer.evaluate()
        return {
            "losses": {domain: losses[f"eval_{domain}_loss"] for domain in data},
            "seconds": stopwatch.seconds[-1],
            "probe_seconds": float(trainer.ledger.timings()["probe_seconds"].sum()),
            "weights": _weights(trainer.ledger.to_pandas()),
            "gradients": gradients_seen(trainer.ledger.gradients()),
        }


def _weights(streams: pd.DataFrame) -> dict[str, list[float]]:
    """Gives each stream's weight at the places."""
    table = streams.pivot(index="step", columns="stream", values="weight")
    rows = [round(place * (len(table) - 1)) for place in PLACES]
    return {str(stream): table[stream].iloc[rows].tolist() for stream in table.columns}


def gradients_seen(rows: pd.DataFrame) -> dict[str, float] | None:
    """Says how far the streams conflicted and were aligned.

    Args:
        rows: The ledger's table of gradients.

    Returns:
        `conflict` and `alignment` of the products and norms averaged over the run, every measurement by its own scale;
        `least_cosine`, `mean_cosine` and `largest_cosine` of single measurements, which noise draws to 0, and
        `share_negative` of them; `num_measurements`. `None` without any.
    """
    found = [statistics for _, _, statistics in measurements_in(rows)] if len(rows) else []
    found = [one for one in found if np.isfinite(one.gram).all() and np.isfinite(one.squared_norm).all()]
    if not found:
        return None
    gram = np.mean([one.gram / np.trace(one.gram) for one in found], axis=0)
    squared_norm = np.mean([one.squared_norm / np.trace(one.gram) for one in found], axis=0)
    above = np.triu_indices(len(gram), 1)
    cosines = np.concatenate([one.cosines[above] for one in found])
    return {
        "conflict": conflict_of(gram, squared_norm),
        "alignment": alignment_of(gram, squared_norm),
        "least_cosine": float(cosines.min()),
        "mean_cosine": float(cosines.mean()),
        "largest_cosine": float(cosines.max()),
        "share_negative": float((cosines < 0.0).mean()),
        "num_measurements": len(found),
    }


@functools.cache
def _load(scale: Scale) -> Data:
    return read_domains(scale.num_blocks, scale.num_validation_blocks, scale.block_length)


def _training_arguments(folder: str, scale: Scale, seed: int) -> TrainingArguments:
    return TrainingArguments(
        output_dir=folder,
        max_steps=scale.num_steps,
        per_device_train_batch_size=scale.batch,
        per_device_eval_batch_size=64,
        learning_rate=3e-3,
        lr_scheduler_type="cosine",
        warmup_steps=scale.num_steps // 12,
        weight_decay=0.1,
        seed=seed,
        **QUIET,
    )
