"""Continual learning by published protocols.

`python -m benchmarks continual --protocol NAME ... --method NAME ... [--memory-per-class M | --buffer N] --data-dir
DIR` gives a row for each method that fits a protocol, with its memory. A row sums up all seeds: average accuracy, or
loss, at the end, forgetting, time of the processor, peak memory in training above what was there after imports, what is
kept from task to task beside the model (remembered samples and logits, weights and their importances, projections, a
copy of the model), and how fast the last task is trained compared with the first. `all` stands for every protocol, or
for every method. A method that does not fit a protocol is left out of it, and refused with the reason where it fits
none of those named.

A run has a process of its own, and its result a file in `--folder`, so that nothing is run twice; `--report` runs
nothing. `torchrun --nproc_per_node 2 -m benchmarks continual ...` does it on two ranks. What each protocol is follows;
methods are in `benchmarks.continual.methods`.
"""

import argparse
import multiprocessing
import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, get_args

import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from transformers import PrinterCallback, ProgressCallback, set_seed
from transformers.utils import logging

from benchmarks.continual import pretrained, protocols
from benchmarks.continual.methods import METHODS, setting_of, why_unfit
from benchmarks.continual.protocols import PROTOCOLS, Protocol
from benchmarks.continual.results import Run, report
from benchmarks.peak import Peak
from mixer import MixingTrainer
from tasks.continual.continual import ContinualRun
from tasks.continual.continual_checks import Optimizer
from tasks.continual.task_checkpoints import read_pace
from tasks.methods import ICaRL, LwF
from tasks.metrics.metrics import all_metrics
from tasks.task_folders import folder_of_task

_ALL = "all"


