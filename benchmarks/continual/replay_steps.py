"""What a training step costs with a quarter of the batch replayed, over one without replay of the same batch size.

A byte-level Llama (the demo's) under `MixingTrainer`, batches of 32 rows of 128 random bytes, mixed in one micro-batch.
*Without* has one stream; the others have it and a buffer of 2,000 entries, which was full before the first step, so
that nearly every sample that is offered is taken in and pushes another one out: more than in the middle of a run.
Everything that replay needs is in a step: offering, keeping contents, drawing and reading. Every competitor has a model
and an optimizer of its own; they go in turns, a block of steps each, and each is compared with *without* of the same
turn. *Without, again* shows what the comparison of equals gives (A/A).

`DER` and `A-GEM` replay by reference as well, in a micro-batch of its own, so that a step has two. DER keeps 32 logits
of each token of what is taken in, and begins with an empty buffer, as what is in it needs logits.
"""

import argparse
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PrinterCallback, Trainer, TrainingArguments

from benchmarks.common import QUIET, in_words, paired_ratio, show, spread
from benchmarks.domains import new_model
from benchmarks.turns import take_turns
from mixer import MixingTrainer
from mixer.trainer.method import Method
from replay import InMemory, OnDisk, ReplayBuffer, ReplayRatio
from replay.methods import AGEM, DER
from replay.storage import Storage
from tasks.text_domains import ByteBlocks

PLAIN, AGAIN = "without", "without, again"
REFERENCES, MEMORY, DISK = "references", "in memory", "on disk"
DARK, PROJECTED = "DER", "A-GEM"
NAMES = (PLAIN, AGAIN, REFERENCES, MEMORY, DISK, DARK, PROJECTED)
_AIMS = {REFERENCES: "1.02", MEMORY: "1.05", DISK: "1.05"}
_METHODS: dict[str, Callable[[], Method]] = {DARK: DER, PROJECTED: AGEM}
_RATIO = 0.25
_LENGTH = 128
_LEAD_STEPS = 3


def new_trainer(name: str, args: argparse.Namespace, folder: Path) -> MixingTrainer:
    """Builds a competitor.

    Args:
        name: Its name.
        args: The command line.
        folder: Where it may write.

    Returns:
        The trainer.
    """
    batch, hidden, layers, capacity = (8, 32, 1, 64) if args.quick else (32, 144, 4, 2_000)
    rows = np.random.default_rng(0).integers(256, size=(2 * capacity, _LENGTH), dtype=np.uint8)
    streams: dict[str, Any] = {"new": ByteBlocks(rows)}
    if name not in (PLAIN, AGAIN):
        storages: dict[str, Storage | str] = {MEMORY: InMemory(), DISK: OnDisk(folder / "rows")}
        streams["memory"] = ReplayBuffer(capacity, storage=storages.get(name, "references"))
        if name != DARK:
            streams["memory"].remember("new", streams["new"], range(capacity))
    options = {**QUIET, "logging_strategy": "steps", "logging_steps": 10}
    training = TrainingArguments(
        str(folder), per_device_train_batch_size=batch, max_steps=100_000, learning_rate=1e-4, **options
    )
    trainer = MixingTrainer(
        new_model(hidden, layers, _LENGTH, seed=0),
        training,
        train_dataset=streams,
        mixing=ReplayRatio(_RATIO) if "memory" in streams else None,
        batch_size=batch,
        methods=[_METHODS[name]()] if name in _METHODS else [],
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Measures all competitors.

    Args:
        args: The command line.

    Returns:
        `milliseconds` of each, `ratio` over `PLAIN`, and `replayed`: the share of the samples that came from memory.
    """
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        trainers: dict[str, Trainer] = {
            name: new_trainer(name, args, Path(folder) / str(number)) for number, name in enumerate(NAMES)
        }
        block = 1 if args.quick else 2
        times = take_turns(trainers, dict.fromkeys(NAMES, _LEAD_STEPS), args.step_rounds, block, args.threads)
        return {
            "milliseconds": {name: spread(own) for name, own in times.items()},
            "ratio": {name: paired_ratio(times[name], times[PLAIN]) for name in NAMES if name != PLAIN},
            "replayed": {name: replayed(trainer) for name, trainer in trainers.items()},
        }


def replayed(trainer: Any) -> float:
    """Gives how much was replayed.

    Args:
        trainer: A mixing trainer, after its run; memories have names that begin with "memory".

    Returns:
        The share of all samples that came from memories.
    """
    table = trainer.ledger.to_pandas()
    are_replayed = table["stream"].str.startswith("memory")
    return float(table["count"][are_replayed].sum() / table["count"].sum())


def show_figures(figures: Mapping[str, Any]) -> None:
    """Prints them.

    Args:
        figures: What `measure` gave.
    """
    rows = []
    for name, times in figures["milliseconds"].items():
        over, share = in_words(figures["ratio"].get(name)), f"{figures['replayed'][name]:.3f}"
        rows.append([name, f"{times['median']:.1f}", over, _AIMS.get(name, ""), share])
    columns = ["step", "ms", "over without", "aim: at most", "share replayed"]
    show("A training step, 32 samples, a quarter of them replayed", columns, rows)
