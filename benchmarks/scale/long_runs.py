"""Long runs stay flat: a million steps planned and recorded, and thousands trained on two ranks.

Run `python -m benchmarks long_runs`. What each process holds is sampled over the run, after a collection of
garbage. The first fifth is warm-up. Of the rest, the last quarter may be at most 1 % above the first one in memory (the
median of the process's own RSS, and the most that it and its workers hold and no file does), and not above it in files,
threads and child processes (the most), or the command fails. Times are reported alone.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import new_parser, write_json
from benchmarks.launching import launch
from benchmarks.presenting import present
from benchmarks.scale.long_planned import NUM_STREAMS, LongPlannedRun
from benchmarks.scale.process_state import broken_bounds

_LIMIT_SECONDS = 3_000
_NUM_RANKS = 2
_PLANNED = "planned"


def planned(num_steps: int) -> dict[str, Any]:
    """Plans and records a run in this process.

    Args:
        num_steps: Number of steps.

    Returns:
        What `LongPlannedRun.run` gives.
    """
    with tempfile.TemporaryDirectory() as folder:
        return LongPlannedRun(Path(folder), num_steps).run()


def trained(num_steps: int, num_workers: int) -> dict[str, Any]:
    """Trains on two ranks.

    Args:
        num_steps: Number of steps.
        num_workers: Worker processes of each rank.

    Returns:
        What `benchmarks.scale.long_trained` writes, rank by rank under `ranks`, and `num_workers` and `num_steps`.

    Raises:
        RuntimeError: If the run failed.
        subprocess.TimeoutExpired: If it took longer than fifty minutes.
    """
    with tempfile.TemporaryDirectory() as name:
        arguments = ["benchmarks.scale.long_trained", name, str(num_steps), str(num_workers)]
        launch(_NUM_RANKS, arguments, _LIMIT_SECONDS)
        ranks = [json.loads((Path(name) / f"rank-{rank}.json").read_text()) for rank in range(_NUM_RANKS)]
    return {"ranks": ranks, "num_workers": num_workers, "num_steps": num_steps}


def _processes(figures: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Gives the figures of each process that was watched, by a name for it."""
    found: dict[str, Mapping[str, Any]] = {}
    if _PLANNED in figures:
        found[f"planned, {figures[_PLANNED]['num_steps']:,} steps"] = figures[_PLANNED]
    for run in figures.get("trained", ()):
        for rank, own in enumerate(run["ranks"]):
            workers = f"{run['num_workers']} workers" if run["num_workers"] else "no workers"
            found[f"trained, {run['num_steps']:,} steps, {workers}, rank {rank}"] = own
    return found


def show_figures(figures: Mapping[str, Any], as_markdown: bool) -> None:
    """Prints them.

    Args:
        figures: What was measured.
        as_markdown: Whether in Markdown.
    """
    rows = []
    for name, own in _processes(figures).items():
        memory = [f"{own[key]['last']:.0f} ({own[key]['growth']:+.2%})" for key in ("rss_mib", "anonymous_mib")]
        memory.append(f"{own['children_mib']['first']:.1f} to {own['children_mib']['last']:.1f}")
        objects = f"{own['objects']['last']:,.0f} ({own['objects']['growth']:+.1%})"
        counts = [f"{own[key]['first']:g} to {own[key]['last']:g}" for key in ("files", "threads", "children")]
        rows.append([name, *memory, objects, *counts, f"{own['seconds']['ratio']:.2f}"])
    columns = ["run", "RSS, MiB", "anonymous, MiB", "of children, MiB", "objects"]
    columns += ["files", "threads", "children", "time"]
    present(
        "Last quarter after the warm-up (growth over the first); time of a step, last quarter over the second",
        columns,
        rows,
        as_markdown,
    )
    if _PLANNED in figures:
        _show_ledger(figures[_PLANNED], as_markdown)


def _show_ledger(own: Mapping[str, Any], as_markdown: bool) -> None:
    ledger = own["ledger"]
    rows = [
        ["bytes a step and stream, sealed", f"{ledger['bytes_per_row']:.1f}"],
        ["bytes a step, all tables, sealed", f"{ledger['bytes_per_step']:.0f}"],
        ["files", f"{ledger['num_files']}"],
        ["seconds to read all of it", f"{ledger['read_seconds']:.2f}"],
        ["each step and stream once, counts add up", "yes" if ledger["is_exact"] else "NO"],
    ]
    title = f"Ledger of {own['num_steps']:,} steps x {NUM_STREAMS} streams, resumed {own['num_resumes']} times"
    present(title, ["", "figure"], rows, as_markdown)


def find_broken(figures: Mapping[str, Any]) -> list[str]:
    """Says which bounds are broken.

    Args:
        figures: What was measured.

    Returns:
        A sentence for each.
    """
    broken = [text for name, own in _processes(figures).items() for text in broken_bounds(own, name)]
    if _PLANNED in figures and not figures[_PLANNED]["ledger"]["is_exact"]:
        broken.append("planned: the ledger does not hold each step and stream once")
    return broken


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = new_parser(__doc__)
    parser.add_argument("--markdown", action="store_true", help="print the tables in Markdown")
    parser.add_argument("--planned-steps", type=int, default=1_000_000, help="0 leaves this run out")
    parser.add_argument("--trained-steps", type=int, default=2_000, help="0 leaves these runs out")
    parser.add_argument("--workers", type=int, nargs="*", default=[0, 2], help="of each training")
    args = parser.parse_args(argv)
    if args.quick:
        args.planned_steps, args.trained_steps, args.workers = 2_000, 80, [0]
    return args


def main(argv: Sequence[str] | None = None) -> None:
    """Runs, prints the tables and writes the figures; fails if a bound is broken.

    Args:
        argv: Command line; `None` takes the process's own.
    """
    args = _arguments(argv)
    figures: dict[str, Any] = {}
    parts: list[tuple[str, Callable[[], Any]]] = []
    if args.planned_steps:
        parts.append((_PLANNED, lambda: planned(args.planned_steps)))
    if args.trained_steps:
        parts.append(("trained", lambda: [trained(args.trained_steps, n) for n in args.workers]))
    for name, measure in parts:
        started = time.perf_counter()
        figures[name] = measure()
        write_json(args.json, {"arguments": vars(args), **figures})  # what is done stays if the next part fails
        print(f"{name}: {time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)
    show_figures(figures, args.markdown)
    broken = find_broken(figures)
    write_json(args.json, {"arguments": vars(args), **figures, "broken": broken})
    if broken and not args.quick:
        sys.exit("\n".join(broken))
