"""What a step of the MixingTrainer costs over one of the plain Trainer, on the same batches.

Run `python -m benchmarks overhead`; on a GPU `--device cuda --dtype bf16 --layers 12 --hidden 768`. The mixture
has three streams, the policy follows their losses. Three trainers go in turns, a block of steps each: ours and two
plain ones, of which the second shows what the comparison of equals gives (A/A). The plain ones are fed exactly the
samples that ours has drawn, in the same order.

After that a MixingTrainer whose batch size changes with every step, and the learning rate with it, goes in turns with
one of constant size: pairs of steps, which have as many samples together.
"""

import argparse
import tempfile
from collections.abc import Iterator, Sequence, Sized
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

from benchmarks.common import paired_ratio, show, spread, write_json
from benchmarks.turns import take_turns
from mixer import MixingTrainer
from mixer.policies import LossChange
from mixer.schedules import Constant, Function, Schedule

OURS, PLAIN, PLAIN_AGAIN = "MixingTrainer", "Trainer", "Trainer again"
CONSTANT, CHANGING = "MixingTrainer, constant size", "MixingTrainer, changing size"
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
_TOLERANCES = {"fp32": 1e-4, "bf16": 1e-2}


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


def new_trainers(args: argparse.Namespace, folder: str) -> dict[str, Trainer]:
    """Builds ours and the plain trainers, on the same samples.

    Args:
        args: The command line.
        folder: Where they may write.

    Returns:
        The trainers by name.
    """
    num_steps = args.warmup + args.rounds * args.block + _LEAD_STEPS + 10
    rows, log = _rows(args, num_steps), []
    together = ConcatDataset([RecordedRows(own, 0, []) for own in rows])

    def plain(name: str) -> Trainer:
        trainer = ReplayTrainer(new_model(args), _training_arguments(args, folder, name), train_dataset=together)
        trainer.sampler = ReplaySampler(log, len(together))
        return trainer

    ours = _mixing_trainer(args, _training_arguments(args, folder, OURS), rows, log, None)
    # Ours comes first: the others read what it has drawn.
    trainers = {OURS: ours, PLAIN: plain(PLAIN), PLAIN_AGAIN: plain(PLAIN_AGAIN)}
    for trainer in trainers.values():
        trainer.remove_callback(PrinterCallback)
    return trainers


