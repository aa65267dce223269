"""One step of a tiny model, where every microsecond shows: what MixingTrainer adds to the Trainer's, and where.

Run `python -m benchmarks step`. Trainers with one data set and with three go in turns with the plain Trainer, a block
of steps each. After that each runs alone under a stopwatch that divides its steps into stages. Time is that of the
training thread's processor, which other processes of a busy machine do not take.
"""

import argparse
import functools
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import datasets
import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PrinterCallback, Trainer, TrainerCallback, TrainingArguments
from transformers.utils import logging

from benchmarks.common import show, spread, write_json
from benchmarks.turns import take_turns
from mixer import MixingTrainer

PLAIN = "Trainer"
_NUM_STREAMS = {PLAIN: 0, "one data set": 1, "three data sets": 3}
_VOCABULARY, _LENGTH, _NUM_ROWS = 64, 16, 4_000
_KINDS = ("arrow", "arrow, torch", "tensors")
_REST = "Trainer's loop"
# Which functions belong to a stage; one that another one calls counts for its own stage only.
_STAGES = {
    "load": ("transformers.trainer:Trainer.get_batch_samples",),
    "plan": ("mixer.mixture.controller:Mixing.next_plan",),
    "read": ("mixer.loading.loader:MixingLoader.read",),
    "collate": ("mixer.loading.collate:Collation.collate",),
    "split, name samples": ("mixer.loading.loader:MixingLoader.next_batch",),
    "count items, confirm": ("mixer.trainer.step:StepRunner.load",),
    "forward": ("transformers.trainer:Trainer.compute_loss",),
    "backward": ("accelerate:Accelerator.backward",),
    "losses by stream": (
        "mixer.models.row_losses:RowLossReader.hear",
        "mixer.trainer.micro_batch:MicroBatchTraining._add_losses",
        "mixer.trainer.micro_batch:MicroBatchTraining.train",
    ),
    "hooks, result": ("mixer.trainer.step:StepRunner.train",),
    "clip, optimizer": (
        "transformers.trainer:Trainer._clip_grad_norm",
        "accelerate.optimizer:AcceleratedOptimizer.step",
    ),
    "decide": ("mixer.trainer.step:StepRunner._decide",),
    "ledger": ("mixer.ledger.recorder:Recorder.record", "mixer.ledger.ledger:Ledger.record_timings"),
    "training_step": ("mixer.trainer.micro_batch:MicroBatchTraining.step",),  # watched, the Trainer's would be a user's
    "close": ("mixer.trainer.step:StepRunner.close",),
    "callbacks": ("transformers.trainer_callback:CallbackHandler.call_event",),
}


class Stopwatch(TrainerCallback):
    """Divides the time of each step into stages, by the innermost stage that is under way."""

    def __init__(self) -> None:
        self.steps: list[Counter[str]] = []  # seconds by stage
        self._originals: list[tuple[Any, str, Any]] = []
        self._present: Counter[str] = Counter()
        self._stages, self._since = [_REST], 0.0

    def __enter__(self) -> "Stopwatch":
        for stage, functions in _STAGES.items():
            for function in functions:
                module, _, path = function.partition(":")
                owner, name = path.split(".")
                self._watch(getattr(import_module(module), owner), name, stage)
        return self

    def __exit__(self, *_: object) -> None:
        for owner, name, original in reversed(self._originals):
            setattr(owner, name, original)

    def _watch(self, owner: Any, name: str, stage: str) -> None:
        original: Callable[..., Any] = getattr(owner, name)

        @functools.wraps(original)
        def timed(*args: Any, **kwargs: Any) -> Any:
            self._lap()
            self._stages.append(stage)
            try:
                return original(*args, **kwargs)
            finally:
                self._lap()
                self._stages.pop()

        self._originals.append((owner, name, original))
        setattr(owner, name, timed)

    def _lap(self) -> None:
        now = time.thread_time()
        self._present[self._stages[-1]] += now - self._since  # type: ignore[assignment]  # seconds
        self._since = now

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        """Begins the next step."""
        self._lap()
        self.steps.append(self._present)
        self._present = Counter()


