"""Classifiers of several kinds, and tasks for them."""

from typing import Any

import numpy as np
import torch
import transformers as hf
from torch import Tensor, nn

from tasks.mlp import MLPConfig, MLPForImageClassification
from tasks.sources import Arrays
from tasks.task import Scenario, Task, TaskSequence

SIZES = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
CLASSIFIERS = ["mlp", "bert", "gpt2", "vit", "plain"]
LAYERS = {"mlp": "head", "bert": "classifier", "gpt2": "score", "vit": "classifier", "plain": "out"}


class Plain(nn.Module):
    """A module of its own, with no configuration and no knowledge of its classes."""

    def __init__(self, num_outputs: int = 3, bias: bool = True, body: nn.Module | None = None, width: int = 6):
        super().__init__()
        self.body = nn.Identity() if body is None else body
        self.out = nn.Linear(width, num_outputs, bias=bias)

    def forward(self, pixel_values: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.out(self.body(pixel_values))
        return {"logits": logits} | ({} if labels is None else {"loss": nn.functional.cross_entropy(logits, labels)})


def classifier(kind: str, num_labels: int = 3, seed: int = 0, **changes: Any) -> Any:
    torch.manual_seed(seed)
    if kind == "plain":
        return Plain(num_labels)
    if kind == "mlp":
        return MLPForImageClassification(MLPConfig(6, [8], **{"num_labels": num_labels, **changes}))
    if kind == "bert":
        dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        options = {"vocab_size": 20, "max_position_embeddings": 8, "num_labels": num_labels, **changes}
        return hf.BertForSequenceClassification(hf.BertConfig(**{**SIZES, **dropout, **options}))
    if kind == "vit":
        config = hf.ViTConfig(**SIZES, image_size=4, patch_size=2, num_channels=1, num_labels=num_labels, **changes)
        return hf.ViTForImageClassification(config)
    dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "pad_token_id": 0}
    sizes = {"vocab_size": 20, "n_positions": 8, "n_embd": 8, "n_layer": 1, "n_head": 2, "num_labels": num_labels}
    return hf.GPT2ForSequenceClassification(hf.GPT2Config(**{**sizes, **dropout, **changes}))


def inputs_of(kind: str, num_rows: int, seed: int = 1) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    if kind in ("bert", "gpt2"):
        ids = torch.randint(1, 20, (num_rows, 5), generator=generator)
        lengths = torch.randint(2, 6, (num_rows, 1), generator=generator)
        mask = (torch.arange(5) < lengths).long()
        return {"input_ids": ids * mask, "attention_mask": mask}
    shape = (num_rows, 1, 4, 4) if kind == "vit" else (num_rows, 6)
    return {"pixel_values": torch.randn(*shape, generator=generator)}


def tasks_of(*groups: tuple[int, ...], scenario: Scenario = "class", rows: int = 12) -> TaskSequence:
    """One task of each group of classes."""
    tasks = []
    for number, group in enumerate(groups):
        random = np.random.default_rng(number)
        data = Arrays(random.normal(size=(rows, 6)).astype(np.float32), np.resize(np.array(group), rows))
        tasks.append(Task(f"task_{number + 1}", data, data))
    return TaskSequence(tuple(tasks), scenario)
