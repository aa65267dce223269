"""What `mixing="auto"` costs over uniform mixing, the measurements of the objective's targets included.

Run `python -m benchmarks targets`. Two trainers of the same model go in turns, through the whole of a run: the first
steps are measured more often than the later ones. Targets are data sets outside of the streams, which is the dearest
case; the streams are alike, so that neither trainer has shorter samples. Time is that of the processor.

*Operations* are those that steps 11 to 74 give to a GPU, views left out, over those of uniform mixing; they are counted
on any device, in mixed precision with bf16, of a Llama of twelve small layers. A GPU that has less work in an operation
than the host needs to launch it takes as long as their number says; an operation on a list of tensors counts once.
*Read* are the numbers that the host reads from tensors one by one at a measurement, beyond those of a plain step: on a
GPU it waits for each.
"""

import argparse
import tempfile
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, PrinterCallback, Trainer, TrainerCallback, TrainingArguments
from transformers.utils import logging

from benchmarks.common import QUIET, new_parser, show, write_json
from benchmarks.speed.probe import Operations
from benchmarks.turns import take_turns
from mixer import MixingTrainer

UNIFORM, AUTO = "Uniform", "auto"
_EARLY_STEPS = 256  # of a run, in which measurements take a larger share of the work
_COUNTED_STEPS, _PLAIN_STEPS = range(11, 75), 14
_VOCABULARY, _LENGTH, _BATCH, _NUM_ROWS = 1_024, 64, 16, 512


