"""What each rank does in the tests of faults in data and decisions: `bad_data_worker.py FOLDER SCENARIO...`."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback, default_data_collator

from mixer import FAMO, MixingTrainer
from tests.helpers import Tokens, arguments, build_model, weights_of
from tests.mixer.trainer.test_skipping import Broken
from tests.ranks.launch import end_with, message_of


class Gone(Tokens):
    """Tokens of which every second cannot be loaded."""

    def __getitem__(self, index: int) -> Any:
        if index % 2:
            raise OSError("gone")
        return super().__getitem__(index)


def _trainer(folder: Path, streams: dict[str, Any] | None = None, **changes: Any) -> MixingTrainer:
    named = ("per_device_train_batch_size", "dataloader_num_workers", "max_steps")
    options = {"per_device_train_batch_size": 2, "max_steps": 12}
    options |= {name: changes.pop(name) for name in named if name in changes}
    data = streams or {"a": Tokens(20, 1), "b": Tokens(12, 2)}
    rules = {"batch_size": 5, **changes}
    return MixingTrainer(build_model("llama"), arguments(folder, **options), train_dataset=data, **rules)


def skipped(folder: Path) -> dict[str, Any]:
    """Weights and counts of runs that leave samples out, in several ways of loading and cutting."""
    ways: dict[str, dict[str, Any]] = {
        "plain": {},
        "workers": {"dataloader_num_workers": 1},
        "tokens": {"max_tokens_per_micro_batch": 30},
        "by_stream": {"mixing": FAMO(), "per_device_train_batch_size": 1},
    }
    results = {}
    for name, changes in ways.items():
        rules = {"on_sample_error": "skip", "max_skipped_share": 0.5, **changes}
        trainer = _trainer(folder / name, {"a": Tokens(20, 1), "b": Broken(12, 2)}, **rules)
        trainer.train()
        results[name] = {"weights": weights_of(trainer.model).tolist(), "skipped": trainer.mixing.skipped.tolist()}
    return results


def too_many(folder: Path) -> str:
    streams = {"a": Tokens(20, 1), "b": Gone(12, 2)}
    return message_of(_trainer(folder, streams, on_sample_error="skip", max_skipped_share=0.2, max_steps=30).train)


def _on_last(give: Callable[[], Any]) -> Callable[[int, Any], Any]:
    """A function that gives nonsense on one rank at step 2."""

    def decide(step: int, last: Any) -> Any:
        return give() if step == 2 and torch.distributed.get_rank() == 1 else last

    return decide


def _raise() -> Any:
    raise ValueError("no idea")


def nonsense(folder: Path) -> dict[str, str]:
    """Policies and schedules that give nonsense on one rank."""
    given: dict[str, Callable[[], Any]] = {"none": lambda: None, "raises": _raise}
    weights = {name: message_of(_trainer(folder, mixing=_on_last(give)).train) for name, give in given.items()}
    given |= {"huge": lambda: 10**12}
    sizes = {
        f"size {name}": message_of(_trainer(folder, batch_size=_on_last(give)).train) for name, give in given.items()
    }
    return weights | sizes


def collator(folder: Path) -> str:
    """A collator that fails on one rank."""

    def collate(samples: list[Any]) -> Any:
        if torch.distributed.get_rank() == 1:
            raise ValueError("cannot pad")
        return default_data_collator(samples)

    return message_of(_trainer(folder, data_collator=collate).train)


class _Fails(TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 2 and args.process_index == 1:
            raise ValueError("callback broke")


def _long(row: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: values.clamp(min=1).repeat(4) for name, values in row.items()}


class Long(Tokens):
    """Tokens of which one sample is longer than the model's positions."""

    def __getitem__(self, index: int) -> Any:
        row = super().__getitem__(index)
        return _long(row) if index == 7 else row


def alone(folder: Path, name: str) -> str:
    """Fails on one rank in the midst of a step, where the others wait for it."""
    if name == "callback":
        return message_of(_trainer(folder, callbacks=[_Fails()]).train)
    args = arguments(folder, per_device_train_batch_size=1, max_steps=9)
    streams = {"a": Tokens(20, 1), "b": Long(12, 2)}
    return message_of(MixingTrainer(build_model("gpt2"), args, train_dataset=streams, batch_size=6).train)


def main() -> None:
    folder, names = Path(sys.argv[1]), sys.argv[2:]
    if names[0] == "alone":  # no collective after it
        message = alone(folder, names[1])
        (folder / f"{names[1]}-{torch.distributed.get_rank()}.txt").write_text(message)
        os._exit(0)  # with its connections, which the other rank waits for
    end_with({name: globals()[name](folder) for name in names}, folder, "results")


if __name__ == "__main__":
    main()
