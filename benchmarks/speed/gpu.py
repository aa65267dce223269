"""On GPUs, in bf16: what a step costs over one of the Trainer, measuring, loading ahead, sharding, and memory.

Run `python -m benchmarks gpu`. Each case is a process of its own, or one for each GPU where there are several:

- *llama-125m*: a step of ours with a policy that looks at nothing (*overhead*), at the streams' losses after each
  step (*losses*), at their gradients in each step (*gradients*), or at a target outside of the streams (*auto*).
  *prefetch* has samples that take time to load, and is compared with a Trainer that has them too;
- *llama-1b* and *llama-1b-lora*: a Llama of the shape of Llama-3.2-1B, trained whole, and by LoRA with gradient
  checkpointing;
- *fsdp2*: the first model, sharded by FSDP2;
- *gradients-125m* and *gradients-1b*: `python -m benchmarks probe` with models of such sizes: the streams' gradients by
  layer, or of micro-batches of one stream, with 2, 4 and 8 streams, with and without the variance.

All contestants of the other cases have the same model and the same samples to draw from, take turns of a block of steps
each, and are compared with the Trainer of the same round. The Trainer is there twice: the second shows what the
comparison of equals gives. Memory is the peak of a run of some steps alone: weights, optimizer, activations and
measurements. A whole run of 1,000 steps is `--rounds 124`, in which `"auto"` is to take at most 1.03.
"""

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, Dataset
from transformers import LlamaConfig, LlamaForCausalLM, PrinterCallback, Trainer, TrainingArguments
from transformers.utils import logging

from benchmarks.common import QUIET, in_words, new_parser, paired_ratio, show, spread, write_json
from benchmarks.turns import take_turns
from mixer import LossChange, MixingTrainer, PiKE, Policy, Uniform

PLAIN, AGAIN, LOADING, AUTO = "Trainer", "Trainer again", "Trainer, loading", "auto"
_POLICIES: dict[str, Policy | str] = {
    "overhead": Uniform(),
    "losses": LossChange(),
    "gradients": PiKE(interval_steps=1),
    AUTO: AUTO,
    "prefetch": Uniform(),
}
_IS_LOADING = {LOADING, "prefetch"}
_NUM_STREAMS = 3
REFUSAL = (
    "python -m benchmarks gpu: torch {version} sees no GPU here (torch.cuda.is_available() is False). Install a build "
    "of torch for its GPU. Without one, python -m benchmarks overhead, probe and data_path measure the "
    "same on a CPU."
)


@dataclass(frozen=True)
class Case:
    """A model, its batch and who trains it.

    Args:
        contestants: The first one is the Trainer that the others are compared with.
        model: Options of the Llama's configuration.
        batch: Samples of a step on each GPU.
        length: Tokens of a sample.
        lora: Whether adapters are trained, with gradient checkpointing, or all weights.
        fsdp: Whether FSDP2 shards the model.
        aims: What a contestant's mean over that of its Trainer is to be at most, in steps 11 to 74.
    """

    contestants: tuple[str, ...]
    model: dict[str, Any]
    batch: int
    length: int
    lora: bool = False
    fsdp: bool = False
    aims: Mapping[str, float] = field(default_factory=dict)


_SMALL = {
    "vocab_size": 32_000,
    "hidden_size": 768,
    "intermediate_size": 2_048,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
}
_LARGE = {
    "vocab_size": 128_256,
    "hidden_size": 2_048,
    "intermediate_size": 8_192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "tie_word_embeddings": True,
}
_TINY = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}
_FEW = (PLAIN, AGAIN, "overhead", AUTO)
CASES = {
    "llama-125m": Case(
        (PLAIN, AGAIN, "overhead", "losses", "gradients", AUTO, LOADING, "prefetch"),
        _SMALL,
        16,
        512,
        aims={"gradients": 1.6, AUTO: 1.15},
    ),
    "llama-1b": Case(_FEW, _LARGE, 4, 1_024, aims={AUTO: 1.05}),
    "llama-1b-lora": Case(_FEW, _LARGE, 4, 1_024, lora=True, aims={AUTO: 1.05}),
    "fsdp2": Case((PLAIN, AGAIN, "overhead", "losses"), _SMALL, 16, 512, fsdp=True),
}
_PROBE = "--device cuda --dtype bf16 --streams 2 4 8 --batch 16 --rounds 8 --block 8 --warmup 8"
PROBES = {
    "gradients-125m": "--vocabulary 32000 --layers 12 --hidden 768 --length 512 --aim 1.6",
    "gradients-1b": "--vocabulary 128256 --layers 16 --hidden 2048 --length 256 --aim 1.25",
}


