"""What a start costs: imports, and a MixingTrainer until its first step is done, over the plain Trainer.

Run `python -m benchmarks start`. Each trainer is built and does one step, in turns, on one thread: ours on one data
set and on three streams, and the plain one. Objects of before are kept out of garbage collection, which the Trainer
starts itself and which takes longer than all the rest. Processor time is what other work on the machine changes least;
time on the clock has the waits for the disk too. Imports are processor time of a process of their own.
"""

import argparse
import gc
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from datasets import Dataset
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.utils import logging

from benchmarks.common import QUIET, rotated, show, spread, write_json
from mixer import MixingTrainer

PLAIN, ONE, THREE = "Trainer", "MixingTrainer, one data set", "MixingTrainer, three streams"
_BUILD: dict[str, Callable[..., Trainer]] = {
    PLAIN: lambda rows, **options: Trainer(train_dataset=rows, **options),
    ONE: lambda rows, **options: MixingTrainer(train_dataset=rows, **options),
    THREE: lambda rows, **options: MixingTrainer(train_dataset=dict.fromkeys("abc", rows), **options),
}
_PROCESSES = {
    "python": ["-c", "pass"],
    "import mixer": ["-c", "import mixer"],
    "from mixer import PiKE, Stream": ["-c", "from mixer import PiKE, Stream"],
    "mixer --help": ["-m", "mixer", "--help"],
}
_VOCABULARY, _LENGTH, _BATCH = 64, 16, 8


class FirstStep(TrainerCallback):
    """Ends a run after its first step, and notes when that was on both clocks."""

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Notes the time."""
        self.ended, control.should_training_stop = _now(), True


def _now() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def milliseconds(build: Callable[..., Trainer], rows: Dataset) -> tuple[float, float]:
    """Builds a trainer and trains for one step.

    Args:
        build: Builds the trainer from the rows, a model and training arguments.
        rows: The samples.

    Returns:
        Milliseconds from the call of the constructor to the end of the first step: on the clock, and of the processor.
    """
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=_VOCABULARY, use_cache=False, **sizes))
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(folder, per_device_train_batch_size=_BATCH, max_steps=100, **QUIET)
        gc.collect()
        gc.freeze()
        begun, first = _now(), FirstStep()
        trainer = build(rows, model=model, args=args, callbacks=[first])
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    clock, processor = (1e3 * (end - start) for end, start in zip(first.ended, begun, strict=True))
    return clock, processor


def processor_seconds(arguments: Sequence[str]) -> float:
    """Runs Python.

    Args:
        arguments: Its command line.

    Returns:
        Seconds of user and system time.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(num_rounds: int) -> dict[str, Any]:
    """Measures all, in turns.

    Args:
        num_rounds: How often.

    Returns:
        `clock` and `processor` milliseconds by trainer, `processor_seconds` by process: repetitions each.
    """
    ids = torch.randint(_VOCABULARY, (32 * _BATCH, _LENGTH), generator=torch.Generator().manual_seed(0)).tolist()
    rows = Dataset.from_dict({"input_ids": ids, "labels": ids})
    for build in _BUILD.values():
        milliseconds(build, rows)  # imports, and caches of torch
    times: dict[str, dict[str, list[float]]] = {kind: {name: [] for name in _BUILD} for kind in ("clock", "processor")}
    for number in range(num_rounds):
        for name in rotated(list(_BUILD), number):
            for kind, value in zip(times, milliseconds(_BUILD[name], rows), strict=True):
                times[kind][name].append(value)
    processes = {name: [processor_seconds(own) for _ in range(num_rounds)] for name, own in _PROCESSES.items()}
    return {**times, "processor_seconds": processes}


def _show(figures: dict[str, Any]) -> None:
    rows = []
    for name in _BUILD:
        cells = []
        for times in (figures["clock"], figures["processor"]):
            least, plain = min(times[name]), min(times[PLAIN])
            cells += [f"{least:.1f}", f"{least - plain:+.1f}", f"{spread(times[name])['median']:.1f}"]
        rows.append([name, *cells])
    heads = ["", "least", "over Trainer", "median", "processor: least", "over Trainer", "median"]
    show("Constructor and first step of a tiny model, one thread, ms", heads, rows)
    seconds = {name: spread(own) for name, own in figures["processor_seconds"].items()}
    rows = [[name, f"{own['min']:.2f}", f"{own['median']:.2f}"] for name, own in seconds.items()]
    show("Processor time of a process", ["", "least s", "median"], rows)


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the benchmark, prints the tables and writes the figures.

    Args:
        argv: Command line; `None` takes the process's own.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", help="where all figures are written")
    parser.add_argument("--quick", action="store_true", help="few rounds, for a test")
    parser.add_argument("--rounds", type=int, default=30)
    args = parser.parse_args(argv)
    logging.set_verbosity_error()
    torch.set_num_threads(1)
    figures = measure(2 if args.quick else args.rounds)
    _show(figures)
    write_json(args.json, {"arguments": vars(args), **figures})
