"""Steps and time to a fixed validation loss under constant batches, and under batches that change.

Run `python -m benchmarks batch_size`. A byte-level Llama trains on three real text sources (the demo's,
in blocks of 64 bytes), mixed uniformly with exact counts. All configurations have the same budget of samples, seeds of
weights and order, peak learning rate (where a row does not say `sqrt`) and cosine with a warm-up of 5 %, both on the
clock of data; only the batch size differs, and what it does to the learning rate. They have their turns in one process,
seed after seed, so that the machine's drift meets all alike. Evaluation is not part of the time.

What was fixed before the comparison, by runs on a seed that is not compared on:

- The peak learning rate is the best of three for the small constant batch (`--search` repeats that: 1.943 with
  5e-4, 1.861 with 1e-3, 2.153 with 2e-3), and is the same for all. No other configuration was tuned.
- The targets are the loss that the small constant batch has after half of the data, so that the others may take twice
  as much, and the one it ends with, plus 2 %: the worst over the seeds of each. Whoever does not come down to it is
  reported as such.
- Where sizes change: AdaBatch doubles at 1/4, 1/2 and 3/4 of the data, Ramp takes half of it, the doublings of
  CriticalBatchWarmup are at 1/8, 1/4 and 1/2: its critical size grows in proportion to the data seen, which is
  assumed, not measured. LossChange has its published values.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch
from transformers.utils import logging

from benchmarks.common import rotated, show, write_json
from benchmarks.domains import Data
from benchmarks.quality.batch_size.rules import SMALL, configurations
from benchmarks.quality.batch_size.runs import Course, Scale, load_data, run

_BASELINE = f"constant {SMALL}"
HALF, END = f"that of {_BASELINE} after half of the data", f"that of {_BASELINE} at the end, plus 2 %"
_MARGIN = 0.02
_HEADING = "batch size, learning rate"
_SEARCHED_RATES = (5e-4, 1e-3, 2e-3)
_SEARCH_SEED = 0  # the compared ones begin at 1
_QUICK = Scale(num_samples=256, num_blocks=100, num_validation_blocks=6, block_length=16, hidden=32, layers=1)

Courses = Mapping[str, Sequence[Course]]
Values = Sequence[float | None]


def compare(data: Data, scale: Scale, num_seeds: int, learning_rate: float) -> Courses:
    """Runs every configuration on every seed.

    Args:
        data: The streams.
        scale: How much is trained.
        num_seeds: Number of seeds.
        learning_rate: Peak learning rate of the small batch.

    Returns:
        The courses of each configuration, one a seed.
    """
    found = configurations()
    courses: dict[str, list[Course]] = {name: [] for name in found}
    short = replace(scale, num_samples=scale.num_samples // 8)
    run(found[_BASELINE], data, short, _SEARCH_SEED, learning_rate)  # what a process pays once
    for number in range(num_seeds):
        for name in rotated(list(found), number):
            course = run(found[name], data, scale, number + 1, learning_rate)
            courses[name].append(course)
            print(f"seed {number + 1}, {name}: {course.losses[-1]:.4f}, {course.seconds[-1]:.1f} s", flush=True)
    return courses


def summarise(courses: Courses) -> dict[str, Any]:
    """Compares the configurations at the targets and at equal data.

    Args:
        courses: The courses of each configuration, one a seed.

    Returns:
        Under `targets` by kind, and under `equal_data`, for each configuration its values by seed; those at a target
        are `None` where it was not reached, ratios also where the baseline did not.
    """
    small = courses[_BASELINE]
    targets = {HALF: max(_loss_halfway(course) for course in small), END: max(course.losses[-1] for course in small)}
    targets[END] *= 1.0 + _MARGIN
    base = [course.seconds[-1] for course in small]
    equal_data = {
        name: {
            "final_loss": [course.losses[-1] for course in own],
            "steps": [course.steps[-1] for course in own],
            "seconds": [course.seconds[-1] for course in own],
            "seconds_ratio": _ratios([course.seconds[-1] for course in own], base),
            "largest_batch": [course.largest_batch for course in own],
        }
        for name, own in courses.items()
    }
    at_targets = {kind: {"loss": loss, "configurations": _at(loss, courses)} for kind, loss in targets.items()}
    return {"targets": at_targets, "equal_data": equal_data}


def _loss_halfway(course: Course) -> float:
    return float(np.interp(course.samples[-1] / 2, course.samples, course.losses))


def _at(target: float, courses: Courses) -> dict[str, dict[str, list[float | None]]]:
    figures: dict[str, dict[str, list[float | None]]] = {}
    for name, own in courses.items():
        marks = [course.to_target(target) for course in own]
        kinds = ("steps", "samples", "seconds")
        figures[name] = {kind: [None if mark is None else mark[kind] for mark in marks] for kind in kinds}
    for own_figures in figures.values():
        own_figures["seconds_ratio"] = _ratios(own_figures["seconds"], figures[_BASELINE]["seconds"])
    return figures


def _ratios(values: Values, bases: Values) -> list[float | None]:
    pairs = zip(values, bases, strict=True)
    return [None if value is None or base is None else value / base for value, base in pairs]


def search(data: Data, scale: Scale) -> dict[str, float]:
    """Tries learning rates for the small constant batch, on a seed of its own.

    Args:
        data: The streams.
        scale: How much is trained.

    Returns:
        Final validation loss by learning rate.
    """
    small = configurations()[_BASELINE]
    return {f"{rate:g}": run(small, data, scale, _SEARCH_SEED, rate).losses[-1] for rate in _SEARCHED_RATES}


def _text(values: Values, digits: int) -> str:
    """Writes mean ± standard deviation over the seeds that have a value."""
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    deviation = f" ± {np.std(known, ddof=1):,.{digits}f}" if len(known) > 1 else ""
    return f"{np.mean(known):,.{digits}f}{deviation}"


def _show(figures: Mapping[str, Any], scale: Scale) -> None:
    ratio = f"over {_BASELINE}"
    columns = {"steps": 0, "samples": 0, "seconds": 1, "seconds_ratio": 3}
    for kind, target in figures["targets"].items():
        rows = []
        for name, own in target["configurations"].items():
            reached = [value is not None for value in own["seconds"]]
            rows.append([name, f"{sum(reached)} of {len(reached)}", *_cells(own, columns)])
        title = f"To a validation loss of {target['loss']:.4f}, {kind}; a claim of 15 % less time is a ratio of 0.85"
        show(title, [_HEADING, "seeds there", "steps", "samples", "seconds", ratio], rows)
    columns = {"final_loss": 4, "steps": 0, "seconds": 1, "seconds_ratio": 3, "largest_batch": 0}
    rows = [[name, *_cells(own, columns)] for name, own in figures["equal_data"].items()]
    title = f"At equal data, {scale.num_samples:,} samples of {scale.block_length} bytes"
    show(title, [_HEADING, "final loss", "steps", "seconds", ratio, "largest batch"], rows)


def _cells(own: Mapping[str, Values], columns: Mapping[str, int]) -> list[str]:
    return [_text(own[column], digits) for column, digits in columns.items()]


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", help="where all figures are written")
    parser.add_argument("--quick", action="store_true", help="a tiny model, little data, one seed, for a test")
    parser.add_argument("--search", action="store_true", help="try learning rates for the small batch instead")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds, from 1 on")
    parser.add_argument("--learning-rate", type=float, default=1e-3, help="peak, of the small batch")
    parser.add_argument("--threads", type=int, default=2, help="torch's threads")
    args = parser.parse_args(argv)
    if args.quick:
        args.seeds = 1
    return args


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the benchmark, prints the tables and writes the figures.

    Args:
        argv: Command line; `None` takes the process's own.
    """
    args = _arguments(argv)
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    torch.set_num_threads(args.threads)
    scale = _QUICK if args.quick else Scale()
    data = load_data(scale)
    if args.search:
        losses = search(data, scale)
        show(
            f"{_BASELINE}, seed {_SEARCH_SEED}",
            ["learning rate", "final loss"],
            [[r, f"{v:.4f}"] for r, v in losses.items()],
        )
        write_json(args.json, {"arguments": vars(args), "final_loss": losses})
        return
    courses = compare(data, scale, args.seeds, args.learning_rate)
    figures = summarise(courses)
    _show(figures, scale)
    runs = {name: [asdict(course) for course in own] for name, own in courses.items()}
    write_json(args.json, {"arguments": vars(args), "scale": asdict(scale), **figures, "runs": runs})
