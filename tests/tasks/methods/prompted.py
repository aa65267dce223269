"""Continual runs of tiny encoders with prompts, for the tests of methods."""

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import BertConfig, BertForSequenceClassification, ViTConfig, ViTForImageClassification

from tasks.methods import L2P, CODAPrompt, DualPrompt
from tasks.methods.prompts import PromptMethod
from tasks.sequences import from_data_sets
from tasks.sources.arrays import InMemory
from tasks.task import TaskSequence
from tests.mixer.checkpoint.test_resume import Instants
from tests.tasks.test_continual import build

SIZES = {"hidden_size": 12, "intermediate_size": 16, "num_hidden_layers": 3, "num_attention_heads": 3}
DROPOUT = {"hidden_dropout_prob": 0.3, "attention_probs_dropout_prob": 0.3}

METHODS: dict[str, Callable[[], PromptMethod]] = {
    "l2p": lambda: L2P(pool_size=4, top=2, length=2, layers=(0, 2)),
    "dual": lambda: DualPrompt((0,), (1, 2), shared_length=2, length=3),
    "coda": lambda: CODAPrompt(components=3, length=2, layers=(2, 0), weight=5.0),
}


def vit(seed: int = 0, kind: str = "sdpa", **changes: Any) -> Any:
    torch.manual_seed(seed)
    config = ViTConfig(
        **SIZES, **DROPOUT, image_size=4, patch_size=2, num_labels=6, attn_implementation=kind, **changes
    )
    model = ViTForImageClassification(config)
    torch.nn.init.normal_(model.classifier.weight)
    return model


def bert(seed: int = 0, kind: str = "sdpa", **changes: Any) -> Any:
    torch.manual_seed(seed)
    sizes: dict[str, Any] = {"vocab_size": 20, "max_position_embeddings": 8, "initializer_range": 0.3}
    config = BertConfig(**SIZES, **DROPOUT, **sizes, num_labels=6, attn_implementation=kind, **changes)
    return BertForSequenceClassification(config)


def samples(first: int, is_text: bool, count: int = 8) -> InMemory:
    """Samples of two classes: pictures, or words of which one row in two has fewer."""
    generator = torch.Generator().manual_seed(first)
    labels = first + torch.arange(count) % 2
    words, mask = torch.randint(20, (count, 5), generator=generator), torch.ones(count, 5).long()
    mask[::2, 3:] = 0
    pictures = torch.randn(count, 3, 4, 4, generator=generator) + labels[:, None, None, None]
    own = {"input_ids": words, "attention_mask": mask} if is_text else {"pixel_values": pictures}
    return InMemory({**own, "labels": labels.numpy()})


@cache
def tasks(is_text: bool = False) -> TaskSequence:
    data = [samples(2 * number, is_text) for number in range(3)]
    return from_data_sets({f"task_{number}": (own, own) for number, own in enumerate(data)}, "class")


def rows(is_text: bool = False, count: int = 4) -> dict[str, torch.Tensor]:
    """The first samples of the first task."""
    return samples(0, is_text).read_columns(np.arange(count))


def run_of(folder: Path, model: Any, methods: Any, instants: Instants | None = None, **changes: Any) -> Any:
    """A run over three tasks of two classes, three steps each of as many samples on any number of ranks."""
    size = 4 // int(os.environ.get("WORLD_SIZE", "1"))
    options = {"optim": "adamw_torch", "learning_rate": 0.02, "save_steps": 2, "max_steps": 3, "head": "masked"}
    options |= {"sequence": tasks(hasattr(model, "bert")), "per_device_train_batch_size": size, **changes}
    return build(folder, "none, fresh", instants, model=model, methods=methods, **options)


def build_named(folder: Path, name: str, instants: Instants | None = None, seed: int = 0, **changes: Any) -> Any:
    """A run by the names of a model and a method, such as "vit l2p"."""
    model, method = name.split()
    return run_of(folder, {"vit": vit, "bert": bert}[model](seed), [METHODS[method]()], instants, **changes)
