"""What a step of the MixingTrainer costs over one of the plain Trainer, on the same batches.

Run `python -m benchmarks overhead`; on a GPU `python -m benchmarks gpu`. The mixture has three streams, the policy
follows their losses. Three trainers go in turns, step by step: ours and two plain ones, of which the second shows what
the comparison of equals gives (A/A). The plain ones are fed exactly the samples that ours has drawn, in the same order.
"""

import argparse
import tempfile
from collections.abc import Iterator, Mapping, Sequence, Sized
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, Dataset, Sampler
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PrinterCallback,
    Trainer,
    TrainingArguments,
)
from transformers.utils import logging

from benchmarks.common import QUIET, in_words, new_parser, paired_ratio, show, spread, write_json
from benchmarks.turns import take_turns
from mixer import MixingTrainer
from mixer.policies import LossChange

OURS, PLAIN, PLAIN_AGAIN = "MixingTrainer", "Trainer", "Trainer again"
_NUM_STREAMS = 3
# A little over ten million parameters; the large vocabulary is where losses by stream could cost most.
_SHAPES = {
    "llama": {"vocabulary": 8_192, "layers": 6, "hidden": 320},
    "gpt2": {"vocabulary": 32_000, "layers": 4, "hidden": 256},
}
_LOGGING_STEPS = 10
# The plain trainers' loader reads ahead, so ours has to have drawn some batches more.
_LEAD_STEPS = 3
# Relative difference of logged losses that rounding explains; other batches differ by more.
_TOLERANCE = 1e-4


class RecordedRows(Dataset[dict[str, Tensor]]):
    """Tokenised samples that note in which order they are read.

    Args:
        rows: int64 `[num_samples, length]`.
        offset: Number of samples of the data sets before this one.
        log: Where the places of the samples are noted, counted over all data sets.
    """

    def __init__(self, rows: Tensor, offset: int, log: list[int]):
        self.rows, self._offset, self._log = rows, offset, log

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_ids": self.rows[index], "labels": self.rows[index]}

    def __getitems__(self, indices: list[int]) -> list[dict[str, Tensor]]:
        self._log.extend([self._offset + index for index in indices])
        return [self[index] for index in indices]


class ReplaySampler(Sampler[int]):
    """Gives the places that were noted, in that order.

    Args:
        log: The places.
        num_samples: Size of the data sets together.
    """

    def __init__(self, log: list[int], num_samples: int):
        self._log, self._num_samples = log, num_samples

    def __len__(self) -> int:
        return self._num_samples

    def __iter__(self) -> Iterator[int]:
        for position in range(self._num_samples):
            yield self._log[position]


class ReplayTrainer(Trainer):
    """The plain Trainer in the order of another run; only the sampler is another one."""

    sampler: ReplaySampler

    def _get_train_sampler(self, train_dataset: Sized | None = None) -> ReplaySampler:
        return self.sampler