class Rows(Dataset[dict[str, Tensor]]):
    """Tokenised samples that take some time to load.

    Args:
        rows: int64 `[num_samples, length]`.
        seconds: How long one takes.
    """

    def __init__(self, rows: Tensor, seconds: float = 0.0):
        self._rows, self._seconds = rows, seconds

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        time.sleep(self._seconds)
        return {"input_ids": self._rows[index], "labels": self._rows[index]}


def _case(args: argparse.Namespace) -> Case:
    case = CASES[args.case]
    return replace(case, model=_TINY, batch=6, length=16) if args.quick else case


def _new_model(case: Case, device: str) -> nn.Module:
    torch.manual_seed(0)
    config = LlamaConfig(**case.model, max_position_embeddings=case.length, use_cache=False)
    with torch.device(device):
        model: nn.Module = LlamaForCausalLM(config)
    if case.lora:
        import peft  # an extra

        model = peft.get_peft_model(model, peft.LoraConfig(r=16, target_modules="all-linear", task_type="CAUSAL_LM"))
    return model


def _new_trainer(name: str, args: argparse.Namespace, folder: str, num_steps: int) -> Trainer:
    case, generator, is_loading = _case(args), torch.Generator().manual_seed(0), name in _IS_LOADING
    shape = (_NUM_STREAMS + 1, args.samples // _NUM_STREAMS, case.length)
    *tokens, target = torch.randint(case.model["vocab_size"], shape, generator=generator)
    streams = {f"stream{k}": Rows(own, args.load_ms / 1e3 * is_loading) for k, own in enumerate(tokens)}
    training = TrainingArguments(
        f"{folder}/{name}",
        per_device_train_batch_size=case.batch,
        max_steps=num_steps,
        bf16=True,
        gradient_checkpointing=case.lora,
        dataloader_num_workers=args.workers * is_loading,
        dataloader_persistent_workers=bool(args.workers * is_loading),
        **({"fsdp": True, "fsdp_config": {}} if case.fsdp else {}),
        **{
            **QUIET,
            "use_cpu": args.device == "cpu" and not case.fsdp,
            "logging_strategy": "steps",
            "logging_steps": args.block,
        },
    )
    model = _new_model(case, args.device)
    if name not in _POLICIES:
        return Trainer(model, training, train_dataset=ConcatDataset(list(streams.values())))
    outside: dict[str, Any] = {"eval_dataset": {"target": Rows(target)}, "objective": "target"} if name == AUTO else {}
    return MixingTrainer(model, training, train_dataset=streams, mixing=_POLICIES[name], **outside)


def _peak_bytes(name: str, args: argparse.Namespace, folder: str) -> int:
    """Trains some steps alone; gives the most memory that was allocated, 0 on a CPU."""
    if args.device == "cpu":
        return 0
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    trainer = _new_trainer(name, args, f"{folder}/alone", args.block)
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return torch.cuda.max_memory_allocated()


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Runs the comparison of one case.

    Args:
        args: The command line, with the case.

    Returns:
        All figures as plain data.
    """
    case = _case(args)
    first = {name: LOADING if name in _IS_LOADING else PLAIN for name in case.contestants}
    with tempfile.TemporaryDirectory() as folder:
        peaks = {name: _peak_bytes(name, args, folder) for name in case.contestants}
        trainers = {name: _new_trainer(name, args, folder, 10_000) for name in case.contestants}
        for trainer in trainers.values():
            trainer.remove_callback(PrinterCallback)
        num_parameters = sum(parameter.numel() for parameter in trainers[PLAIN].model.parameters())
        times = take_turns(trainers, dict.fromkeys(trainers, args.warmup), args.rounds, args.block, num_threads=1)
    return {
        "device": torch.cuda.get_device_name() if args.device == "cuda" else "CPU",
        "num_devices": int(os.environ.get("WORLD_SIZE", 1)),
        "num_parameters": num_parameters,
        "milliseconds_per_step": {name: spread(own) for name, own in times.items()},
        "ratio": {name: paired_ratio(times[name], times[of]) for name, of in first.items() if name != of},
        "ratio_of_means": {name: sum(times[name]) / sum(times[of]) for name, of in first.items()},
        "peak_bytes": peaks,
        "rounds": times,
    }


def _show(args: argparse.Namespace, figures: dict[str, Any]) -> None:
    rows, case = [], _case(args)
    for name, times in figures["milliseconds_per_step"].items():
        mean, peak = figures["ratio_of_means"][name], figures["peak_bytes"][name] / 2**20
        ratio = in_words(figures["ratio"].get(name)) or "1"
        aim = case.aims.get(name)
        to_aim = ["", ""] if aim is None else [f"{aim:g}", f"{mean / aim:.2f}"]
        rows.append([name, f"{times['median']:.1f}", ratio, f"{mean:.2f}", *to_aim, f"{peak:,.0f}"])
    title = (
        f"{args.case}: {figures['num_devices']} x {figures['device']}, bf16, {figures['num_parameters'] / 1e6:.0f}M "
        f"parameters, batch {case.batch} x {case.length}; torch {torch.__version__}; {args.rounds} rounds of "
        f"{args.block} steps after {args.warmup}"
    )
    columns = ["", "ms per step", "over its Trainer", "mean of all rounds", "aim: at most", "mean / aim", "peak MiB"]
    show(title, columns, rows)


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Reads the command line.

    Args:
        argv: Command line; `None` takes the process's own.

    Returns:
        The options, for a GPU.
    """
    parser = new_parser(__doc__)
    parser.add_argument("--only", nargs="+", choices=[*CASES, *PROBES], default=[*CASES, *PROBES], help="these cases")
    parser.add_argument("--case", choices=CASES, help="this case, in this process")
    parser.add_argument("--samples", type=int, default=12_000, help="samples of all streams together")
    parser.add_argument("--workers", type=int, default=4, help="workers of those that load")
    parser.add_argument("--load-ms", type=float, default=2.0, help="milliseconds that these take to load a sample")
    parser.add_argument("--rounds", type=int, default=8, help="multiples of twice the contestants balance the order")
    parser.add_argument("--block", type=int, default=8, help="steps of a turn, and of a run for the peak")
    parser.add_argument("--warmup", type=int, default=10, help="steps that do not count")
    args = parser.parse_args(argv)
    if args.quick:
        args.rounds, args.block, args.warmup, args.samples, args.workers = 2, 2, 3, 240, 1
    args.device = "cuda"
    return args


def probe_arguments(name: str, own: Sequence[str]) -> list[str]:
    """Returns the command line of a case of `PROBES`, after `python -m benchmarks`."""
    return ["probe", *_PROBE.split(), *("--quick" if "--quick" in own else PROBES[name]).split()]


def _run_case(name: str, own: Sequence[str], folder: str) -> dict[str, Any]:
    """Runs a case in processes of its own, one for each GPU; gives its figures."""
    launcher = ["torch.distributed.run", "--standalone", f"--nproc_per_node={torch.cuda.device_count()}", "-m"]
    is_launched = name in CASES and (torch.cuda.device_count() > 1 or CASES[name].fsdp)
    benchmark = ["gpu", *own, "--case", name] if name in CASES else probe_arguments(name, own)
    file = Path(folder) / f"{name}.json"
    command = [sys.executable, "-m", *launcher * is_launched, "benchmarks", *benchmark, "--json", str(file)]
    if subprocess.run(command).returncode:
        raise SystemExit(f"python -m benchmarks gpu: the case {name} failed; its error is above.")
    figures: dict[str, Any] = json.loads(file.read_text())
    return figures


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the benchmark, prints the tables and writes the figures.

    Args:
        argv: Command line; `None` takes the process's own.

    Raises:
        SystemExit: If there is no GPU, or a case fails.
    """
    args = arguments(argv)
    if not torch.cuda.is_available():
        raise SystemExit(REFUSAL.format(version=torch.__version__))
    if args.case is None:
        own = sys.argv[1:] if argv is None else list(argv)
        with tempfile.TemporaryDirectory() as folder:
            write_json(args.json, {name: _run_case(name, own, folder) for name in args.only})
        return
    logging.set_verbosity_error()
    figures = measure(args)
    if int(os.environ.get("RANK", 0)) == 0:
        _show(args, figures)
        write_json(args.json, {"arguments": vars(args), **figures})