class QuietTrainer(MixingTrainer):
    """A trainer that prints nothing."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        for callback in (PrinterCallback, ProgressCallback):
            self.remove_callback(callback)


def run_once(
    protocol: Protocol,
    method: str,
    memory: int,
    seed: int,
    data_dir: Path,
    base_dir: Path,
    optimizer: Optimizer | None = None,
) -> dict[str, float]:
    """Trains on the protocol's tasks once.

    Args:
        protocol: The protocol.
        method: The method.
        memory: Entries of the memory: a class, or in all, as the protocol counts them.
        seed: Seed of the weights, of the tasks and of every order.
        data_dir: Folder of the data.
        base_dir: Folder that keeps the models that runs begin with.
        optimizer: Whether it goes on from task to task; `None` for the method's own way.

    Returns:
        All metrics, accuracies in per cent, the samples per second of the first task that replays and of the last one
        and their ratio (`first_rate`, `last_rate`, `last_over_first`), `seconds` of the processor, evaluation included,
        and the memory, `peak_bytes`, `growth_bytes` and `kept_bytes`, what is kept from task to task beside the model.
    """
    peak = Peak()
    set_seed(seed)
    tasks = protocol.sequence(data_dir, seed)
    setting = setting_of(method, protocol, memory, len(tasks))
    sequence, score = setting.arranged(tasks)
    options = setting.options if optimizer is None else {**setting.options, "optimizer": optimizer}
    model = protocol.model(seed, base_dir)
    peak.forget()  # what reading the files took
    started, num_first = time.process_time(), sum(parameter.numel() for parameter in model.parameters())
    with _shared_folder() as folder:
        run = ContinualRun(
            model if setting.adapt is None else setting.adapt(model),
            sequence,
            protocol.arguments(folder, seed, method, setting.max_steps),
            memory=setting.memory,
            mixing=setting.mixing,
            methods=setting.methods,
            batch_size=protocol.batch_size,
            score=score,
            trainer_class=setting.trainer_class(QuietTrainer),
            **options,
        )
        scores = run.run()
        rates = read_pace(folder, sequence.names).samples_per_second
        kept = _kept_bytes(run, protocol.row_bytes, num_first)
    unit = 100.0 if scores.higher_is_better else 1.0
    metrics = {name: unit * value for name, value in all_metrics(scores).items()}
    # Steps without replay are half as large: the first task that compares with the last is the first that replays.
    first = rates.iloc[0 if setting.memory is None or setting.memory.is_online else 1]
    pace = {"first_rate": first, "last_rate": rates.iloc[-1], "last_over_first": rates.iloc[-1] / first}
    return {**metrics, **pace, "seconds": time.process_time() - started, **peak.figures(), "kept_bytes": kept}


def _kept_bytes(run: ContinualRun, row_bytes: int, num_first: int) -> float:
    """Counts what is kept from task to task beside the model that the run began with, by what is saved of it."""
    end = folder_of_task(run.folder, len(run.sequence) - 1, run.sequence.names[-1]) / "end"
    saved = [path for part in ("memory", "methods") for path in (end / part).rglob("*") if path.is_file()]
    size = sum(one.numel() for one in run.model.parameters())
    num_copied = size if any(isinstance(method, LwF | ICaRL) for method in run.rehearsal.new_methods()) else 0
    rows = 0 if run.memory is None else len(run.memory) * row_bytes
    return sum(path.stat().st_size for path in saved) + rows + 4.0 * (size - num_first + num_copied)


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


def _run_and_write(run: Run, folder: Path, data_dir: Path, threads: int) -> str:
    """Runs once and keeps the result; says what failed, so that other runs go on."""
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    torch.set_num_threads(threads)
    state = PartialState(cpu=True)
    try:
        found = run_once(PROTOCOLS[run.protocol], run.method, run.memory, run.seed, data_dir, folder, run.optimizer)
    except (ValueError, FileNotFoundError) as error:
        return f"{run}: {error}"
    if state.is_main_process:
        run.write(folder, found)
        print(f"{run.protocol}, {run.method}, seed {run.seed}: {found['seconds']:.0f} s", flush=True)
    return ""


def _planned(args: argparse.Namespace, ranks: int) -> Iterable[Run]:
    """Gives the runs of all methods that fit, seed by seed."""
    for seed in range(1, args.seeds + 1):
        for name in args.protocol:
            protocol = PROTOCOLS[name]
            for method in args.method:
                if not why_unfit(method, protocol):
                    memory = (args.memory or protocol.memory) if METHODS[method].replays else 0
                    yield Run(name, method, memory, seed, ranks, args.optimizer)


def main(argv: Sequence[str] | None = None) -> None:
    """Runs what is missing, and prints the table.

    Args:
        argv: Command line; `None` takes the process's own.

    Raises:
        SystemExit: If runs failed.
    """
    args, failed = _arguments(argv), list[str]()
    if not args.report:
        state = PartialState(cpu=True)
        missing = [run for run in _planned(args, state.num_processes) if not run.path(args.folder).is_file()]
        work = partial(_run_and_write, folder=args.folder, data_dir=args.data_dir, threads=args.threads)
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(args.parallel, context, max_tasks_per_child=1) as pool:
            done = pool.map(work, missing) if state.num_processes == 1 else map(work, missing)
            failed = [why for why in done if why]
        if not state.is_main_process:
            return
    print(report(args.folder, args.protocol, args.method))
    if failed:
        raise SystemExit("\n".join(failed))


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    description = f"{__doc__}\n{protocols.__doc__}"
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--protocol", nargs="+", choices=[*PROTOCOLS, _ALL], default=[_ALL])
    parser.add_argument("--method", nargs="+", choices=[*METHODS, _ALL], default=[_ALL])
    memory = parser.add_mutually_exclusive_group()
    memory.add_argument("--memory-per-class", dest="memory", type=int, help="entries per class (and task, if domains)")
    memory.add_argument("--buffer", dest="memory", type=int, help="entries in all; default: the protocol's")
    parser.add_argument("--optimizer", choices=get_args(Optimizer), help="of each task; default: the method's own")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--data-dir", type=Path, help="folder of the data")
    parser.add_argument("--model", help="folder of all-MiniLM-L6-v2; default: that of the package")
    parser.add_argument("--folder", type=Path, default=Path("runs/continual"), help="folder of the results")
    parser.add_argument("--parallel", type=int, default=1, help="processes; with more than one, times say less")
    parser.add_argument("--threads", type=int, default=1, help="of a process")
    parser.add_argument("--report", action="store_true", help="print what was run, and run nothing")
    args = parser.parse_args(argv)
    if args.data_dir is None and not args.report:
        parser.error("the protocols are made of files: give their folder by --data-dir.")
    if args.model is not None:
        os.environ[pretrained.FOLDER] = args.model
    args.protocol = [*PROTOCOLS] if _ALL in args.protocol else args.protocol
    for method in () if _ALL in args.method or args.report else args.method:
        reasons = [f"{name}: {why}" for name in args.protocol if (why := why_unfit(method, PROTOCOLS[name]))]
        if len(reasons) == len(args.protocol):
            parser.error("\n".join(reasons))
        print(*reasons, sep="\n", end="\n" if reasons else "")
    args.method = [*METHODS] if _ALL in args.method else args.method
    return args
