"""How the ranks of short runs end where a script just comes to its end: `python -m benchmarks exits --runs 200`.

Each run trains two ranks for a few steps and leaves the rest to the interpreter, with groups, trainer and model still
there, as a script does. Ranks are forked from this process, which has imported everything, and end as processes of
their own. What a thread of gloo has still to do then shows by chance alone, so once the steps are done these threads
share a core with their rank, at the lowest priority (SCHED_IDLE). `--no-wait` leaves out the wait for them, which shows
what there is to wait for. The exit status is not zero if a rank ended with an error.
"""

import argparse
import atexit
import contextlib
import importlib
import os
import shutil
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback, TrainingArguments

from benchmarks.common import QUIET, show, write_json
from mixer import MixingTrainer
from mixer.distributed.collectives import wait_until_let_go

with contextlib.suppress(ImportError):  # accelerate would, in every rank, where it is installed
    importlib.import_module("deepspeed")

_THREADS = "pt_gloo_runloop"


class _Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.layer(x).squeeze(-1)
        return {"loss": nn.functional.mse_loss(logits, labels), "logits": logits}


class _Starve(TrainerCallback):
    """Lets the threads of gloo, once the steps are done, run only while the rank itself waits."""

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        core = args.process_index % (os.cpu_count() or 1)
        for thread in Path("/proc/self/task").iterdir():
            os.sched_setaffinity(int(thread.name), {core})
            if _THREADS.startswith((thread / "comm").read_text().strip()):
                os.sched_setscheduler(int(thread.name), os.SCHED_IDLE, os.sched_param(0))


def train(folder: str, trainer_class: type[Trainer]) -> Trainer:
    """Trains a few steps.

    Args:
        folder: The output folder.
        trainer_class: The Trainer's class.

    Returns:
        The trainer, which a script would still have at its end.
    """
    torch.manual_seed(0)
    rows = [{"x": torch.randn(2), "labels": torch.randn(())} for _ in range(12)]
    args = TrainingArguments(folder, max_steps=3, per_device_train_batch_size=2, **QUIET)
    trainer = trainer_class(_Model(), args, train_dataset=rows, callbacks=[_Starve()])
    trainer.train()
    return trainer


def _fork(folder: str, num_ranks: int) -> int | list[int]:
    """Forks the ranks of a run; gives their processes, and to each of them its rank."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    processes = []
    for rank in range(num_ranks):
        process = os.fork()
        if not process:
            console = os.open(f"{folder}/console-{rank}.txt", os.O_WRONLY | os.O_CREAT)
            os.dup2(console, 1)
            os.dup2(console, 2)
            os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE=str(num_ranks))
            os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
            return rank
        processes.append(process)
    return processes


def _load(num_processes: int) -> list[psutil.Popen]:
    return [psutil.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(num_processes)]


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--trainer", choices=["mixing", "stock"], default="mixing")
    parser.add_argument("--no-wait", action="store_true", help="do not wait for gloo's threads before the end")
    parser.add_argument("--load", type=int, default=0, help="processes that take the cores meanwhile")
    parser.add_argument("--json", metavar="FILE", help="where the figures are written")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> Trainer | None:
    """Runs the benchmark; in each rank, trains.

    Args:
        argv: Command line; `None` takes the process's own.

    Returns:
        In a rank its trainer; nothing else is to be done there but to end.
    """
    args = _arguments(argv)
    codes: Counter[int] = Counter()
    began, load = time.monotonic(), _load(args.load)
    torch.set_num_threads(1)
    try:
        for number in range(args.runs):
            folder = tempfile.mkdtemp(prefix="exits-")
            found = _fork(folder, args.ranks)
            if isinstance(found, int):
                load = []  # they are the parent's
                if args.no_wait:
                    atexit.unregister(wait_until_let_go)
                return train(folder, MixingTrainer if args.trainer == "mixing" else Trainer)
            ended = [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in found]
            codes.update(ended)
            if any(ended):
                consoles = [Path(folder, f"console-{rank}.txt").read_text() for rank in range(args.ranks)]
                print(f"run {number} ended with {ended}:", *(text[-300:] for text in consoles), sep="\n", flush=True)
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        for process in load:
            process.kill()
    seconds = time.monotonic() - began
    rows = [[str(code), str(count)] for code, count in sorted(codes.items())]
    show(f"{args.runs} runs of {args.ranks} ranks ({args.trainer}) in {seconds:.0f} s", ["exit code", "ranks"], rows)
    write_json(args.json, {"runs": args.runs, "ranks": args.ranks, "seconds": seconds, "codes": dict(codes)})
    if set(codes) - {0}:
        sys.exit(1)
    return None
