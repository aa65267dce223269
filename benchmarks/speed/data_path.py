"""From data sets to micro-batches: loading ahead, its prediction, resuming, memory, and padding saved.

Run `python -m benchmarks data_path`. The competitors of a figure have their turns in one process, round after
round; what is compared are ratios within a round.
"""

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from benchmarks.common import show, write_json
from benchmarks.speed.loading import OURS, PREFETCH_FACTOR, THEIRS, throughput, training
from benchmarks.speed.padding import BATCH_SIZE, MICRO_BATCH_SIZE, padding
from benchmarks.speed.planning import planning
from benchmarks.speed.prediction import hits
from benchmarks.speed.resuming import OURS as OUR_RESUME
from benchmarks.speed.resuming import THEIRS as THEIR_RESUME
from benchmarks.speed.resuming import memory, resume, state_sizes
from benchmarks.speed.staleness import staleness

_WORKERS = (0, 2)
# Kind of sample, samples of a batch, numbers of workers.
_LOADS = (
    *((kind, size, (0,)) for kind in ("lists", "arrow", "arrow, torch") for size in (32, 256)),
    *(("tokens", size, _WORKERS) for size in (32, 256)),
    ("slow", 16, _WORKERS),
)
# Streams, samples of a step.
_MIXTURES = ((3, 32), (10, 64))
# Deviation of a step of the weights' logits, steps between two steps.
_WALKS = ((0.05, 1), (0.3, 1), (0.3, 20))
_LARGE = (1000, 65_536, 5, 1024)


