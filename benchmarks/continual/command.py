"""Continual learning by published protocols.

`python -m benchmarks continual --protocol NAME --method NAME [--memory-per-class M | --buffer N] --data-dir
DIR` gives one row: a method with a memory on all seeds, its average accuracy, forgetting, time, and how fast the last
task is trained compared with the first. `torchrun --nproc_per_node 2 -m benchmarks continual ...` does it on
two ranks. What each protocol is, and what was published, is said in `benchmarks.continual.protocols`; methods are in
`benchmarks.continual.methods`.
"""

import argparse
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from transformers import PrinterCallback, ProgressCallback, set_seed
from transformers.utils import logging

from benchmarks.common import show, write_json
from benchmarks.continual.methods import METHODS
from benchmarks.continual.protocols import PROTOCOLS, Protocol
from mixer import MixingTrainer
from tasks.continual.continual import ContinualRun
from tasks.continual.ends import read_pace
from tasks.metrics.metrics import all_metrics

_COLUMNS = ["method", "memory", "ACC", "published", "forgetting", "s a seed", "samples/s at first", "last / first"]


class QuietTrainer(MixingTrainer):
    """A trainer that prints nothing."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        for callback in (PrinterCallback, ProgressCallback):
            self.remove_callback(callback)


def run_once(protocol: Protocol, method: str, memory: int, seed: int, data_dir: Path) -> dict[str, float]:
    """Trains on the protocol's tasks once.

    Args:
        protocol: The protocol.
        method: The method.
        memory: Entries of the memory: a class, or in all, as the protocol counts them.
        seed: Seed of the weights, of the tasks and of every order.
        data_dir: Folder of the data.

    Returns:
        All metrics in per cent, the samples a second of the first task that replays and of the last one and their ratio
        (`first_rate`, `last_rate`, `last_over_first`), and `seconds`, evaluation included.
    """
    set_seed(seed)
    tasks = protocol.sequence(data_dir, seed)
    setting = METHODS[method](protocol, memory, len(tasks))
    sequence, score = setting.arranged(tasks)
    started = time.perf_counter()
    with _shared_folder() as folder:
        run = ContinualRun(
            protocol.model(),
            sequence,
            protocol.arguments(folder, seed, method),
            memory=setting.memory,
            mixing=setting.mixing,
            methods=setting.methods,
            batch_size=protocol.batch_size,
            score=score,
            trainer_class=QuietTrainer,
            **setting.options,
        )
        scores = run.run()
        rates = read_pace(folder, sequence.names).samples_per_second
    metrics = {name: 100 * value for name, value in all_metrics(scores).items()}
    # Steps without replay are half as large: the first task that compares with the last is the first that replays.
    first = rates.iloc[0 if setting.memory is None or setting.memory.is_online else 1]
    pace = {"first_rate": first, "last_rate": rates.iloc[-1], "last_over_first": rates.iloc[-1] / first}
    return {**metrics, **pace, "seconds": time.perf_counter() - started}


@contextmanager
def _shared_folder() -> Iterator[str]:
    """Makes a folder for a while, the same for all ranks."""
    state = PartialState()
    folder = [tempfile.mkdtemp() if state.is_main_process else ""]
    broadcast_object_list(folder)
    try:
        yield folder[0]
    finally:
        state.wait_for_everyone()
        if state.is_main_process:
            shutil.rmtree(folder[0])


def main(argv: Sequence[str] | None = None) -> None:
    """Runs a row and prints it.

    Args:
        argv: Command line; `None` takes the process's own.
    """
    args = _arguments(argv)
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    torch.set_num_threads(args.threads)
    protocol, state = PROTOCOLS[args.protocol], PartialState(cpu=True)
    runs = [run_once(protocol, args.method, args.memory, seed, args.data_dir) for seed in range(1, args.seeds + 1)]
    accuracies = [run["average_accuracy"] for run in runs]
    figures = {
        "protocol": args.protocol,
        "method": args.method,
        "memory": args.memory,
        "seeds": args.seeds,
        "acc_mean": float(np.mean(accuracies)),
        "acc_std": float(np.std(accuracies, ddof=1)) if args.seeds > 1 else float("nan"),
        "forgetting_mean": float(np.mean([run["forgetting"] for run in runs])),
        "seconds": float(np.sum([run["seconds"] for run in runs])),
        "ranks": state.num_processes,
        "threads": args.threads,
        **{
            name: float(np.median([run[name] for run in runs]))
            for name in ("first_rate", "last_rate", "last_over_first")
        },
    }
    if not state.is_main_process:
        return
    published = protocol.published.get((args.method, args.memory), "-")
    row = [args.method, str(args.memory), f"{figures['acc_mean']:.1f} ± {figures['acc_std']:.1f}", published]
    rest = [f"{figures['forgetting_mean']:.1f}", f"{figures['seconds'] / args.seeds:.0f}"]
    rates = [f"{figures['first_rate']:,.0f}", f"{figures['last_over_first']:.2f}"]
    show(args.protocol, _COLUMNS, [[*row, *rest, *rates]])
    write_json(args.json, {**figures, "runs": runs})


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--protocol", choices=list(PROTOCOLS), required=True)
    parser.add_argument("--method", choices=list(METHODS), required=True)
    memory = parser.add_mutually_exclusive_group()
    memory.add_argument("--memory-per-class", dest="memory", type=int, help="entries a class (and task, if domains)")
    memory.add_argument("--buffer", dest="memory", type=int, help="entries in all")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args(argv)
    args.memory = args.memory or 0
    return args