def new_model(args: argparse.Namespace) -> nn.Module:
    """Builds the model, the same at every call.

    Args:
        args: The command line.

    Returns:
        A causal language model with random weights and without dropout.
    """
    torch.manual_seed(0)
    heads = max(1, args.hidden // 64)
    if args.model == "gpt2":
        shape = {"n_embd": args.hidden, "n_layer": args.layers, "n_head": heads, "n_positions": args.length}
        dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        return GPT2LMHeadModel(GPT2Config(vocab_size=args.vocabulary, use_cache=False, **shape, **dropout))
    config = LlamaConfig(
        vocab_size=args.vocabulary,
        hidden_size=args.hidden,
        intermediate_size=args.hidden * 8 // 3 // 32 * 32,
        num_hidden_layers=args.layers,
        num_attention_heads=heads,
        max_position_embeddings=args.length,
        use_cache=False,
    )
    return LlamaForCausalLM(config)


def add_shape(parser: argparse.ArgumentParser, shapes: Mapping[str, Mapping[str, int]]) -> None:
    """Adds the options of a model.

    Args:
        parser: The parser.
        shapes: What each kind of model has where nobody says else.
    """
    parser.add_argument("--model", choices=[*shapes], default="llama")
    for name in ("vocabulary", "layers", "hidden"):
        defaults = ", ".join(f"{own[name]} for {model}" for model, own in shapes.items())
        parser.add_argument(f"--{name}", type=int, help=f"default: {defaults}")
    parser.add_argument("--length", type=int, default=128, help="tokens of a sample")
    parser.add_argument("--threads", type=int, default=2, help="torch's threads")


def set_shape(args: argparse.Namespace, shapes: Mapping[str, Mapping[str, int]]) -> None:
    """Completes the options of a model.

    Args:
        args: The command line; what it leaves out of the model is set, a tiny one if it is quick.
        shapes: As in `add_shape`.
    """
    shape = {"vocabulary": 512, "layers": 1, "hidden": 64} if args.quick else shapes[args.model]
    for name, value in shape.items():
        setattr(args, name, getattr(args, name) or value)
    args.threads = 1 if args.quick else args.threads


def new_trainers(args: argparse.Namespace, folder: str) -> dict[str, Trainer]:
    """Builds ours and the plain trainers, on the same samples.

    Args:
        args: The command line.
        folder: Where they may write.

    Returns:
        The trainers by name.
    """
    rows, log = _rows(args, args.warmup + args.rounds + _LEAD_STEPS + 10), list[int]()
    streams = {f"stream{k}": RecordedRows(own, k * len(own), log) for k, own in enumerate(rows)}
    together = ConcatDataset([RecordedRows(own, 0, []) for own in rows])

    def training(name: str) -> TrainingArguments:
        logs = {"logging_strategy": "steps", "logging_steps": _LOGGING_STEPS}
        options = {**QUIET, **logs, "max_steps": 10_000, "learning_rate": 1e-4}
        return TrainingArguments(f"{folder}/{name}", per_device_train_batch_size=args.batch, **options)

    def plain(name: str) -> Trainer:
        trainer = ReplayTrainer(new_model(args), training(name), train_dataset=together)
        trainer.sampler = ReplaySampler(log, len(together))
        return trainer

    policy = LossChange(num_warmup_observations=2)
    ours = MixingTrainer(new_model(args), training(OURS), train_dataset=streams, mixing=policy)
    # Ours comes first: the others read what it has drawn.
    trainers = {OURS: ours, PLAIN: plain(PLAIN), PLAIN_AGAIN: plain(PLAIN_AGAIN)}
    for trainer in trainers.values():
        trainer.remove_callback(PrinterCallback)
    return trainers


def _rows(args: argparse.Namespace, num_steps: int) -> list[Tensor]:
    """Draws the samples of each stream; they differ in entropy, so that their losses do."""
    generator, shape = torch.Generator().manual_seed(0), (num_steps * args.batch, args.length)
    return [torch.randint(args.vocabulary // 4**k, shape, generator=generator) for k in range(_NUM_STREAMS)]


def loss_difference(ours: Trainer, plain: Trainer) -> float:
    """Compares the logged losses, which are the same if the batches are.

    Args:
        ours: A trainer.
        plain: Another one.

    Returns:
        The largest relative difference over the steps that both have logged.
    """
    logs = [{entry["step"]: entry["loss"] for entry in t.state.log_history if "loss" in entry} for t in (ours, plain)]
    common = sorted(set(logs[0]) & set(logs[1]))
    assert common, "both trainers log a loss"
    return max(abs(logs[0][step] - logs[1][step]) / abs(logs[1][step]) for step in common)


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Runs the comparison.

    Args:
        args: The command line.

    Returns:
        All figures as plain data.
    """
    with tempfile.TemporaryDirectory() as folder:
        trainers = new_trainers(args, folder)
        lead_steps = {name: args.warmup + (1 + _LEAD_STEPS) * (name == OURS) for name in trainers}
        times = take_turns(trainers, lead_steps, args.rounds, 1, args.threads)
        difference = loss_difference(trainers[OURS], trainers[PLAIN])
    assert difference < _TOLERANCE, f"the losses differ by {difference:.1e}: not the same batches"
    return {
        "num_parameters": sum(parameter.numel() for parameter in trainers[PLAIN].model.parameters()),
        "milliseconds_per_step": {name: spread(values) for name, values in times.items()},
        "ratio": {name: paired_ratio(times[name], times[PLAIN]) for name in (OURS, PLAIN_AGAIN)},
        "largest_loss_difference": difference,
        "rounds": times,
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the benchmark, prints the table and writes the figures.

    Args:
        argv: Command line; `None` takes the process's own.
    """
    parser = new_parser(__doc__)
    add_shape(parser, _SHAPES)
    parser.add_argument("--batch", type=int, default=16, help="samples of a step")
    parser.add_argument("--rounds", type=int, default=42, help="multiples of 6 balance the order")
    parser.add_argument("--warmup", type=int, default=5, help="steps that do not count")
    args = parser.parse_args(argv)
    set_shape(args, _SHAPES)
    if args.quick:
        args.rounds = 12
    logging.set_verbosity_error()
    torch.set_num_threads(args.threads)
    figures = measure(args)
    rows = [
        [
            name,
            f"{times['median']:.2f}",
            f"{times['min']:.2f} to {times['max']:.2f}",
            in_words(figures["ratio"].get(name), 4),
        ]
        for name, times in figures["milliseconds_per_step"].items()
    ]
    title = (
        f"{args.model}, {figures['num_parameters'] / 1e6:.1f}M parameters, vocabulary {args.vocabulary}, "
        f"batch {args.batch} x {args.length}, {args.threads} threads; {args.rounds} rounds; "
        f"losses agree to {figures['largest_loss_difference']:.1e}"
    )
    show(title, ["", "ms per step", "least to most", "over Trainer"], rows)
    write_json(args.json, {"arguments": vars(args), **figures})