def _loading(args: argparse.Namespace) -> Any:
    results = []
    for kind, batch_size, workers in _LOADS:
        for num_workers in workers[:1] if args.loading else workers:
            is_fast = kind != "slow"
            rounds, seconds = (args.rounds, 0.4) if is_fast else (max(2, args.rounds // 4), 1.6)
            if args.quick:
                seconds = 0.1 if is_fast else 0.3
            results.append(throughput(kind, batch_size, num_workers, rounds, seconds, args.samples))
    return results


def _show_loading(results: Sequence[Any], lags: Mapping[str, Any]) -> None:
    rows = []
    for result in results:
        workers = str(result["num_workers"])
        for name, rate in result["ksamples_per_second"].items():
            lag = str(lags[workers][THEIRS if name == THEIRS else OURS])
            ratio = _ratio(result["ratio"].get(name))
            rows.append([name, result["kind"], str(result["batch_size"]), workers, f"{rate['median']:.3g}", ratio, lag])
    columns = ["", "samples", "batch", "workers", "thousand/s", f"this one / {THEIRS}", "staleness"]
    show("Loading alone (tokens: in memory; slow: 5 ms a sample); staleness in steps", columns, rows)


def _show_training(result: Any) -> None:
    rows = []
    for name, times in result["milliseconds"].items():
        least_to_most = f"{times['min']:.1f} to {times['max']:.1f}"
        rows.append([name, f"{times['median']:.1f}", least_to_most, _ratio(result["ratio"].get(name))])
    title = (
        f"Beside training steps of {result['step_milliseconds']:.0f} ms, {result['batch_size']} samples of 5 ms each"
    )
    show(title, ["", "ms a step", "least to most", f"{OURS} with workers / this one"], rows)


def _show_hits(results: Sequence[Any]) -> None:
    rows = []
    for result in results:
        sizes = f"{result['num_streams']}, {result['batch_size']}, {result['world_size']}"
        walk = f"sigma {result['sigma']} every {result['interval_steps']}"
        cells = [
            f"{100 * result[name]['hit_rate']:.1f} % / {result[name]['loads_per_sample']:.2f}"
            for name in ("loader", "by_home", "by_list")
        ]
        rows.append([walk, sizes, *cells])
    columns = ["weights", "streams, batch, ranks", OURS, "simulated", "simulated, item i on rank i mod W"]
    show("Prediction: samples loaded in time / loads a sample, rank 0 with 2 workers", columns, rows)


def _show_resuming(results: Sequence[Any], sizes: Mapping[str, int]) -> None:
    rows = []
    for result in results:
        cells = [result["milliseconds"].get(name) for name in (OUR_RESUME, THEIR_RESUME)]
        texts = ["left out" if c is None else f"{c['median']:,.1f} ({c['min']:,.1f} to {c['max']:,.1f})" for c in cells]
        rows.append([f"{result['position']:.0e}", *texts])
    show("First batch of a resumed run, ms", ["samples seen", OUR_RESUME, THEIR_RESUME], rows)
    rows = [[seen, f"{size:,}"] for seen, size in sizes.items()]
    show("Saved state of 10 streams under LossChange", ["samples seen", "bytes"], rows)


def _show_memory(grown: Mapping[str, float]) -> None:
    rows = [[f"{int(steps):,}", f"{megabytes:.2f}"] for steps, megabytes in grown.items()]
    show("Growth of resident memory by planned steps", ["steps", "MB"], rows)


def _show_planning(result: Any) -> None:
    times = result["microseconds"]
    stages = [stage for stage in times if stage != "all"]
    cells = [f"{times[stage]['median']:.0f}" for stage in ("all", *stages)]
    least_to_most = f"{times['all']['min']:.0f} to {times['all']['max']:.0f}"
    title = "Planning alone, µs a step of rank {3} of {4}: {0} streams, batch {1}"
    sizes = (result["num_streams"], result["batch_size"], None, result["rank"], result["world_size"])
    show(title.format(*sizes), ["all", "least to most", *stages], [[cells[0], least_to_most, *cells[1:]]])


def _show_padding(results: Sequence[Any]) -> None:
    rows = [
        [
            result["name"],
            str(result["world_size"]),
            f"{100 * result['padding']:.1f} %",
            f"{100 * result['padding_and_waiting']:.1f} %",
            f"{result['micro_batches']:.2f}",
            f"{result['thousand_tokens']:.1f}",
        ]
        for result in results
    ]
    title = f"Padding: steps of {BATCH_SIZE} in micro-batches of {MICRO_BATCH_SIZE}, lengths of 8 to 1,024, mean 150"
    columns = ["", "ranks", "padding", "and waiting", "micro-batches", "thousand tokens"]
    show(title, columns, rows)


def _ratio(ratio: Mapping[str, float] | None) -> str:
    return "" if ratio is None else f"{ratio['median']:.3f} ({ratio['low']:.3f} to {ratio['high']:.3f})"


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", metavar="FILE", help="where all figures are written")
    parser.add_argument("--quick", action="store_true", help="few rounds and steps, for a test")
    parser.add_argument("--threads", type=int, default=1, help="torch's threads")
    parser.add_argument("--samples", type=int, default=100_000, help="samples of each of the three streams loaded from")
    parser.add_argument("--rounds", type=int, default=24, help="of loading tokens; a quarter of slow samples")
    parser.add_argument("--steps", type=int, default=300, help="of predictions; steps of padding")
    parser.add_argument("--loading", action="store_true", help="loading without workers, and nothing else")
    args = parser.parse_args(argv)
    if args.quick:
        args.samples, args.rounds, args.steps = 5_000, 2, 20
    return args


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the benchmark, prints the tables and writes the figures."""
    args = _arguments(argv)
    torch.set_num_threads(args.threads)
    lags = {str(num_workers): staleness(num_workers) for num_workers in _WORKERS}
    loaded = _loading(args)
    _show_loading(loaded, lags)
    if args.loading:
        write_json(args.json, {"arguments": vars(args), "staleness": lags, "loading": loaded})
        return
    beside = training(16, 2, max(2, args.rounds // 4), 0.3 if args.quick else 1.6)
    _show_training(beside)
    predicted = [
        hits(*walk, world_size, *mixture, args.steps)
        for walk in (_WALKS[1:2] if args.quick else _WALKS)
        for mixture in _MIXTURES
        for world_size in (1, 2, 8)
    ]
    _show_hits(predicted)
    positions = (10**4, 10**5) if args.quick else (10**4, 10**5, 10**6, 10**7)
    resumed = resume(positions, 100_000 if args.quick else 4_000_000, 2 if args.quick else 5)
    sizes = state_sizes()
    _show_resuming(resumed, sizes)
    grown = memory((1_000, 10_000) if args.quick else (10_000, 100_000))
    _show_memory(grown)
    planned = planning(*_LARGE, blocks=2 if args.quick else 9, steps=20 if args.quick else 200)
    _show_planning(planned)
    padded = padding(args.steps, 500 if args.quick else 7_000)
    _show_padding(padded)
    figures = {
        "prefetch_factor": PREFETCH_FACTOR,
        "staleness": lags,
        "loading": loaded,
        "training": beside,
        "prediction": predicted,
        "resuming": resumed,
        "state_bytes": sizes,
        "memory_megabytes": grown,
        "planning": planned,
        "padding": padded,
    }
    write_json(args.json, {"arguments": vars(args), **figures})