def new_resizing_trainers(args: argparse.Namespace, folder: str) -> dict[str, Trainer]:
    """Builds two of ours, one of constant size and one whose size goes up and down by a quarter.

    Args:
        args: The command line.
        folder: Where they may write.

    Returns:
        The trainers by name.
    """
    rows = _rows(args, args.warmup + 2 * args.rounds * args.block + 10)
    sizes = (args.batch - args.batch // 4, args.batch + args.batch // 4)
    schedules: dict[str, Schedule] = {
        CONSTANT: Constant(args.batch),
        CHANGING: Function(lambda step, size: sizes[step % 2], initial=args.batch, learning_rate="sqrt"),
    }
    trainers: dict[str, Trainer] = {}
    for name, schedule in schedules.items():
        # As many micro-batches in either size: what is compared is the change, not the cutting.
        training = _training_arguments(args, folder, name, -(-sizes[1] // args.accumulation), 1)
        trainers[name] = _mixing_trainer(args, training, rows, [], schedule)
        trainers[name].remove_callback(PrinterCallback)
    return trainers


def _rows(args: argparse.Namespace, num_steps: int) -> list[Tensor]:
    """Draws the samples of each stream; they differ in entropy, so that their losses do."""
    generator, shape = torch.Generator().manual_seed(0), (num_steps * args.batch, args.length)
    return [torch.randint(args.vocabulary // 4**k, shape, generator=generator) for k in range(_NUM_STREAMS)]


def _mixing_trainer(
    args: argparse.Namespace,
    training: TrainingArguments,
    rows: Sequence[Tensor],
    log: list[int],
    schedule: Schedule | None,
) -> MixingTrainer:
    streams = {f"stream{k}": RecordedRows(own, k * len(own), log) for k, own in enumerate(rows)}
    policy = LossChange(num_warmup_observations=2)
    return MixingTrainer(new_model(args), training, train_dataset=streams, mixing=policy, batch_size=schedule)


def _training_arguments(
    args: argparse.Namespace, folder: str, name: str, micro_batch: int | None = None, accumulation: int | None = None
) -> TrainingArguments:
    return TrainingArguments(
        output_dir=f"{folder}/{name}",
        per_device_train_batch_size=micro_batch or args.batch // args.accumulation,
        gradient_accumulation_steps=accumulation or args.accumulation,
        max_steps=10_000,
        logging_steps=_LOGGING_STEPS,
        learning_rate=1e-4,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=args.device == "cpu",
        bf16=args.dtype == "bf16",
    )


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
        lead_steps = {name: args.warmup + (args.block + _LEAD_STEPS) * (name == OURS) for name in trainers}
        times = take_turns(trainers, lead_steps, args.rounds, args.block, args.threads)
        difference = loss_difference(trainers[OURS], trainers[PLAIN])
    assert difference < _TOLERANCES[args.dtype], f"the losses differ by {difference:.1e}: not the same batches"
    plain = times[PLAIN]
    return {
        "num_parameters": sum(parameter.numel() for parameter in trainers[PLAIN].model.parameters()),
        "milliseconds_per_step": {name: spread(values) for name, values in times.items()},
        "ratio": paired_ratio(times[OURS], plain),
        "ratio_of_equals": paired_ratio(times[PLAIN_AGAIN], plain),
        "added_milliseconds": spread([own - other for own, other in zip(times[OURS], plain, strict=True)]),
        "largest_loss_difference": difference,
        "changing_size": measure_resizing(args),
        "rounds": times,
    }


def measure_resizing(args: argparse.Namespace) -> dict[str, Any]:
    """Compares a size that changes with every step with a constant one, over as many samples.

    Args:
        args: The command line.

    Returns:
        All figures as plain data.
    """
    with tempfile.TemporaryDirectory() as folder:
        trainers = new_resizing_trainers(args, folder)
        lead_steps = dict.fromkeys(trainers, args.warmup + args.warmup % 2)  # whole pairs of a small and a large step
        times = take_turns(trainers, lead_steps, args.rounds, 2 * args.block, args.threads)
    return {
        "milliseconds_per_sample": {name: spread([t / args.batch for t in own]) for name, own in times.items()},
        "ratio": paired_ratio(times[CHANGING], times[CONSTANT]),
        "rounds": times,
    }


def _show(args: argparse.Namespace, figures: dict[str, Any]) -> None:
    ratios = {OURS: figures["ratio"], PLAIN_AGAIN: figures["ratio_of_equals"]}
    rows = []
    for name, times in figures["milliseconds_per_step"].items():
        ratio = ratios.get(name)
        cells = [f"{ratio['median']:.4f}", f"{ratio['low']:.4f} to {ratio['high']:.4f}"] if ratio else ["1", ""]
        rows.append([name, f"{times['median']:.2f}", f"{times['min']:.2f} to {times['max']:.2f}", *cells])
    millions = figures["num_parameters"] / 1e6
    title = (
        f"{args.model}, {millions:.1f}M parameters, vocabulary {args.vocabulary}, batch {args.batch} x {args.length}, "
        f"{args.device} {args.dtype}, {args.threads} threads; {args.rounds} rounds of {args.block} steps; "
        f"losses agree to {figures['largest_loss_difference']:.1e}"
    )
    show(title, ["", "ms a step", "least to most", "over Trainer", "95 % interval"], rows)
    _show_resizing(figures["changing_size"])


def _show_resizing(figures: dict[str, Any]) -> None:
    ratio, rows = figures["ratio"], []
    for name, times in figures["milliseconds_per_sample"].items():
        cells = ["1", ""]
        if name == CHANGING:
            cells = [f"{ratio['median']:.4f}", f"{ratio['low']:.4f} to {ratio['high']:.4f}"]
        rows.append([name, f"{times['median']:.3f}", f"{times['min']:.3f} to {times['max']:.3f}", *cells])
    title = "A batch size that changes with every step, and the learning rate with it, over as many samples"
    show(title, ["", "ms a sample", "least to most", "over constant size", "95 % interval"], rows)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", help="where all figures are written")
    parser.add_argument("--quick", action="store_true", help="a small model and few rounds, for a test")
    parser.add_argument("--model", choices=("llama", "gpt2"), default="llama")
    parser.add_argument("--vocabulary", type=int, help="default: 8192 for llama, 32000 for gpt2")
    parser.add_argument("--layers", type=int, help="default: 6 for llama, 4 for gpt2")
    parser.add_argument("--hidden", type=int, help="default: 320 for llama, 256 for gpt2")
    parser.add_argument("--length", type=int, default=128, help="tokens of a sample")
    parser.add_argument("--batch", type=int, default=16, help="samples of a step")
    parser.add_argument("--accumulation", type=int, default=1, help="micro-batches of a step")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32", help="bf16 is mixed precision")
    parser.add_argument("--threads", type=int, default=2, help="torch's threads on the CPU")
    parser.add_argument("--rounds", type=int, default=42, help="multiples of 6 balance the order")
    parser.add_argument("--block", type=int, help="steps of a turn; default: 1 on the CPU, 20 on a GPU")
    parser.add_argument("--warmup", type=int, default=5, help="steps that do not count")
    args = parser.parse_args(argv)
    if args.quick:
        args.layers, args.hidden, args.vocabulary, args.rounds, args.warmup = 2, 64, 512, 12, 3
    for name, value in _SHAPES[args.model].items():
        setattr(args, name, getattr(args, name) or value)
    args.block = args.block or (20 if args.device == "cuda" else 1)
    return args


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the benchmark, prints the table and writes the figures.

    Args:
        argv: Command line; `None` takes the process's own.
    """
    args = _arguments(argv)
    logging.set_verbosity_error()
    torch.set_num_threads(args.threads)
    figures = measure(args)
    _show(args, figures)
    write_json(args.json, {"arguments": vars(args), **figures})