class _Counting(TrainerCallback):
    """Counts the operations of each step, and the numbers that are read; ends the run after some steps."""

    def __init__(self, num_steps: int):
        self.operations, self.read = list[int](), list[int]()
        self._num_steps, self.mode = num_steps, Operations()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Takes the counts of a step."""
        self.operations.append(self.mode.count)
        self.read.append(self.mode.num_read)
        self.mode.count = self.mode.num_read = 0
        control.should_training_stop = state.global_step >= self._num_steps


class _Rows(Dataset[dict[str, Tensor]]):
    """Tokenised samples of random tokens."""

    def __init__(self, seed: int):
        self.rows = torch.randint(_VOCABULARY, (_NUM_ROWS, _LENGTH), generator=torch.Generator().manual_seed(seed))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


def _trainer(args: argparse.Namespace, folder: str, mixing: str, num_streams: int, num_targets: int) -> Trainer:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=_VOCABULARY,
        hidden_size=args.hidden,
        intermediate_size=args.hidden * 3,
        num_hidden_layers=args.layers,
        num_attention_heads=4,
        max_position_embeddings=_LENGTH,
        use_cache=False,
    )
    options = {**QUIET, "logging_strategy": "steps", "logging_steps": 50, "learning_rate": 1e-3, "max_steps": 10_000}
    options["bf16"] = args.bf16
    training = TrainingArguments(f"{folder}/{mixing}", per_device_train_batch_size=_BATCH, **options)
    targets = [f"target{j}" for j in range(num_targets)]
    trainer = MixingTrainer(
        LlamaForCausalLM(config),
        training,
        train_dataset={f"stream{k}": _Rows(k) for k in range(num_streams)},
        eval_dataset={name: _Rows(1_000 + j) for j, name in enumerate(targets)},
        objective=targets,
        mixing=mixing,
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def measure(args: argparse.Namespace, num_streams: int, num_targets: int) -> dict[str, Any]:
    """Runs one comparison.

    Args:
        args: The command line.
        num_streams: Number of streams.
        num_targets: Number of targets.

    Returns:
        Time over uniform mixing's: of the early steps, of the later ones and of all, and the milliseconds a step.
    """
    with tempfile.TemporaryDirectory() as folder:
        trainers = {name: _trainer(args, folder, name, num_streams, num_targets) for name in (UNIFORM, AUTO)}
        rounds = take_turns(
            trainers,
            dict.fromkeys(trainers, 1),
            args.steps // args.block,
            args.block,
            args.threads,
            time.thread_time,
        )
    times = {name: np.array(own) for name, own in rounds.items()}
    is_early = np.arange(1, len(times[AUTO]) + 1) * args.block <= _EARLY_STEPS
    parts = {"early": is_early, "late": ~is_early, "all": np.ones_like(is_early)}
    ratios = {name: float(times[AUTO][own].sum() / times[UNIFORM][own].sum()) for name, own in parts.items()}
    return {"streams": num_streams, "targets": num_targets, **ratios, "rounds": rounds}


def operations(args: argparse.Namespace, num_streams: int, num_targets: int) -> dict[str, float]:
    """Counts the operations of the steps in which most is measured.

    Args:
        args: The command line.
        num_streams: Number of streams.
        num_targets: Number of targets.

    Returns:
        Operations of a plain step, those of the counted steps over those of as many plain ones, how many of them are
        measured, and the numbers read at a measurement.
    """
    small = argparse.Namespace(**{**vars(args), "layers": args.counted_layers, "hidden": 8, "bf16": True})
    counts = {}
    for name, num_steps in ((UNIFORM, _PLAIN_STEPS), (AUTO, _COUNTED_STEPS[-1])):
        counts[name] = _Counting(num_steps)
        with tempfile.TemporaryDirectory() as folder:
            trainer = _trainer(small, folder, name, num_streams, num_targets)
            trainer.add_callback(counts[name])
            with counts[name].mode:
                trainer.train()
    plain, read = (float(np.median(own[2:])) for own in (counts[UNIFORM].operations, counts[UNIFORM].read))
    steps = slice(_COUNTED_STEPS[0] - 1, _COUNTED_STEPS[-1])
    rows = np.array([counts[AUTO].operations, counts[AUTO].read], dtype=np.float64)[:, steps] - [[plain], [read]]
    is_measured = rows[0] > plain / 10
    return {
        "plain": plain,
        "over_plain": 1.0 + float(rows[0].sum()) / plain / len(_COUNTED_STEPS),
        "measured": int(is_measured.sum()),
        "of_measurement": float(np.median(rows[0][is_measured])) if is_measured.any() else 0.0,
        "read": float(np.median(rows[1][is_measured])) if is_measured.any() else 0.0,
    }


def _show_operations(found: Sequence[dict[str, Any]]) -> None:
    columns = ["streams, targets", "plain step", "steps 11 to 74 over plain", "measured", "a measurement", "read"]
    rows = []
    for own in found:
        counts = own["operations"]
        parts = [f"{counts['plain']:,.0f}", f"{counts['over_plain']:.3f}", str(counts["measured"])]
        parts += [f"{counts['of_measurement']:,.0f}", f"{counts['read']:.0f}"]
        rows.append([f"{own['streams']}, {own['targets']}", *parts])
    show("Operations, of which a GPU's host launches each", columns, rows)


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the benchmark, prints the table and writes the figures.

    Args:
        argv: Command line; `None` takes the process's own.
    """
    parser = new_parser(__doc__)
    parser.add_argument("--streams", type=int, nargs="+", default=[5, 16])
    parser.add_argument("--targets", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--steps", type=int, default=1_024, help="of each trainer; more than 256")
    parser.add_argument("--block", type=int, default=16, help="steps of a turn")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--counted-layers", type=int, default=12, help="of the model whose operations are counted")
    parser.add_argument("--threads", type=int, default=1, help="torch's threads")
    parser.set_defaults(bf16=False)
    args = parser.parse_args(argv)
    if args.quick:
        args.streams, args.targets, args.steps, args.hidden, args.layers = [3], [1], 272, 16, 1
        args.counted_layers = 1
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    cases = [(streams, targets) for streams in args.streams for targets in args.targets]
    found = [{**measure(args, *case), "operations": operations(args, *case)} for case in cases]
    columns = ["streams, targets", f"first {_EARLY_STEPS} steps", "later steps", f"all {args.steps} steps"]
    parts = ("early", "late", "all")
    rows = [[f"{own['streams']}, {own['targets']}", *(f"{own[part]:.3f}" for part in parts)] for own in found]
    show('Processor time of `"auto"` over that of uniform mixing', columns, rows)
    _show_operations(found)
    write_json(args.json, {"arguments": vars(args), "results": found})
