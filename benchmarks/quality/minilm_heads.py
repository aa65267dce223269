"""The upper layers of a pre-trained encoder with a head for each task, or with one for all.

The features of a text are the mean of its tokens. Two texts are read one by one, and the features of the pair are how
close theirs are, so that a head for pairs is as one for texts.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import SequenceClassifierOutput

from benchmarks.continual.pretrained import UpperEncoder
from mixer import Head
from mixer.models.heads import HeadModule

_MEAN_DISTANCE = 0.25  # of a feature of two requests before training: those that are closer have features above 0


class TextsAndPairs(UpperEncoder):
    """The upper layers for texts, and for pairs of them."""

    def forward(self, hidden: Tensor, attention_mask: Tensor) -> Tensor:
        """Gives features, `[num_rows, width]`.

        Args:
            hidden: `[num_rows, 2, length, width]`: what the frozen layers gave of one text, or of two.
            attention_mask: `[num_rows, 2, length]`: 0 everywhere for a second text that is not there.
        """
        is_there = attention_mask.any(dim=-1)
        features = hidden.new_zeros((*is_there.shape, self.width), dtype=torch.float32)
        features[is_there] = super().forward(hidden[is_there], attention_mask[is_there])
        first, second = features.unbind(dim=1)
        return torch.where(is_there[:, 1:], _MEAN_DISTANCE - (first - second).abs(), first)


class HeadByTask(nn.Module):
    """The encoder with a head for each task; `MixingTrainer` says the task of every micro-batch.

    Args:
        heads: Number of classes by task.
    """

    def __init__(self, heads: Mapping[str, int]):
        super().__init__()
        self.encoder = TextsAndPairs()
        self.heads = nn.ModuleDict(
            {name: HeadModule(Head(num_labels), self.encoder.width) for name, num_labels in heads.items()}
        )

    def forward(
        self, task: str, hidden: Tensor, attention_mask: Tensor, labels: Tensor | None = None
    ) -> SequenceClassifierOutput:
        """Classifies by the head of a task; see `TextsAndPairs`."""
        head: Any = self.heads[task]
        logits = head(self.encoder(hidden, attention_mask).unsqueeze(1))
        return SequenceClassifierOutput(loss=None if labels is None else head.loss(logits, labels), logits=logits)


class OneHead(nn.Module):
    """The encoder with one head, in which the classes of all tasks compete.

    Args:
        num_labels: Number of classes of all tasks.
    """

    def __init__(self, num_labels: int):
        super().__init__()
        self.encoder = TextsAndPairs()
        self.head = HeadModule(Head(num_labels), self.encoder.width)

    def forward(self, hidden: Tensor, attention_mask: Tensor, labels: Tensor | None = None) -> SequenceClassifierOutput:
        """Classifies; see `TextsAndPairs`."""
        logits = self.head(self.encoder(hidden, attention_mask).unsqueeze(1))
        return SequenceClassifierOutput(loss=None if labels is None else self.head.loss(logits, labels), logits=logits)
