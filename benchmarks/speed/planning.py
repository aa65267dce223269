"""Planning, fetching and collating: samples a second, microseconds a plan, and what a first batch costs.

Run `python -m benchmarks planning`. Competitors have their turns in one process, round after round; what is
compared are ratios within a round.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import psutil
import torch
from torch import Tensor
from torch.utils.data import default_collate
from transformers import default_data_collator

from benchmarks.common import paired_ratio, rotated, show, spread, write_json
from benchmarks.speed.competitors import (
    ROW_LENGTH,
    SHARES,
    Batch,
    Collator,
    ColumnRows,
    LazyRows,
    Rows,
    arrow_datasets,
    interleaved_batches,
    make_rows,
    mixing_batches,
    new_mixing,
    streamed_batches,
    torch_batches,
)
from mixer.measurements import Loss

OURS, BY_SAMPLE = "mixer, by columns", "mixer, by samples"
_COLLATORS: dict[str, Collator] = {"default_data_collator": default_data_collator, "default_collate": default_collate}
_STAGES = ("plan", "look up", "observe")
# Streams, samples of a step, rank, ranks.
_PLANS = ((3, 32, 0, 1), (3, 256, 0, 1), (3, 65_536, 5, 1024), (1000, 65_536, 5, 1024))
_BYTES_PER_INDEX = 60  # RandomSampler: an int64, a Python integer and the list's pointer, with some room

Source = Callable[[int, Collator], Iterator[Batch]]


def sources(rows: Sequence[Tensor]) -> dict[str, Source]:
    """Gives the competitors on the same tokens.

    Args:
        rows: int64 `[num_samples, ROW_LENGTH]` a stream.

    Returns:
        For each name what makes endless batches of a batch size and a collator.
    """
    columns, samples = [ColumnRows(tokens) for tokens in rows], [Rows(tokens) for tokens in rows]
    arrow = arrow_datasets(rows)
    return {
        OURS: lambda size, collator: mixing_batches(columns, size, collator),
        BY_SAMPLE: lambda size, collator: mixing_batches(samples, size, collator),
        "torch concat + RandomSampler": lambda size, collator: torch_batches(samples, size, collator),
        "datasets interleave, map": lambda size, collator: interleaved_batches(arrow, size, collator),
        "datasets interleave, iterable": lambda size, collator: streamed_batches(arrow, size, collator),
    }


def samples_per_second(batches: Iterator[Batch], seconds: float) -> float:
    """Draws batches for some time.

    Args:
        batches: Where from.
        seconds: How long.

    Returns:
        Thousands of samples a second.
    """
    num_samples, start, now = 0, time.perf_counter(), 0.0
    while now < seconds:
        num_samples += len(next(batches)["input_ids"])
        now = time.perf_counter() - start
    return num_samples / now / 1e3


def throughput(rows: Sequence[Tensor], batch_size: int, collator: Collator, rounds: int, seconds: float) -> Any:
    """Has all competitors draw and collate in turns.

    Args:
        rows: int64 `[num_samples, ROW_LENGTH]` a stream.
        batch_size: Samples of a batch.
        collator: The collator of all of them.
        rounds: Number of turns each.
        seconds: Length of a turn.

    Returns:
        `ksamples_per_second`: the spread of each competitor; `fastest`: the fastest but ours; `ratio`: ours over it.
    """
    running = {name: source(batch_size, collator) for name, source in sources(rows).items()}
    for batches in running.values():
        samples_per_second(batches, seconds)  # warms up
    rates: dict[str, list[float]] = {name: [] for name in running}
    for number in range(rounds):
        for name in rotated(list(running), number):
            rates[name].append(samples_per_second(running[name], seconds))
    others = [name for name in rates if name not in (OURS, BY_SAMPLE)]
    fastest = max(others, key=lambda name: float(np.median(rates[name])))
    return {
        "batch_size": batch_size,
        "ksamples_per_second": {name: spread(values) for name, values in rates.items()},
        "ratio_to_ours": {name: paired_ratio(rates[OURS], rates[name]) for name in rates if name != OURS},
        "fastest": fastest,
        "ratio": paired_ratio(rates[OURS], rates[fastest]),
    }


def planning(num_streams: int, batch_size: int, rank: int, world_size: int, blocks: int, steps: int) -> Any:
    """Times the planning of one rank alone, without fetching.

    Args:
        num_streams: Number of streams.
        batch_size: Samples of a step, over all ranks.
        rank: The rank.
        world_size: Number of ranks.
        blocks: Number of repetitions.
        steps: Steps of each repetition.

    Returns:
        `microseconds`: the spread over the repetitions of a step's mean time, in all and a stage.
    """
    shares = np.random.default_rng(0).dirichlet(np.ones(num_streams)).tolist() if num_streams > 3 else SHARES
    mixing = new_mixing([LazyRows(100_000)] * num_streams, shares, batch_size)
    _time_stages(mixing, rank, world_size, steps)  # warms up
    times = np.array([_time_stages(mixing, rank, world_size, steps) for _ in range(blocks)])
    stages = {stage: spread(values) for stage, values in zip(_STAGES, times.T, strict=True)}
    return {
        "num_streams": num_streams,
        "batch_size": batch_size,
        "rank": rank,
        "world_size": world_size,
        "microseconds": {"all": spread(times.sum(axis=1)), **stages},
    }


def _time_stages(mixing: Any, rank: int, world_size: int, steps: int) -> np.ndarray:
    """Gives microseconds a step, `[num_stages]`, as means over the steps."""
    losses = np.ones(len(mixing.names))
    laps = np.empty((steps, len(_STAGES) + 1))
    for step in range(steps):
        laps[step, 0] = time.perf_counter()
        plan = mixing.next_plan()
        laps[step, 1] = time.perf_counter()
        mixing.planner.rank_share(plan, rank, world_size)
        laps[step, 2] = time.perf_counter()
        mixing.observe(plan, plan.counts * ROW_LENGTH, {Loss: losses})
        laps[step, 3] = time.perf_counter()
    means: np.ndarray = np.diff(laps, axis=1).mean(axis=0) * 1e6
    return means


def first_batch(name: str, num_samples: int, repetitions: int) -> Any:
    """Measures the first batch in a process of its own; see `benchmarks.speed.first_batch`.

    Args:
        name: The competitor.
        num_samples: Size of its streams.
        repetitions: How often it is done again in the same process.

    Returns:
        What `benchmarks.speed.first_batch.measure` gave, or a reason why it was left out.
    """
    about = {"competitor": name, "num_samples": num_samples}
    if name != OURS and num_samples * _BYTES_PER_INDEX > 0.7 * psutil.virtual_memory().available:
        return {**about, "left_out": "not enough memory"}
    command = [sys.executable, "-m", "benchmarks.speed.first_batch", name, str(num_samples)]
    command += ["--repetitions", str(repetitions)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    return {**about, **json.loads(result.stdout.splitlines()[-1])}


def _show_throughput(result: Any) -> None:
    rows = []
    for name, rate in result["ksamples_per_second"].items():
        ratio = result["ratio_to_ours"].get(name)
        compared = f"{ratio['median']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})" if ratio else ""
        rows.append([name, f"{rate['median']:.0f}", f"{rate['min']:.0f} to {rate['max']:.0f}", compared])
    columns = ["", "thousand samples/s", "least to most", "mixer / this one (95 % interval)"]
    show(f"Draw and collate, batch {result['batch_size']}", columns, rows)


def _show_planning(results: Sequence[Any]) -> None:
    rows = []
    for result in results:
        name = f"K={result['num_streams']}, batch {result['batch_size']}, rank {result['rank']}/{result['world_size']}"
        times = result["microseconds"]
        least, most = times["all"]["min"], times["all"]["max"]
        stages = [f"{times[stage]['median']:.1f}" for stage in ("all", *_STAGES)]
        rows.append([name, stages[0], f"{least:.1f} to {most:.1f}", *stages[1:]])
    show("Planning alone, microseconds a step", ["", "all", "least to most", *_STAGES], rows)


def _show_first_batches(results: Sequence[Any]) -> None:
    def cell(value: float | None) -> str:
        return "" if value is None else f"{value:,.1f}"

    keys = ("first_ms", "again_ms", "rss_mb", "traced_mb")
    rows = []
    for result in results:
        cells = [result["left_out"]] if "left_out" in result else [cell(result[key]) for key in keys]
        rows.append([result["competitor"], f"{result['num_samples']:.0e}", *cells])
    columns = ["", "samples a stream", "first time, ms", "again, ms", "peak RSS growth, MB", "traced peak, MB"]
    show("Building everything and drawing the first batch of 32, shuffled", columns, rows)


def _first_batches(args: argparse.Namespace) -> list[Any]:
    ours, theirs = [10**6, 10**7, 10**8, 10**9], [10**6, 10**7, 10**8]
    if args.quick:
        ours, theirs = [10**9], [10**6]
    cases = [(OURS, size) for size in ours] + [("RandomSampler", size) for size in theirs]
    return [first_batch(name, size, args.repetitions) for name, size in cases]


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", metavar="FILE", help="where all figures are written")
    parser.add_argument("--quick", action="store_true", help="few rounds and sizes, for a test")
    parser.add_argument("--collator", choices=_COLLATORS, default="default_data_collator")
    parser.add_argument("--threads", type=int, default=1, help="torch's threads")
    parser.add_argument("--samples", type=int, default=100_000, help="samples of each of the three streams")
    parser.add_argument("--rounds", type=int, default=30, help="multiples of 10 balance the order")
    parser.add_argument("--seconds", type=float, default=0.3, help="length of a turn")
    parser.add_argument("--repetitions", type=int, default=9, help="of planning alone and of the first batch")
    args = parser.parse_args(argv)
    if args.quick:
        args.samples, args.rounds, args.seconds, args.repetitions = 10_000, 10, 0.05, 3
    return args


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the benchmark, prints the tables and writes the figures.

    Args:
        argv: Command line; `None` takes the process's own.
    """
    args = _arguments(argv)
    torch.set_num_threads(args.threads)
    rows, collator = make_rows(len(SHARES), args.samples), _COLLATORS[args.collator]
    drawn = [throughput(rows, size, collator, args.rounds, args.seconds) for size in (32, 256)]
    for result in drawn:
        _show_throughput(result)
    steps = 200 if args.quick else 2_000
    planned = [planning(*case, args.repetitions, steps // (10 if case[0] > 3 else 1)) for case in _PLANS]
    _show_planning(planned)
    first = _first_batches(args)
    _show_first_batches(first)
    figures = {"throughput": drawn, "planning": planned, "first_batch": first}
    write_json(args.json, {"arguments": vars(args), **figures})