def new_trainer(name: str, kind: str, folder: str, num_steps: int) -> Trainer:
    """Builds a trainer of a tiny Llama.

    Args:
        name: How many data sets it has; see `_NUM_STREAMS`.
        kind: How samples are stored: `"arrow"` (plain lists), `"arrow, torch"` (in that format) or `"tensors"`.
        folder: Where it may write.
        num_steps: Steps of its run.

    Returns:
        The trainer.
    """
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=_VOCABULARY, max_position_embeddings=_LENGTH, use_cache=False, **shape)
    args = TrainingArguments(
        output_dir=f"{folder}/{name}",
        per_device_train_batch_size=8,
        max_steps=num_steps,
        logging_steps=50,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    num_streams = _NUM_STREAMS[name]
    rows = [_rows(kind, seed) for seed in range(max(num_streams, 1))]
    model: Any = LlamaForCausalLM(config)
    if num_streams:
        data = dict(zip("abc", rows, strict=False)) if num_streams > 1 else rows[0]
        trainer: Trainer = MixingTrainer(model, args, train_dataset=data)
    else:
        trainer = Trainer(model, args, train_dataset=rows[0])
    trainer.remove_callback(PrinterCallback)
    return trainer


def _rows(kind: str, seed: int) -> Any:
    tokens = torch.randint(_VOCABULARY, (_NUM_ROWS, _LENGTH), generator=torch.Generator().manual_seed(seed))
    if kind == "tensors":
        return [{"input_ids": row, "labels": row} for row in tokens]
    dataset = datasets.Dataset.from_dict({"input_ids": tokens.tolist(), "labels": tokens.tolist()})
    return dataset.with_format("torch" if "torch" in kind else None)


def added(kind: str, rounds: int, block: int) -> Any:
    """Compares the trainers in turns.

    Args:
        kind: How samples are stored.
        rounds: Number of turns each.
        block: Steps of a turn.

    Returns:
        `milliseconds` a step: the spread of each trainer; `added`: of what it takes more than the Trainer beside it.
    """
    with tempfile.TemporaryDirectory() as folder:
        trainers = {name: new_trainer(name, kind, folder, 10**6) for name in _NUM_STREAMS}
        times = take_turns(trainers, dict.fromkeys(trainers, block), rounds, block, 1, time.thread_time)
    plain = np.array(times[PLAIN])
    more = {name: spread(np.array(own) - plain) for name, own in times.items() if name != PLAIN}
    return {"kind": kind, "milliseconds": {name: spread(own) for name, own in times.items()}, "added": more}


def stages(kind: str, num_steps: int) -> Any:
    """Divides a step into its stages.

    Args:
        kind: How samples are stored.
        num_steps: Steps of each trainer; the first tenth does not count.

    Returns:
        By trainer the median microseconds of each stage.
    """
    found = {}
    for name in _NUM_STREAMS:
        with tempfile.TemporaryDirectory() as folder, Stopwatch() as watch:
            trainer = new_trainer(name, kind, folder, num_steps)
            trainer.add_callback(watch)
            trainer.train()
        steps = watch.steps[num_steps // 10 :]
        parts = {part: [step[part] for step in steps] for part in [*_STAGES, _REST]}
        found[name] = {part: float(np.median(seconds)) * 1e6 for part, seconds in parts.items()}
    return {"kind": kind, "microseconds": found}


def _show(compared: Sequence[Any], divided: Any) -> None:
    rows = []
    for result in compared:
        for name, times in result["milliseconds"].items():
            more = result["added"].get(name)
            cells = [f"{times['median']:.2f}", f"{times['min']:.2f} to {times['max']:.2f}"]
            rows.append([f"{result['kind']}: {name}", *cells, f"{more['median']:+.2f}" if more else ""])
    show("A step of a tiny Llama", ["", "ms", "least to most", "more than the Trainer"], rows)
    parts = divided["microseconds"]
    rows = [[part, *(f"{own[part]:.0f}" if own[part] else "" for own in parts.values())] for part in [*_STAGES, _REST]]
    rows.append(["all", *(f"{sum(own.values()):.0f}" for own in parts.values())])
    show(f"Its stages, microseconds (samples: {divided['kind']})", ["", *parts], rows)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", help="where all figures are written")
    parser.add_argument("--quick", action="store_true", help="few steps, for a test")
    parser.add_argument("--rounds", type=int, default=30, help="multiples of 6 balance the order")
    parser.add_argument("--block", type=int, default=30, help="steps of a turn")
    parser.add_argument("--steps", type=int, default=600, help="of each trainer under the stopwatch")
    args = parser.parse_args(argv)
    if args.quick:
        args.rounds, args.block, args.steps = 2, 5, 20
    return args


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the benchmark, prints the tables and writes the figures.

    Args:
        argv: Command line; `None` takes the process's own.
    """
    args = _arguments(argv)
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    torch.set_num_threads(1)
    compared = [added(kind, args.rounds, args.block) for kind in _KINDS]
    divided = stages(_KINDS[1], args.steps)
    _show(compared, divided)
    write_json(args.json, {"arguments": vars(args), "added": compared, "stages": divided})
