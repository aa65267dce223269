"""How much to replay: fronts of fixed shares, and policies that are asked to hold the old loss.

Run `python -m benchmarks replay_bound`. A model of a window of bytes is trained on an old domain, then on a new one
with a re-warmed learning rate, and on some of the old. Fixed shares of the old give a front: the loss on the new domain
against the rise of the loss on the old. A policy is asked that the old loss rises by at most 5 %; it sees validation
rows, and is judged by test rows: how far from the bound it ends, and how much higher the new loss is than the front's
at the same rise. `ReplayBound` was set on two other pairs of domains, English to C++ and C++ to Python.
"""

import argparse
import multiprocessing
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np
import torch
from transformers import PrinterCallback, TrainingArguments
from transformers.utils import logging

from benchmarks.common import QUIET, show, write_json
from benchmarks.quality.data import Splits, blocks
from benchmarks.quality.runs import evaluate
from benchmarks.quality.window import new_base_model
from mixer import MixingTrainer, Policy, TargetLoss
from mixer.policies import Fixed
from replay import ReplayBound

PAIRS = (("python", "english"), ("english", "python"), ("cpp", "english"))
SHARES = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5)
_MOST_RISE, _NUM_EVALUATIONS, _BATCH = 0.05, 20, 32
BOUND, TARGET = "ReplayBound(0.05)", "TargetLoss at +5 %"


def _policy(name: str, first: Mapping[str, float]) -> Policy:
    if name == BOUND:
        return ReplayBound(_MOST_RISE, old=["old"])
    if name == TARGET:  # the new loss has no target that it could miss
        return TargetLoss({"old": first["old"] * (1.0 + _MOST_RISE), "new": 0.0})
    return Fixed({"old": float(name), "new": 1.0 - float(name)})


def run_once(old: str, new: str, name: str, seed: int, num_steps: int, base_steps: int) -> dict[str, float]:
    """Trains once.

    Args:
        old: The old domain.
        new: The new one.
        name: A fixed share of the old, or a policy.
        seed: Seed of the base model and of the order.
        num_steps: Steps on the new domain.
        base_steps: Steps of the base model.

    Returns:
        Relative `rise` of the old loss on test rows, the `new` loss and the `share` of the old among all samples.
    """
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    torch.set_num_threads(1)
    parts: dict[str, Splits] = {"old": blocks(old), "new": blocks(new)}
    model = new_base_model(8, 128, {"name": old}, base_steps, seed)
    first = {part: evaluate(model, parts["old"][part])["loss"] for part in ("validation", "test")}
    with tempfile.TemporaryDirectory() as folder:
        trainer = MixingTrainer(
            model,
            _arguments(folder, num_steps, seed),
            train_dataset={domain: own["train"] for domain, own in parts.items()},
            eval_dataset={domain: own["validation"] for domain, own in parts.items()},
            mixing=_policy(name, {"old": first["validation"]}),
            batch_size=_BATCH,
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
        counts = trainer.mixing.seen
        share = float(counts[trainer.mixing.names.index("old")] / counts.sum())
    ends = {domain: evaluate(model, own["test"])["loss"] for domain, own in parts.items()}
    return {"rise": ends["old"] / first["test"] - 1.0, "new": ends["new"], "share": share}


def _arguments(folder: str, num_steps: int, seed: int) -> TrainingArguments:
    return TrainingArguments(
        folder,
        max_steps=num_steps,
        per_device_train_batch_size=_BATCH,
        per_device_eval_batch_size=64,
        learning_rate=3e-3,
        lr_scheduler_type="cosine",
        warmup_steps=num_steps // 20,
        weight_decay=0.1,
        seed=seed,
        eval_strategy="steps",
        eval_steps=num_steps // _NUM_EVALUATIONS,
        eval_on_start=True,
        **QUIET,
    )


def above_front(front: Sequence[Mapping[str, float]], own: Mapping[str, float]) -> float:
    """Returns how much higher the new loss of a run is than the front's at the same rise of the old one.

    Args:
        front: Runs with fixed shares.
        own: The run.

    Returns:
        Relative difference; the front is straight between its runs, in the logarithm of the new loss, and level beyond.
    """
    rises, losses = np.array(sorted((run["rise"], np.log(run["new"])) for run in front)).T
    return float(np.expm1(np.log(own["new"]) - np.interp(own["rise"], rises, losses)))


def _run_all(args: argparse.Namespace) -> dict[str, dict[str, dict[str, float]]]:
    names = [*map(str, args.shares), BOUND, TARGET]
    planned = [(old, new, name, seed) for old, new in args.pairs for seed in range(args.seeds) for name in names]
    context = multiprocessing.get_context("spawn")
    found: dict[str, dict[str, dict[str, float]]] = {}
    with ProcessPoolExecutor(args.parallel, context) as pool:
        futures = [pool.submit(run_once, *run, args.steps, args.base_steps) for run in planned]
        for (old, new, name, seed), future in zip(planned, futures, strict=True):
            found.setdefault(f"{old} to {new}, seed {seed}", {})[name] = future.result()
    return found


def _arguments_of(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", help="where all figures are written")
    parser.add_argument("--quick", action="store_true", help="one pair and few steps, for a test")
    parser.add_argument("--seeds", type=int, default=2, help="number of base models")
    parser.add_argument("--steps", type=int, default=400, help="on the new domain")
    parser.add_argument("--base-steps", type=int, default=600, help="on the old domain")
    parser.add_argument("--parallel", type=int, default=2, help="processes, of one thread each")
    args = parser.parse_args(argv)
    args.pairs, args.shares = PAIRS, SHARES
    if args.quick:
        args.pairs, args.shares, args.seeds, args.steps, args.base_steps = PAIRS[:1], SHARES[::3], 1, 40, 20
    return args


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the benchmark, prints the table and writes the figures.

    Args:
        argv: Command line; `None` takes the process's own.
    """
    args = _arguments_of(argv)
    found = _run_all(args)
    rows = []
    for called, runs in found.items():
        front = [runs[name] for name in map(str, args.shares)]
        for name, own in runs.items():
            numbers = f"{100 * own['share']:.0f} %", f"{100 * own['rise']:+.1f} %", f"{own['new']:.3f}"
            above = "" if name not in (BOUND, TARGET) else f"{100 * above_front(front, own):+.1f} %"
            rows.append([called, name if name in (BOUND, TARGET) else "fixed", *numbers, above])
    columns = ["domains", "mixing", "share of the old", "old loss", "new loss", "new loss over the front's"]
    show("Continued training: what is replayed, kept and learned", columns, rows)
    data: dict[str, Any] = {"arguments": {**vars(args), "pairs": list(args.pairs)}, "results": found}
    write_json(args.json, data)
