"""Domains of text for a small byte-level Llama that has read a fifth one before.

Python, C++, Wikipedia and Shakespeare come as blocks of 64 bytes, the first of which is the start token 0, as nowhere
else. The Llama has 0.35 million parameters. It begins with 300 steps of all its parameters on English docstrings, once
a seed: that base is kept in the folder of the results, its time is not counted, and every method starts from it.
"""

from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import load_file, save
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, PrinterCallback, Trainer, TrainingArguments, set_seed

from benchmarks.common import QUIET
from benchmarks.quality.cache import write_whole
from benchmarks.quality.data import PARTS, Splits, blocks
from tasks.sequences import from_data_sets
from tasks.task import TaskSequence
from tasks.text_domains import ByteBlocks

DOMAINS = ("python", "cpp", "wikipedia", "shakespeare")
BATCH = 32
TRAINING: dict[str, Any] = {
    "optim": "adamw_torch",
    "learning_rate": 1e-3,
    "adam_beta2": 0.95,
    "lr_scheduler_type": "cosine",
    "warmup_steps": 10,
    "max_grad_norm": 1.0,
}
_BASE, _BASE_STEPS, _BASE_RATE = "english", 300, 3e-3
_START, _LENGTH, _NUM_BLOCKS = 0, 64, 150 * BATCH


def _parts(name: str, folder: Path | None = None) -> Splits:
    found = blocks(name, folder and str(folder), num_samples=_NUM_BLOCKS, length=_LENGTH - 1)
    return {part: _begun(found[part]) for part in PARTS}


def _begun(dataset: Dataset[Any]) -> ByteBlocks:
    assert isinstance(dataset, ByteBlocks)
    return ByteBlocks(np.pad(dataset.blocks.numpy(), ((0, 0), (1, 0)), constant_values=_START))


def sequence(folder: Path, seed: int) -> TaskSequence:
    """Reads the tasks.

    Args:
        folder: The data's folder.
        seed: Changes nothing: which text is held out is fixed.

    Returns:
        A task a domain.
    """
    parts = {name: _parts(name, folder) for name in DOMAINS}
    return from_data_sets({name: (own["train"], own["test"]) for name, own in parts.items()}, "domain")


def model(seed: int, folder: Path, num_steps: int = _BASE_STEPS) -> LlamaForCausalLM:
    """Makes the base, or reads what an earlier run made.

    Args:
        seed: Seed of the weights and of the order.
        folder: Where it is kept.
        num_steps: Steps of its training.

    Returns:
        The model.
    """
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=96,
        intermediate_size=224,
        num_hidden_layers=3,
        num_attention_heads=4,
        max_position_embeddings=_LENGTH,
        bos_token_id=_START,
        eos_token_id=None,
        pad_token_id=None,
    )
    path = folder / f"text-base-{num_steps}-{seed}.safetensors"
    made = LlamaForCausalLM(config)
    if not path.is_file():
        args = TrainingArguments(
            str(folder),
            seed=seed,
            max_steps=num_steps,
            per_device_train_batch_size=BATCH,
            **{**TRAINING, "learning_rate": _BASE_RATE},
            **QUIET,
        )
        trainer = Trainer(made, args, train_dataset=_parts(_BASE)["train"])
        trainer.remove_callback(PrinterCallback)
        trainer.train()
        write_whole(path, save(made.state_dict()))
    made.load_state_dict(load_file(path))
    set_seed(seed)  # what comes next does not depend on whether it was there
    return made
