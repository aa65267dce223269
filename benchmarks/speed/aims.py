"""What is aimed at in start, tools and loading: now, aim and their ratio, in one run.

Run `python -m benchmarks aims`. Seconds are those of a processor, user and system, of a process of its own, so that
other work on the machine counts little; a ratio above 1 misses the aim. Rates of loading are over a DataLoader's that
takes turns with ours, as in `data_path`.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from transformers import LlamaConfig, LlamaForCausalLM, TrainingArguments

from benchmarks.common import QUIET, new_parser, show, write_json
from benchmarks.speed.competitors import LazyRows
from benchmarks.speed.loading import OURS, throughput
from benchmarks.speed.long_ledgers import write_ledger
from benchmarks.speed.padding import padding
from mixer import MixingTrainer

_RECIPE = Path(__file__).parents[2] / "recipes" / "demo.yaml"
_NUM_ROWS = 20  # of each stream in a ledger
_REFUSED = 2


@dataclass(frozen=True)
class Aim:
    """Something measured, and what it is to be.

    Args:
        what: What is measured.
        aim: What it is to be at most, or at least.
        measure: Measures it, given an empty folder.
        is_rate: Whether more is better.
        reason: Why it is missed.
    """

    what: str
    aim: float
    measure: Callable[[Path], float]
    is_rate: bool = False
    reason: str = ""


def _seconds(*words: str, status: int = 0) -> float:
    """Gives the processor's seconds of a command of `mixer`.

    Raises:
        RuntimeError: If it ends with another status.
    """
    process = subprocess.Popen([sys.executable, "-m", "mixer", *words], stdout=subprocess.DEVNULL, stderr=-1)
    _, ended, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(ended)
    if process.returncode != status:
        raise RuntimeError(f"mixer {' '.join(words)} ended with {process.returncode}, not {status}")
    return used.ru_utime + used.ru_stime


def _refused(folder: Path) -> float:
    recipe = folder / "recipe.yaml"
    recipe.write_text(_RECIPE.read_text(encoding="utf-8").replace("max_steps", "max_stps"), encoding="utf-8")
    return _seconds("train", str(recipe), status=_REFUSED)


def _fit(folder: Path, num_runs: int, num_sources: int) -> float:
    random = np.random.default_rng(0)
    shares = random.dirichlet(np.ones(num_sources), num_runs)
    slopes = random.uniform(0.2, 1.0, (num_sources, num_sources)) / num_sources**0.5
    losses = 1.0 + np.exp(-2.0 * np.sqrt(shares) @ slopes) + random.normal(0.0, 0.003, shares.shape)
    names = [f"source-{number}" for number in range(num_sources)]
    tables = (pd.DataFrame(shares, columns=names), "share/"), (pd.DataFrame(losses, columns=names), "loss/")
    pd.concat([table.add_prefix(prefix) for table, prefix in tables], axis=1).to_csv(folder / "runs.csv", index=False)
    return _seconds("fit", str(folder / "runs.csv"))


def _reading(folder: Path, command: str, num_streams: int) -> float:
    write_ledger(folder / "run", num_streams, _NUM_ROWS)
    where = ["--output", str(folder / "page.html")] if command == "report" else []
    return _seconds(command, str(folder / "run"), *where)


def _construction(folder: Path, num_streams: int) -> float:
    """Gives the processor's seconds of a trainer's constructor, after one of one stream has imported what it needs."""
    seconds = 0.0
    for count in (1, num_streams):
        config = LlamaConfig(
            vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2
        )
        model, args = LlamaForCausalLM(config), TrainingArguments(str(folder), max_steps=1, **QUIET)
        streams = {f"stream-{number}": LazyRows(1_000 + number % 100) for number in range(count)}
        started = time.process_time()
        MixingTrainer(model, args, train_dataset=streams, mixing="Uniform")
        seconds = time.process_time() - started
    return seconds


def _rate(kind: str, args: argparse.Namespace) -> float:
    found = throughput(kind, 32, 0, args.rounds, 0.4, args.samples)
    return float(found["ratio"][OURS]["median"])


def _padded(num_streams: int, num_samples: int) -> float:
    """Gives the padding of streams whose steps are one micro-batch over the Trainer's."""
    found = {own["name"]: own["padding"] for own in padding(num_streams, num_samples) if own["batch_size"] == 32}
    return float(found["mixer, group_by_length"] / found["Trainer, group_by_length"])


