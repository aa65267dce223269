"""Prompts of two streams with rewards of their own, and trainers of a tiny model on them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import datasets
import torch
from transformers import TrainerCallback
from trl import GRPOConfig

from mixer.trainer.grpo.trainers import MixingGRPOConfig, MixingGRPOTrainer
from tests.mixer.trainer.trl.cases import WORDS, model_of, tokenizer

OPTIONS: dict[str, Any] = {
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 2,
    "num_generations": 4,
    "max_completion_length": 5,
    "max_steps": 4,
    "learning_rate": 0.01,
    "lr_scheduler_type": "constant",
    "logging_steps": 1,
    "save_strategy": "no",
    "report_to": "none",
    "use_cpu": True,
    "bf16": False,
    "gradient_checkpointing": False,
    "disable_tqdm": True,
}


def prompts(first: int, count: int = 12, column: str = "answer") -> datasets.Dataset:
    words = [WORDS[(first + row) % len(WORDS)] for row in range(count)]
    return datasets.Dataset.from_list([{"prompt": f"{word} w1", column: word} for word in words])


def sets() -> dict[str, datasets.Dataset]:
    return {"a": prompts(0), "b": prompts(20, 24, "wanted")}


def first_half(completions: Sequence[str], answer: Sequence[str], **columns: Any) -> list[float]:
    """The share of words of the first half; of the stream a, which alone has answers."""
    assert set(columns["stream"]) == {"a"}
    assert None not in answer
    return [_share(text, WORDS[:20]) for text in completions]


def second_half(completions: Sequence[str], wanted: Sequence[str], **columns: Any) -> list[float]:
    assert set(columns["stream"]) == {"b"}
    return [_share(text, WORDS[20:]) for text in completions]


async def is_short(completions: Sequence[str], **columns: Any) -> list[float]:
    return [float(len(text.split()) < 4) for text in completions]


def _share(text: str, wanted: Sequence[str]) -> float:
    words = text.split()
    return sum(word in wanted for word in words) / max(len(words), 1)


def any_half(completions: Sequence[str], **columns: Any) -> list[float]:
    return [_share(text, WORDS[:20]) for text in completions]


REWARDS = {"a": [first_half, is_short], "b": [is_short, second_half]}


class Seeded(TrainerCallback):
    """Gives each round the same random numbers, whatever a loader of torch has drawn."""

    def __init__(self, updates: int = 1):
        self._updates = updates

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        torch.manual_seed(state.global_step // self._updates)


def arguments(folder: Path, kind: type[GRPOConfig] = MixingGRPOConfig, **changes: Any) -> Any:
    return kind(str(folder), **{**OPTIONS, **changes})


def mixing_grpo(folder: Path, rewards: Any = None, data: Any = None, **changes: Any) -> Any:
    objects = ("mixing", "methods", "eval_dataset", "callbacks", "rollout_func")
    given = {name: changes.pop(name) for name in objects if name in changes}
    rewards, data = REWARDS if rewards is None else rewards, sets() if data is None else data
    args = arguments(folder, **changes)
    return MixingGRPOTrainer(model_of(), rewards, args, data, processing_class=tokenizer(), **given)


def weights_of(trainer: Any) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in trainer.model.parameters()])
