"""What is forgotten of an old domain while a new one is trained on, by how much is replayed.

The two tasks of `recipes/replay.yaml`, smaller: a byte-level Llama of width 96 and 3 layers (the recipe's: 144 and 4)
reads Python for the first half of 240 steps of 32 samples, English for the second; 500 samples of the Python are
remembered, and replayed in the second half. All runs see the same number of samples: what is replayed comes out of the
batch; up to the half they are the same to the bit. Shown are validation losses at the end, and how far that of the old
domain rose from the end of its half. Nothing was tuned. Seeds are those of weights and order; runs are independent, one
thread each.
"""

import argparse
import functools
import multiprocessing
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from transformers import PrinterCallback, TrainingArguments
from transformers.utils import logging

from benchmarks.common import QUIET, show
from benchmarks.continual.replay_steps import replayed
from benchmarks.domains import new_model
from mixer import MixingTrainer, Policy, Stream
from replay import ReplayBuffer, ReplayRatio
from tasks.text_domains import ByteBlocks, english_docstrings, python_source

_CAPACITY = 500
_BLOCK_LENGTH = 128
_RATIOS = (0.0, 0.05, 0.1, 0.25)
_POLICIES: dict[str, Callable[[], Policy]] = {
    f"ratio {ratio:g}": functools.partial(ReplayRatio, ratio, "Uniform") for ratio in _RATIOS
}
POLICIES = tuple(_POLICIES)


@functools.cache
def _load(is_quick: bool) -> dict[str, dict[str, ByteBlocks]]:
    sizes, validation = ((80, 60), 8) if is_quick else ((4_000, 1_500), 128)
    return {
        "old": python_source(sizes[0], validation, _BLOCK_LENGTH),
        "new": english_docstrings(sizes[1], validation, _BLOCK_LENGTH),
    }


def _streams(data: Mapping[str, Mapping[str, ByteBlocks]]) -> list[Stream]:
    streams = [
        Stream("old", data["old"]["train"], leaves_at=0.5),
        Stream("new", data["new"]["train"], enters_at=0.5),
    ]
    return [*streams, Stream("memory", ReplayBuffer(_CAPACITY, streams=["old"]), enters_at=0.5)]


def run_once(name: str, seed: int, is_quick: bool) -> dict[str, float]:
    """Trains on both tasks.

    Args:
        name: Name of the policy.
        seed: Seed of the weights and of the order of the samples.
        is_quick: Whether model and run are tiny.

    Returns:
        Validation losses `old` and `new` at the end, `old_before` at the end of the old task, `rise` of the old one
        since, and the share of the samples that was `replayed`.
    """
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        trainer = _trainer(name, seed, is_quick, folder)
        trainer.train()
        losses = trainer.ledger.evaluations().set_index(["stream", "step"])["loss"]
        num_steps = trainer.args.max_steps
        before, after = (float(losses["old", step]) for step in (num_steps // 2, num_steps))
        new = float(losses["new", num_steps])
        return {"old": after, "new": new, "old_before": before, "rise": after - before, "replayed": replayed(trainer)}


def _trainer(name: str, seed: int, is_quick: bool, folder: str) -> MixingTrainer:
    data = _load(is_quick)
    num_steps, batch, hidden, layers = (8, 8, 16, 1) if is_quick else (240, 32, 96, 3)
    training = TrainingArguments(
        output_dir=folder,
        max_steps=num_steps,
        per_device_train_batch_size=batch,
        per_device_eval_batch_size=64,
        learning_rate=3e-3,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=num_steps // 12,
        weight_decay=0.1,
        eval_strategy="steps",
        eval_steps=num_steps // 2,
        seed=seed,
        **QUIET,
    )
    trainer = MixingTrainer(
        new_model(hidden, layers, _BLOCK_LENGTH, seed),
        training,
        train_dataset=_streams(data),
        eval_dataset={domain: splits["validation"] for domain, splits in data.items()},
        mixing=_POLICIES[name](),
        batch_size=batch,
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Runs all policies on all seeds.

    Args:
        args: The command line.

    Returns:
        What `run_once` gives, by policy and seed.
    """
    context = multiprocessing.get_context("spawn")
    with ThreadPoolExecutor(1) if args.parallel == 1 else ProcessPoolExecutor(args.parallel, context) as pool:
        runs = {
            name: [pool.submit(run_once, name, seed, args.quick) for seed in range(1, args.seeds + 1)]
            for name in POLICIES
        }
        return {name: [run.result() for run in own] for name, own in runs.items()}


def show_figures(figures: Mapping[str, Any]) -> None:
    """Prints them.

    Args:
        figures: What `measure` gave.
    """
    kinds = {"old": "old", "new": "new", "old_before": "old, at half", "rise": "rise of old", "replayed": "replayed"}
    rows = [[name, *(_text([run[kind] for run in runs]) for kind in kinds)] for name, runs in figures.items()]
    show("Validation loss after both tasks, mean ± deviation over the seeds", ["policy", *kinds.values()], rows)


def _text(values: list[float]) -> str:
    deviation = f" ± {np.std(values, ddof=1):.3f}" if len(values) > 1 else ""
    return f"{np.mean(values):.3f}{deviation}"