def _aims(args: argparse.Namespace) -> list[Aim]:
    imports = "TrainingArguments with what its module imports (torch, peft where it is installed) alone takes longer"
    spread_thin = "planning, observing and splitting such a step takes about as long as collating it"
    with_draws = f"{spread_thin}, and so does seeing whether a sample drew random numbers"
    by_stream = "each rule and table goes from stream to stream"
    tried = "a first sample of each stream is read and collated"
    num, runs, sources = args.streams, *args.fit
    return [
        Aim("mixer train --help, s", 1.0, lambda folder: _seconds("train", "--help")),
        Aim("mixer continual --help, s", 1.0, lambda folder: _seconds("continual", "--help")),
        Aim(
            "mixer simulate recipes/demo.yaml, s",
            4.0,
            lambda folder: _seconds("simulate", str(_RECIPE)),
            False,
            imports,
        ),
        Aim("a refused recipe, s", 0.3, _refused),
        Aim(f"fit, {runs} runs, {sources} sources and losses, s", 8.0, lambda folder: _fit(folder, runs, sources)),
        Aim(f"report, {num:,} streams, s", 10.0, lambda folder: _reading(folder, "report", num), False, by_stream),
        Aim(f"compare, {num:,} streams, s", 5.0, lambda folder: _reading(folder, "compare", num)),
        Aim(f"construction, {num:,} streams, s", 5.0, lambda folder: _construction(folder, num), False, tried),
        Aim("padding by group_by_length / the Trainer's, one stream", 1.05, lambda folder: _padded(1, args.padded)),
        Aim("the same, three", 1.05, lambda folder: _padded(3, args.padded)),
        Aim("lists one by one, batch 32 / DataLoader", 1.0, lambda folder: _rate("lists", args), True, spread_thin),
        Aim(
            "tensors one by one, batch 32 / DataLoader",
            1.0,
            lambda folder: _rate("tokens", args),
            True,
            with_draws,
        ),
    ]


def main(argv: Sequence[str] | None = None) -> None:
    """Measures, prints the table and writes the figures.

    Args:
        argv: Command line; `None` takes the process's own.
    """
    parser = new_parser(__doc__)
    parser.add_argument("--streams", type=int, default=10_000, help="of reports, comparisons and trainers")
    parser.add_argument("--fit", type=int, nargs=2, default=(128, 64), help="runs, and sources")
    parser.add_argument("--samples", type=int, default=100_000, help="samples of each of the three streams loaded from")
    parser.add_argument("--padded", type=int, default=7_000, help="samples that are padded")
    parser.add_argument("--rounds", type=int, default=8, help="of loading")
    args = parser.parse_args(argv)
    if args.quick:
        args.streams, args.fit, args.samples, args.padded, args.rounds = 50, (8, 3), 1_000, 500, 1
    torch.set_num_threads(1)
    rows, figures = [], []
    for aim in _aims(args):
        with tempfile.TemporaryDirectory() as folder:
            now = aim.measure(Path(folder))
        ratio = aim.aim / now if aim.is_rate else now / aim.aim
        figures.append({"what": aim.what, "now": now, "aim": aim.aim, "ratio": ratio, "reason": aim.reason})
        rows.append([aim.what, f"{now:.3g}", f"{aim.aim:g}", f"{ratio:.2f}", aim.reason if ratio > 1.0 else ""])
    show("Aims; a ratio above 1 is a miss", ["", "now", "aim", "ratio", "why missed"], rows)
    write_json(args.json, {"arguments": vars(args), "aims": figures})
