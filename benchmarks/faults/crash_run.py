"""The run that `benchmarks.faults.crash` kills and launches again.

`python -m benchmarks.faults.crash_run FOLDER`, or by torchrun. It goes on from the newest whole checkpoint in the
folder, or starts anew, and notes in `events.txt` how far it is.
"""

import argparse
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, TrainerCallback, TrainingArguments, default_data_collator

from mixer import LossChange, MixingTrainer

EVENTS, END = "events.txt", "end.pt"
_VOCABULARY, _LENGTH = 512, 64
_MASK_SHARE = 0.05


class Rows(Dataset[dict[str, Tensor]]):
    """Random tokens of a part of the vocabulary.

    Args:
        num_samples: How many rows.
        seed: Seed of the tokens.
    """

    def __init__(self, num_samples: int, seed: int):
        generator = torch.Generator().manual_seed(seed)
        self._rows = torch.randint(1, _VOCABULARY >> seed, (num_samples, _LENGTH), generator=generator)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_ids": self._rows[index], "labels": self._rows[index]}


def masked(samples: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Collates, and masks random tokens.

    Args:
        samples: The samples.

    Returns:
        The batch.
    """
    batch: dict[str, Tensor] = default_data_collator(samples)
    batch["input_ids"] = torch.where(torch.rand(batch["input_ids"].shape) < _MASK_SHARE, 0, batch["input_ids"])
    return batch


class Events:
    """Notes of the main process, each on the disk's side of the process at once, so that a kill does not lose it.

    Args:
        folder: Where they are kept.
    """

    def __init__(self, folder: Path):
        folder.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(folder / EVENTS, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(self, kind: str, step: int) -> None:
        """Notes an event.

        Args:
            kind: What happened.
            step: The step after which it did.
        """
        os.write(self._descriptor, f"{kind} {step} {time.time()}\n".encode())


class NotingTrainer(MixingTrainer):
    """Notes when it writes a checkpoint."""

    events: Events | None = None

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        if self.events is not None:
            self.events.note("writes", self.state.global_step)
        super()._save_checkpoint(*args, **kwargs)
        if self.events is not None:
            self.events.note("written", self.state.global_step)


class _Noting(TrainerCallback):
    def __init__(self, events: Events):
        self._events = events

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._events.note("begin", state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._events.note("step", state.global_step)


def build(folder: Path, num_steps: int, num_workers: int) -> NotingTrainer:
    """Builds the trainer: an adaptive policy, dropout, a collator that draws, evaluation within and at epochs' ends.

    Args:
        folder: The output folder.
        num_steps: Number of steps.
        num_workers: Worker processes that load samples.

    Returns:
        The trainer.
    """
    config = LlamaConfig(
        vocab_size=_VOCABULARY,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        attention_dropout=0.1,
        pad_token_id=0,
    )
    args = TrainingArguments(
        output_dir=str(folder),
        max_steps=num_steps,
        per_device_train_batch_size=4,
        learning_rate=1e-3,
        logging_steps=7,
        eval_strategy="steps",
        eval_steps=20,
        save_strategy="steps",
        save_steps=5,
        save_total_limit=2,
        dataloader_num_workers=num_workers,
        ddp_find_unused_parameters=False,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        seed=0,
    )
    torch.manual_seed(0)
    trainer = NotingTrainer(
        LlamaForCausalLM(config),
        args,
        train_dataset={name: Rows(160 << seed, seed) for seed, name in enumerate("abc")},
        eval_dataset={name: Rows(8, seed) for seed, name in enumerate("abc")},
        mixing=LossChange(num_warmup_observations=2),
        batch_size=10,
        data_collator=masked,
    )
    if trainer.is_world_process_zero():
        trainer.events = Events(folder)
        trainer.add_callback(_Noting(trainer.events))
    return trainer


def main(argv: Sequence[str] | None = None) -> None:
    """Trains to the end and saves what is compared.

    Args:
        argv: Command line; `None` takes the process's own.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--workers", type=int, default=0)
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    trainer = build(args.folder, args.steps, args.workers)
    trainer.train(resume_from_checkpoint=trainer.newest_checkpoint())
    if trainer.is_world_process_zero():
        end = {
            "weights": trainer.accelerator.unwrap_model(trainer.model).state_dict(),
            "optimizer": trainer.optimizer.state_dict()["state"],
            "logs": trainer.state.log_history,
        }
        torch.save(end, args.folder / END)
    trainer.accelerator.wait_for_everyone()
    trainer.accelerator.end_training()


if __name__ == "__main__":
    main()
