"""The run into which faults are injected: two streams, a replay buffer on disk, an adaptive policy, dropout, masking.

It takes a second or two, so that hundreds of faults fit into minutes. What a rank is told is a `Start`; a fault that
works inside of the ranks changes the `Parts` before the trainer is built.
"""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, TrainerCallback, set_seed

from benchmarks.faults.notes import END, Events, NotingTrainer, masked
from mixer import MixingConfig
from mixer.schedules import Ramp
from replay import OnDisk, ReplayBuffer, ReplayRatio

NUM_STEPS, SAVE_STEPS = 12, 3
MARK = 64  # a token that no sample has
LENGTHS = {"a": 60, "b": 40}  # samples of the streams
_LENGTH = 16
_TRAINING = {
    "max_steps": NUM_STEPS,
    "per_device_train_batch_size": 4,
    "learning_rate": 1e-2,
    "logging_steps": 2,
    "eval_strategy": "steps",
    "eval_steps": 4,
    "save_strategy": "steps",
    "save_steps": SAVE_STEPS,
    "save_total_limit": 2,
    # Else the first step of a process has its gradients in another order than those after it, and adds them up over
    # more than two ranks with another rounding: a run that is resumed would differ in the last digits.
    "ddp_find_unused_parameters": True,
    "report_to": "none",
    "disable_tqdm": True,
    "use_cpu": True,
    "seed": 0,
}


@dataclass(frozen=True)
class Start:
    """One start of the ranks: what they are to do.

    Args:
        case: The case's folder: `disk` in it holds all that the run writes, beside it stand notes, consoles, the end.
        inside: The fault inside of the ranks: changes their `Parts` by the start and the rank.
        fault: Its numbers, such as the `step`, drawn from the seed.
        resume: The checkpoint to go on from; `"newest"` for the newest, if there is one.
        num_workers: Worker processes a rank.
        timeout_seconds: How long ranks wait for each other.
        stops_at: After which step all processes end at once, to leave the folder of a run that was cut short.
    """

    case: str
    inside: Callable[..., None] | None = None
    fault: dict[str, Any] = field(default_factory=dict)
    resume: str | None = None
    num_workers: int = 0
    timeout_seconds: int = 60
    stops_at: int | None = None

    @property
    def output(self) -> Path:
        """The output folder of the run."""
        return Path(self.case) / "disk" / "run"

    @property
    def memory(self) -> Path:
        """The folder of the replay buffer."""
        return Path(self.case) / "disk" / "memory"


@dataclass
class Parts:
    """What the trainer is made of.

    Args:
        streams: The data sets by name.
        mixing: The policy.
        batch_size: The schedule.
        training: Options of `MixingConfig`.
        options: Options of `MixingTrainer`.
        callbacks: Callbacks.
        model: The model.
    """

    streams: dict[str, Any]
    mixing: Any
    batch_size: Any
    training: dict[str, Any]
    options: dict[str, Any]
    callbacks: list[TrainerCallback]
    model: LlamaForCausalLM


class Rows(Dataset[dict[str, Tensor]]):
    """Random tokens of a part of the vocabulary; what a fault changes of them is no other kind of data set.

    Args:
        num_samples: How many rows.
        seed: Seed of the tokens.
    """

    def __init__(self, num_samples: int, seed: int):
        generator = torch.Generator().manual_seed(seed)
        self.rows = torch.randint(1, MARK >> seed, (num_samples, _LENGTH), generator=generator)
        self.change: Callable[[int, dict[str, Tensor]], Any] = lambda index, row: row
        self.length = lambda: len(self.rows)

    def __len__(self) -> int:
        return self.length()

    def __getitem__(self, index: int) -> Any:
        if index >= self.length():
            raise IndexError(f"index {index} is out of range of {self.length()} rows")
        row = self.rows[index % len(self.rows)]
        return self.change(index, {"input_ids": row, "labels": row})


class _Noting(TrainerCallback):
    """Notes each step, and cuts the run short."""

    def __init__(self, events: Events | None, stops_at: int | None):
        self._events, self._stops_at = events, stops_at

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._events is not None:
            self._events.note("begin", state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._events is not None:
            self._events.note("step", state.global_step)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self._stops_at:
            torch.distributed.barrier()
            os._exit(0)


def parts_of(start: Start) -> Parts:
    """Gives the parts of the undisturbed run.

    Args:
        start: What the ranks are to do.

    Returns:
        The parts.
    """
    set_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=MARK + 1, **sizes, num_key_value_heads=2, attention_dropout=0.1, pad_token_id=0)
    memory = ReplayBuffer(16, storage=OnDisk(start.memory, rows_per_segment=8))
    return Parts(
        streams={name: Rows(length, seed) for seed, (name, length) in enumerate(LENGTHS.items())} | {"memory": memory},
        mixing=ReplayRatio(0.25, "LossChange"),
        batch_size=Ramp(12, 0.5, unit="progress", initial=8),
        training={
            **_TRAINING,
            "output_dir": str(start.output),
            "dataloader_num_workers": start.num_workers,
            "ddp_timeout": start.timeout_seconds,
        },
        options={"eval_dataset": {name: Rows(4, seed) for seed, name in enumerate("ab")}, "data_collator": masked},
        callbacks=[],
        model=LlamaForCausalLM(config),
    )


def train(start: Start, parts: Parts) -> None:
    """Trains to the end and saves what is compared.

    Args:
        start: What the ranks are to do.
        parts: What the trainer is made of.
    """
    trainer = NotingTrainer(
        parts.model,
        MixingConfig(**parts.training),
        train_dataset=parts.streams,
        mixing=parts.mixing,
        batch_size=parts.batch_size,
        callbacks=parts.callbacks,
        **parts.options,
    )
    if trainer.is_world_process_zero():
        trainer.events = Events(Path(start.case))
    trainer.add_callback(_Noting(trainer.events, start.stops_at))
    resume = trainer.newest_checkpoint() if start.resume == "newest" else start.resume
    if start.resume and resume is None and trainer.is_world_process_zero():
        # A buffer on disk is not taken for one that begins: who starts a run anew removes what an earlier one left.
        shutil.rmtree(start.memory, ignore_errors=True)
    if start.resume:
        trainer.accelerator.wait_for_everyone()
    trainer.train(resume_from_checkpoint=resume)
    if trainer.is_world_process_zero() and trainer.state.global_step >= NUM_STEPS:
        end = {
            "weights": trainer.accelerator.unwrap_model(trainer.model).state_dict(),
            "optimizer": trainer.optimizer.state_dict()["state"],
            "logs": trainer.state.log_history,
        }
        torch.save(end, Path(start.case) / END)
    trainer.accelerator.wait_for_everyone()
