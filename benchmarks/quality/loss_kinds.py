"""The gradient of losses that users write, against that of one process that has the whole batch at once.

    python -m benchmarks loss_kinds        # half a minute

Twelve rows of unequal length, four micro-batches of three: on one process, and on two ranks with two each. Beside it
the Trainer, with as many micro-batches by gradient accumulation.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments

from benchmarks.common import QUIET, hardware, show, write_json
from benchmarks.launching import launch
from benchmarks.quality.losses import ALIKE, LOSSES, padded, ragged, small_model, whole_gradient
from mixer import MixingTrainer

_NUM_ROWS, _PER_DEVICE = 12, 3
_COLUMNS = {
    ("mixer", 1): "MixingTrainer",
    ("mixer", 2): "MixingTrainer, 2 ranks",
    ("trainer", 1): "Trainer",
    ("trainer", 2): "Trainer, 2 ranks",
}


class _Gradient(TrainerCallback):
    """Keeps the gradient of the last step."""

    value: torch.Tensor

    def on_pre_optimizer_step(self, *args: Any, model: nn.Module, **kwargs: Any) -> None:
        self.value = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).clone()


def errors(folder: Path, trainer_name: str) -> dict[str, float]:
    """Measures one of the trainers on the ranks that there are.

    Args:
        folder: Where its runs go.
        trainer_name: `"mixer"` or `"trainer"`.

    Returns:
        For each loss the norm of the difference of the gradients, relative to that of the whole batch.
    """
    rows, found = ragged(_NUM_ROWS, 1), {}
    for name, loss in {**{name: loss for name, (loss, _) in LOSSES.items()}, **ALIKE}.items():
        recorder = _Gradient()
        args = TrainingArguments(
            str(folder), per_device_train_batch_size=_PER_DEVICE, max_steps=1, max_grad_norm=0.0, **QUIET
        )
        args.train_sampling_strategy = "sequential"
        args.remove_unused_columns = False
        common: dict[str, Any] = {
            "model": small_model(),
            "args": args,
            "data_collator": padded,
            "train_dataset": rows,
            "compute_loss_func": loss,
            "callbacks": [recorder],
        }
        if trainer_name == "mixer":
            trainer: Trainer = MixingTrainer(**common, batch_size=_NUM_ROWS)
        else:
            args.gradient_accumulation_steps = _NUM_ROWS // (_PER_DEVICE * args.world_size)
            trainer = Trainer(**common)
        trainer.remove_callback(PrinterCallback)
        trainer.train()
        exact = whole_gradient(loss, rows)
        found[name] = float((recorder.value - exact).norm() / exact.norm())
    if args.process_index == 0:
        (folder / "errors.json").write_text(json.dumps(found))
    return found


def measure(num_ranks: int, trainer_name: str) -> dict[str, float]:
    """Measures one of the trainers on some ranks.

    Args:
        num_ranks: Number of ranks.
        trainer_name: See `errors`.

    Returns:
        See `errors`.
    """
    with tempfile.TemporaryDirectory() as folder:
        if num_ranks == 1:
            return errors(Path(folder), trainer_name)
        launch(num_ranks, ["benchmarks", "loss_kinds", "--rank", trainer_name, folder], 300)
        found: dict[str, float] = json.loads((Path(folder) / "errors.json").read_text())
        return found


def main(arguments: list[str] | None = None) -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="where to write all figures, with the hardware")
    parser.add_argument("--quick", action="store_true", help="one process alone")
    parser.add_argument("--rank", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.rank:
        errors(Path(options.rank[1]), options.rank[0])
        return
    columns = {key: title for key, title in _COLUMNS.items() if key[1] == 1 or not options.quick}
    found = {title: measure(num_ranks, name) for (name, num_ranks), title in columns.items()}
    rows = [[name, *(f"{found[title][name]:.1e}" for title in found)] for name in (*LOSSES, *ALIKE)]
    show("Relative error of the gradient", ["loss", *found], rows)
    write_json(options.json, {"errors": found, "hardware": hardware()})
