"""From data sets to micro-batches: loading, how far behind the weights it is, resuming, and padding.

Run `python -m benchmarks data_path`. The competitors of a figure have their turns in one process, round after
round; what is compared are ratios within a round.
"""

import argparse
from collections.abc import Sequence
from typing import Any

import torch

from benchmarks.common import in_words, new_parser, show, write_json
from benchmarks.speed.loading import OURS, THEIRS, throughput
from benchmarks.speed.padding import padding
from benchmarks.speed.resuming import resume
from benchmarks.speed.staleness import staleness

_WORKERS = (0, 2)
# Kind of sample, samples of a batch, numbers of workers.
_LOADS = (
    *((kind, size, (0,)) for kind in ("lists", "arrow", "arrow, torch") for size in (32, 256)),
    *(("tokens", size, _WORKERS) for size in (32, 256)),
    ("slow", 16, _WORKERS),
)


def _loading(args: argparse.Namespace) -> list[Any]:
    found = []
    for kind, batch_size, workers in _LOADS:
        rounds, seconds = (args.rounds, 0.4) if kind != "slow" else (max(2, args.rounds // 4), 1.6)
        for num_workers in workers[:1] if args.loading else workers:
            turn = seconds / 8 if args.quick else seconds
            found.append(throughput(kind, batch_size, num_workers, rounds, turn, args.samples))
    return found


def _show_loading(results: Sequence[Any], lags: dict[int, dict[str, int]]) -> None:
    rows = []
    for own in results:
        for name, rate in own["ksamples_per_second"].items():
            lag = lags[own["num_workers"]][THEIRS if name == THEIRS else OURS]
            sizes = [own["kind"], str(own["batch_size"]), str(own["num_workers"])]
            rows.append([name, *sizes, f"{rate['median']:.3g}", in_words(own["ratio"].get(name)), str(lag)])
    columns = ["", "samples", "batch", "workers", "thousand/s", f"this one / {THEIRS}", "staleness"]
    show("Loading alone (tokens: in memory; slow: 5 ms per sample); staleness in steps", columns, rows)


def _show_padding(results: Sequence[Any]) -> None:
    columns = {"": "name", "streams": "streams", "step": "batch_size", "micro-batch": "micro_batch_size"}
    rows = [
        [*(str(own[name]) for name in columns.values()), f"{own['padding']:.1%}", f"{own['micro_batches']:.1f}"]
        for own in results
    ]
    show("Padding, of tokens forwarded", [*columns, "padding", "micro-batches"], rows)


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the benchmark, prints the tables and writes the figures."""
    parser = new_parser(__doc__)
    parser.add_argument("--threads", type=int, default=1, help="torch's threads")
    parser.add_argument("--samples", type=int, default=100_000, help="samples of each of the three streams loaded from")
    parser.add_argument("--rounds", type=int, default=24, help="of loading tokens; a quarter of slow samples")
    parser.add_argument("--loading", action="store_true", help="loading without workers, and nothing else")
    args = parser.parse_args(argv)
    if args.quick:
        args.samples, args.rounds = 5_000, 2
    torch.set_num_threads(args.threads)
    lags = {num_workers: staleness(num_workers) for num_workers in _WORKERS}
    figures: dict[str, Any] = {"staleness": lags, "loading": _loading(args)}
    _show_loading(figures["loading"], lags)
    if not args.loading:
        places, size, times = ((10**3, 10**4), 10**4, 2) if args.quick else ((10**4, 10**5, 10**6, 10**7), 4 * 10**6, 5)
        figures["padding"] = [own for number in (1, 3) for own in padding(number, 500 if args.quick else 7_000)]
        _show_padding(figures["padding"])
        figures["resuming"] = resume(places, size, times)
        rows = [
            [f"{place:.0e}", *(f"{own['median']:,.1f}" for own in by_name.values())]
            for place, by_name in figures["resuming"].items()
        ]
        show("First batch of a resumed run, ms", ["samples seen", *figures["resuming"][places[0]]], rows)
    write_json(args.json, {"arguments": vars(args), **figures})
