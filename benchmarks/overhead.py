"""What a step of the MixingTrainer costs over one of the plain Trainer, on the same batches.

Run `python -m benchmarks.overhead`; on a GPU `--device cuda --dtype bf16 --layers 12 --hidden 768`. The mixture has
three streams, the policy follows their losses. Three trainers go in turns, a block of steps each: ours and two plain
ones, of which the second shows what the comparison of equals gives (A/A). The plain ones are fed exactly the samples
that ours has drawn, in the same order.
"""

import argparse
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence, Sized
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
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.utils import logging

from benchmarks.common import paired_ratio, rotated, show, spread, write_json
from mixer import MixingTrainer
from mixer.policies import LossChange

OURS, PLAIN, PLAIN_AGAIN = "MixingTrainer", "Trainer", "Trainer again"
_NAMES = (OURS, PLAIN, PLAIN_AGAIN)
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


class Turns(TrainerCallback):
    """Runs a trainer some steps at a time, so that several can take turns in one process.

    Args:
        trainer: The trainer; it runs in a thread of its own, and only while it has its turn.
        prepare: Called at the start of that thread.
        synchronise: Waits until the device has done its work.
    """

    def __init__(self, trainer: Trainer, prepare: Callable[[], None], synchronise: Callable[[], None]):
        self._prepare, self._synchronise, self._train = prepare, synchronise, trainer.train
        self._go, self._done = threading.Semaphore(0), threading.Semaphore(0)
        self._left, self._is_last, self._error = 0, False, None
        self._started = self._seconds = 0.0
        trainer.add_callback(self)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def take(self, num_steps: int) -> float:
        """Has the trainer do some steps.

        Args:
            num_steps: How many.

        Returns:
            Milliseconds a step, all of the training loop included.

        Raises:
            RuntimeError: If training failed or ended.
        """
        self._left = num_steps
        self._hand_over()
        return self._seconds / num_steps * 1e3

    def end(self) -> None:
        """Has the trainer do one more step and finish."""
        self._left, self._is_last = 2, True
        self._hand_over()
        self._thread.join()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Stops the clock after the last step of a turn and waits for the next turn."""
        control.should_training_stop = control.should_training_stop or self._is_last
        self._left -= 1
        if self._left == 0:
            self._synchronise()
            self._seconds = time.perf_counter() - self._started
            self._done.release()
            self._wait()

    def _wait(self) -> None:
        self._go.acquire()
        self._started = time.perf_counter()

    def _hand_over(self) -> None:
        self._go.release()
        self._done.acquire()
        if self._error is not None or (self._left and not self._is_last):
            raise RuntimeError("Training failed or ended before the benchmark did.") from self._error

    def _run(self) -> None:
        self._prepare()
        self._wait()
        try:
            self._train()
        except Exception as error:  # is raised where the turns are given
            self._error = error
        finally:
            self._done.release()


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
    generator, log = torch.Generator().manual_seed(0), []
    shape = (num_steps * args.batch, args.length)
    # The streams differ in entropy, so that their losses do.
    rows = [torch.randint(args.vocabulary // 4**k, shape, generator=generator) for k in range(_NUM_STREAMS)]
    streams = {f"stream{k}": RecordedRows(own, k * len(own), log) for k, own in enumerate(rows)}
    together = ConcatDataset([RecordedRows(own, 0, []) for own in rows])

    def plain(name: str) -> Trainer:
        trainer = ReplayTrainer(new_model(args), _training_arguments(args, folder, name), train_dataset=together)
        trainer.sampler = ReplaySampler(log, len(together))
        return trainer

    policy = LossChange(num_warmup_observations=2)
    ours = MixingTrainer(new_model(args), _training_arguments(args, folder, OURS), train_dataset=streams, mixing=policy)
    trainers = {OURS: ours, PLAIN: plain(PLAIN), PLAIN_AGAIN: plain(PLAIN_AGAIN)}
    for trainer in trainers.values():
        trainer.remove_callback(PrinterCallback)
    return trainers


def _training_arguments(args: argparse.Namespace, folder: str, name: str) -> TrainingArguments:
    return TrainingArguments(
        output_dir=f"{folder}/{name}",
        per_device_train_batch_size=args.batch // args.accumulation,
        gradient_accumulation_steps=args.accumulation,
        max_steps=10_000,
        logging_steps=_LOGGING_STEPS,
        learning_rate=1e-4,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=args.device == "cpu",
        bf16=args.dtype == "bf16",
    )


def take_turns(args: argparse.Namespace, trainers: dict[str, Trainer]) -> dict[str, list[float]]:
    """Has all trainers do their steps, a block each in every round.

    Args:
        args: The command line.
        trainers: The trainers by name.

    Returns:
        Milliseconds a step of each round, by name.
    """
    synchronise = torch.cuda.synchronize if args.device == "cuda" else lambda: None
    turns = {
        name: Turns(trainer, lambda: torch.set_num_threads(args.threads), synchronise)
        for name, trainer in trainers.items()
    }
    for name in _NAMES:  # ours first: the others read what it has drawn
        turns[name].take(args.warmup + (args.block + _LEAD_STEPS if name == OURS else 0))
    times: dict[str, list[float]] = {name: [] for name in _NAMES}
    for number in range(args.rounds):
        for name in rotated(_NAMES, number):
            times[name].append(turns[name].take(args.block))
    for name in _NAMES:
        turns[name].end()
    return times


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
        times = take_turns(args, trainers)
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


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", help="where all figures are written")
    parser.add_argument("--quick", action="store_true", help="a small model and few rounds, for a test")
    parser.add_argument("--model", choices=("llama", "gpt2"), default="llama")
    parser.add_argument("--vocabulary", type=int, help="default: 8192 for llama, 32000 for gpt2")
    parser.add_argument("--layers", type=int, help="default: 6 for llama, 4 for gpt2")
    parser.add_argument("--hidden", type=int, help="default: 320 for llama, 256 for gpt2")
    parser.add_argument("--length", type=int, default=128, help="tokens of a sample")
    parser.add_argument("--batch", type=int, default=16, help="samples of an update")
    parser.add_argument("--accumulation", type=int, default=1, help="micro-batches of an update")
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


if __name__ == "__main__":
    main()
