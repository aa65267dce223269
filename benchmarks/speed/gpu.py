"""On GPUs, in bf16: what a step costs over one of the Trainer, measuring gradients, loading ahead, and memory.

Run `python -m benchmarks gpu`; where there are several GPUs it starts one process for each. All competitors have the
same model and the same samples to draw from, do a block of steps each in every round, and are compared with the Trainer
of that round. Ours has a policy that looks at nothing (*overhead*), at the streams' losses after each step (*losses*),
or at their gradients in each step (*gradients*). The Trainer is there twice: the second shows what the comparison of
equals gives. *prefetch* has samples that take time to load, and is compared with a Trainer that has them too. Memory is
the peak of a step over what was there before it.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments
from transformers.utils import logging

from benchmarks.common import QUIET, paired_ratio, show, spread, write_json
from benchmarks.speed.overhead import new_model
from benchmarks.turns import take_turns
from mixer import LossChange, MixingTrainer, PiKE, Policy, Uniform

PLAIN, AGAIN, LOADING = "Trainer", "Trainer again", "Trainer, loading"
_POLICIES: dict[str, Policy | None] = {
    PLAIN: None,
    AGAIN: None,
    "overhead": Uniform(),
    "losses": LossChange(),
    "gradients": PiKE(interval_steps=1),
    LOADING: None,
    "prefetch": Uniform(),
}
_IS_LOADING = {LOADING, "prefetch"}
_NUM_STREAMS = 3
REFUSAL = (
    "python -m benchmarks gpu: torch {version} sees no GPU here (torch.cuda.is_available() is False). Install a build "
    "of torch for its GPU. Without one, python -m benchmarks overhead, probe and data_path measure the "
    "same on a CPU."
)


class Rows(Dataset[dict[str, Tensor]]):
    """Tokenised samples that take some time to load.

    Args:
        rows: int64 `[num_samples, length]`.
        seconds: How long one takes.
    """

    def __init__(self, rows: Tensor, seconds: float):
        self._rows, self._seconds = rows, seconds

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        time.sleep(self._seconds)
        return {"input_ids": self._rows[index], "labels": self._rows[index]}


class Peak(TrainerCallback):
    """Notes the most memory of a step over what was there before it, in bytes; 0 on a CPU."""

    def __init__(self) -> None:
        self.num_bytes = self._before = 0

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        """Notes what is there."""
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
            self._before = torch.cuda.memory_allocated()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Notes the peak."""
        if torch.cuda.is_available():
            self.num_bytes = max(self.num_bytes, torch.cuda.max_memory_allocated() - self._before)


