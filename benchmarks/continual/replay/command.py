"""What replay costs, and what it is good for.

Run `python -m benchmarks replay [PART ...] [--json FILE] [--quick]`. The parts:

`rates`, `storages` and `exemplars`: samples a second that are inserted, drawn and read, by selection, storage,
capacity and number of tasks. `memory`: RAM. `kept`: whether each sample is kept with the same probability. `steps`: a
training step with replay over one without. `tasks`: what is forgotten of an old domain while a new one is trained on.
What each measures and why in this way is said in the module `benchmarks.continual.replay.<part>`.
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import torch
from transformers.utils import logging

from benchmarks.common import show, write_json
from benchmarks.continual.replay import (
    exemplars,
    kept,
    memory,
    rates,
    steps,
    storages,
    tasks,
)

_PARTS: dict[str, ModuleType] = {
    "rates": rates,
    "storages": storages,
    "exemplars": exemplars,
    "memory": memory,
    "kept": kept,
    "steps": steps,
    "tasks": tasks,
}


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*_PARTS, []], help="what is measured; default: all")
    parser.add_argument("--json", metavar="FILE", help="where all figures are written")
    parser.add_argument("--quick", action="store_true", help="small and few, for a test")
    parser.add_argument("--threads", type=int, default=2, help="torch's threads while steps are timed")
    parser.add_argument("--folder", type=Path, help="a folder on the disk that is measured; default: the system's")
    parser.add_argument("--capacities", type=int, nargs="+", default=[1_000, 100_000, 1_000_000])
    parser.add_argument("--tasks", type=int, nargs="+", default=[1, 10, 100], help="numbers of tasks; 1 and 10 needed")
    parser.add_argument("--selections", nargs="+", default=[*rates.SELECTIONS, rates.LEAST_RECENT], help="of rates")
    parser.add_argument("--rounds", type=int, default=100, help="turns of inserting, drawing and reading")
    parser.add_argument("--cold-rounds", type=int, default=25, help="turns of inserting into cold buffers")
    parser.add_argument("--fill-rounds", type=int, default=20, help="turns of filling")
    parser.add_argument("--filled", type=int, default=10_000, help="samples of a turn of filling")
    parser.add_argument("--storage-rounds", type=int, default=12, help="turns of inserting contents")
    parser.add_argument("--step-rounds", type=int, default=40, help="turns of training steps")
    parser.add_argument("--seeds", type=int, default=3, help="seeds of tasks, from 1 on")
    parser.add_argument("--parallel", type=int, default=2, help="processes of tasks, of one thread each")
    args = parser.parse_args(argv)
    args.parts = args.parts or list(_PARTS)
    if args.quick:
        args.capacities, args.tasks, args.selections = [300, 1_000], [1, 10], ["Reservoir", "ClassBalanced"]
        args.rounds = args.cold_rounds = args.fill_rounds = args.storage_rounds = args.step_rounds = 2
        args.filled, args.seeds, args.parallel = 320, 1, 1
    return args


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the benchmark, prints the tables and writes the figures.

    Args:
        argv: Command line; `None` takes the process's own.
    """
    args = _arguments(argv)
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    torch.set_num_threads(args.threads)
    figures, seconds = {}, {}
    for name in args.parts:
        started = time.perf_counter()
        figures[name] = _PARTS[name].measure(args)
        seconds[name] = time.perf_counter() - started
        _PARTS[name].show_figures(figures[name])
        arguments = {**vars(args), "folder": None if args.folder is None else str(args.folder)}
        write_json(args.json, {"arguments": arguments, "seconds": seconds, **figures})
    show("Time of the parts", ["part", "s"], [[name, f"{own:.0f}"] for name, own in seconds.items()])
