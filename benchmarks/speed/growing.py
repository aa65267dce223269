"""Time to as many samples while the batch grows: in ever more forwards of the first size, or in ever larger forwards.

Run `python -m benchmarks growing`. A small Llama trains while a ramp takes the batch size from 8 to 256 over the first
half of the samples. All competitors take the same steps with the same gradients; what differs is how many samples are
in one forward. They have their turns in one process, a whole run each in every round, and are compared with *fixed* in
the same round. On a CPU the time is that of the process, to which other work on the machine adds nothing:

- *fixed*: 8 samples, the size of the first step, as in training arguments that were written for it;
- *growing*: all samples of a step, up to 256 (`max_samples_per_micro_batch=256`);
- *found*: the same under `auto_find_batch_size=True`, ready to halve the number where memory runs out;
- *extension*: `AdaptiveBatchSizeTrainer`, the interface of the published extension, whose default is up to 64.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from transformers import PrinterCallback, Trainer
from transformers.utils import logging

from benchmarks.common import QUIET, paired_ratio, rotated, show, spread, write_json
from benchmarks.speed.overhead import RecordedRows, new_model
from mixer import AdaptiveBatchSizeTrainer, Budget, MixingConfig, MixingTrainer
from mixer.schedules import Ramp

FIXED, GROWING, FOUND, EXTENSION = "fixed", "growing", "found", "extension"
_SMALLEST, _LARGEST = 8, 256


def _new_trainer(name: str, args: argparse.Namespace, folder: str) -> Trainer:
    generator = torch.Generator().manual_seed(0)
    rows = RecordedRows(torch.randint(args.vocabulary, (args.samples, args.length), generator=generator), 0, [])
    training = MixingConfig(
        f"{folder}/{name}",
        per_device_train_batch_size=_SMALLEST,
        auto_find_batch_size=name == FOUND,
        num_train_epochs=1,
        **{**QUIET, "use_cpu": args.device == "cpu"},
    )
    options: Mapping[str, Any] = {"train_dataset": rows}
    if name == EXTENSION:
        return AdaptiveBatchSizeTrainer(_sizes(args), model=new_model(args), args=training, **options)
    training.max_samples_per_micro_batch = None if name == FIXED else _LARGEST
    ramp = Ramp(_LARGEST, over=args.samples / 2, unit="samples", initial=_SMALLEST)
    return MixingTrainer(new_model(args), training, batch_size=ramp, budget=Budget(samples=args.samples), **options)


def _sizes(args: argparse.Namespace) -> Callable[[int, int], int]:
    """The same ramp as a function of the last size, which counts the samples itself."""
    seen = 0

    def size(step: int, last: int) -> int:
        nonlocal seen
        seen += last
        return round(_SMALLEST + (_LARGEST - _SMALLEST) * min(2 * seen / args.samples, 1.0))

    return size


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Runs the comparison.

    Args:
        args: The command line.

    Returns:
        All figures as plain data.
    """
    names = [FIXED, GROWING, FOUND, EXTENSION]
    seconds: dict[str, list[float]] = {name: [] for name in names}
    steps: dict[str, int] = {}
    clock = time.perf_counter if args.device == "cuda" else time.process_time
    for number in range(args.rounds):
        for name in rotated(names, number):
            with tempfile.TemporaryDirectory() as folder:
                trainer = _new_trainer(name, args, folder)
                trainer.remove_callback(PrinterCallback)
                started = clock()
                trainer.train()
                seconds[name].append(clock() - started)
                steps[name] = trainer.state.global_step
    return {
        "seconds": {name: spread(own) for name, own in seconds.items()},
        "steps": steps,
        "ratio": {name: paired_ratio(own, seconds[FIXED]) for name, own in seconds.items() if name != FIXED},
    }


def _show(args: argparse.Namespace, figures: dict[str, Any]) -> None:
    rows = []
    for name, times in figures["seconds"].items():
        ratio = figures["ratio"].get(name)
        cells = [f"{ratio['median']:.3f}", f"{ratio['low']:.3f} to {ratio['high']:.3f}"] if ratio else ["1", ""]
        rows.append([name, str(figures["steps"][name]), f"{times['median']:.2f}", *cells])
    title = f"{args.samples} samples of {args.length} tokens, batch {_SMALLEST} to {_LARGEST}, on {args.device}"
    show(title, ["", "steps", "seconds", f"over {FIXED}", "95 % interval"], rows)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", help="where all figures are written")
    parser.add_argument("--quick", action="store_true", help="few samples and one round, for a test")
    parser.add_argument("--samples", type=int, default=2048)
    parser.add_argument("--length", type=int, default=16, help="tokens of a sample")
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--vocabulary", type=int, default=512)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=8, help="multiples of 4 balance the order")
    args = parser.parse_args(argv)
    args.model = "llama"
    if args.quick:
        args.samples, args.rounds = 512, 1
    return args


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the benchmark, prints the table and writes the figures.

    Args:
        argv: Command line; `None` takes the process's own.
    """
    args = _arguments(argv)
    logging.set_verbosity_error()
    torch.set_num_threads(1)
    figures = measure(args)
    _show(args, figures)
    write_json(args.json, {"arguments": vars(args), **figures})
