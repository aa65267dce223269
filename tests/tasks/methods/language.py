"""Continual runs of a tiny language model on three tasks, for the tests of methods."""

from functools import cache
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM

from tasks.task import Task, TaskSequence
from tests.mixer.checkpoint.test_resume import Instants
from tests.tasks.test_continual import build

NUM_TOKENS = 12


class Counting(Dataset[dict[str, torch.Tensor]]):
    """Rows that begin with token 1 and count up by a step of their task; the prompt is what has no label."""

    def __init__(self, step: int, num_samples: int = 16, prompt_length: int = 3):
        ids = (torch.arange(num_samples)[:, None] + step * torch.arange(5)) % (NUM_TOKENS - 2) + 2
        self.ids, self.prompt_length = torch.cat([torch.ones_like(ids[:, :1]), ids], dim=1), prompt_length

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = self.ids[index]
        labels = torch.where(torch.arange(6) < self.prompt_length, -100, ids)
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}


@cache
def counting(prompt_length: int = 3) -> TaskSequence:
    sizes = {"prompt_length": prompt_length}
    tasks = [Task(f"by_{step}", Counting(step, **sizes), Counting(step, 4, **sizes)) for step in (1, 2, 3)]
    return TaskSequence(tuple(tasks), "domain")


def llama(seed: int = 0) -> Any:
    torch.manual_seed(seed)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    tokens: dict[str, Any] = {"vocab_size": NUM_TOKENS, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 0}
    return LlamaForCausalLM(LlamaConfig(**sizes, **tokens, max_position_embeddings=32, num_key_value_heads=2))


def adapted(seed: int = 0, **changes: Any) -> Any:
    """A model with an adapter; another seed gives another adapter on the same model."""
    model, is_half = llama(), changes.pop("is_half", False)
    model = model.bfloat16() if is_half else model
    torch.manual_seed(seed)
    options = {"r": 2, "lora_alpha": 4, "target_modules": ["q_proj", "v_proj"], "task_type": "CAUSAL_LM", **changes}
    return get_peft_model(model, LoraConfig(**options), autocast_adapter_dtype=not is_half)


def run_of(folder: Path, model: Any, methods: Any, instants: Instants | None = None, **changes: Any) -> Any:
    """A run over the three tasks, four steps each."""
    options = {"optim": "adamw_torch", "learning_rate": 0.01, "save_steps": 2, "score": "loss", **changes}
    tasks = counting(options.pop("prompt_length", 3))
    return build(folder, "none, fresh", instants, model=model, sequence=tasks, methods=methods, **options)