def _new_trainer(name: str, args: argparse.Namespace, folder: str) -> Trainer:
    generator, is_loading = torch.Generator().manual_seed(0), name in _IS_LOADING
    shape = (_NUM_STREAMS, args.samples // _NUM_STREAMS, args.length)
    tokens = torch.randint(args.vocabulary, shape, generator=generator)
    streams = {f"stream{k}": Rows(own, args.load_ms / 1e3 * is_loading) for k, own in enumerate(tokens)}
    training = TrainingArguments(
        f"{folder}/{name}",
        per_device_train_batch_size=args.batch,
        max_steps=10_000,
        bf16=True,
        dataloader_num_workers=args.workers * is_loading,
        dataloader_persistent_workers=bool(args.workers * is_loading),
        **{**QUIET, "use_cpu": args.device == "cpu", "logging_strategy": "steps", "logging_steps": args.block},
    )
    policy = _POLICIES[name]
    if policy is None:
        return Trainer(new_model(args), training, train_dataset=ConcatDataset(list(streams.values())))
    return MixingTrainer(new_model(args), training, train_dataset=streams, mixing=policy)


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Runs the comparison.

    Args:
        args: The command line.

    Returns:
        All figures as plain data.
    """
    with tempfile.TemporaryDirectory() as folder:
        trainers = {name: _new_trainer(name, args, folder) for name in _POLICIES}
        peaks = {name: Peak() for name in trainers}
        for name, trainer in trainers.items():
            trainer.remove_callback(PrinterCallback)
            trainer.add_callback(peaks[name])
        times = take_turns(trainers, dict.fromkeys(trainers, args.warmup), args.rounds, args.block, num_threads=1)
        num_parameters = sum(parameter.numel() for parameter in trainers[PLAIN].model.parameters())
    return {
        "device": torch.cuda.get_device_name() if args.device == "cuda" else "CPU",
        "num_devices": int(os.environ.get("WORLD_SIZE", 1)),
        "num_parameters": num_parameters,
        "milliseconds_per_step": {name: spread(own) for name, own in times.items()},
        "ratio": {
            name: paired_ratio(own, times[LOADING if name in _IS_LOADING else PLAIN])
            for name, own in times.items()
            if name not in (PLAIN, LOADING)
        },
        "peak_bytes": {name: peak.num_bytes for name, peak in peaks.items()},
    }


def _show(args: argparse.Namespace, figures: dict[str, Any]) -> None:
    rows = []
    for name, times in figures["milliseconds_per_step"].items():
        ratio = figures["ratio"].get(name)
        cells = [f"{ratio['median']:.4f}", f"{ratio['low']:.4f} to {ratio['high']:.4f}"] if ratio else ["1", ""]
        rows.append([name, f"{times['median']:.2f}", *cells, f"{figures['peak_bytes'][name] / 2**20:.0f}"])
    title = (
        f"{figures['num_devices']} x {figures['device']}, bf16, {figures['num_parameters'] / 1e6:.0f}M parameters, "
        f"batch {args.batch} x {args.length}; torch {torch.__version__}; {args.rounds} rounds of {args.block} steps"
    )
    show(title, ["", "ms a step", "over its Trainer", "95 % interval", "peak MiB"], rows)


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Reads the command line.

    Args:
        argv: Command line; `None` takes the process's own.

    Returns:
        The options, for a GPU.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", help="where all figures are written")
    parser.add_argument("--quick", action="store_true", help="a small model and few rounds, for a test")
    parser.add_argument("--model", choices=("llama", "gpt2"), default="llama")
    parser.add_argument("--vocabulary", type=int, default=32_000)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--length", type=int, default=512, help="tokens of a sample")
    parser.add_argument("--batch", type=int, default=16, help="samples of a step on each GPU")
    parser.add_argument("--samples", type=int, default=12_000, help="samples of all streams together")
    parser.add_argument("--workers", type=int, default=4, help="workers of those that load")
    parser.add_argument("--load-ms", type=float, default=2.0, help="milliseconds that these take to load a sample")
    parser.add_argument("--rounds", type=int, default=14, help="multiples of 14 balance the order")
    parser.add_argument("--block", type=int, default=20, help="steps of a turn")
    parser.add_argument("--warmup", type=int, default=10, help="steps that do not count")
    args = parser.parse_args(argv)
    if args.quick:
        args.layers, args.hidden, args.vocabulary, args.length, args.batch = 2, 64, 512, 16, 6
        args.rounds, args.block, args.warmup, args.samples, args.workers = 2, 2, 3, 240, 1
    args.device = "cuda"
    return args


def main(argv: Sequence[str] | None = None) -> int | None:
    """Runs the benchmark, prints the table and writes the figures.

    Args:
        argv: Command line; `None` takes the process's own.

    Returns:
        The exit status of the processes it started, if it started any.

    Raises:
        SystemExit: If there is no GPU.
    """
    args = arguments(argv)
    if not torch.cuda.is_available():
        raise SystemExit(REFUSAL.format(version=torch.__version__))
    if torch.cuda.device_count() > 1 and "WORLD_SIZE" not in os.environ:  # one process cannot train on several
        launcher = ("torch.distributed.run", "--standalone", f"--nproc_per_node={torch.cuda.device_count()}")
        own = sys.argv[1:] if argv is None else list(argv)
        return subprocess.run([sys.executable, "-m", *launcher, "-m", "benchmarks", "gpu", *own]).returncode
    logging.set_verbosity_error()
    figures = measure(args)
    if int(os.environ.get("RANK", 0)) == 0:
        _show(args, figures)
        write_json(args.json, {"arguments": vars(args), **figures})
    return None
