"""Small runs whose policy keeps what it sees."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from mixer import Decision, MixingTrainer, Mixture, Observation, Policy
from mixer.measurements import Measurement
from tests.helpers import Tokens, arguments, mixing_trainer

KIND = "token-classification"


class Watching(Policy):
    def __init__(self, *needs: Measurement[Any], look: Callable[[Observation], None] | None = None):
        super().__init__()
        self.needs = needs
        self.look = look
        self.seen: list[Observation] = []

    def start(self, mixture: Mixture) -> Decision:
        self.seen = []
        return Decision(mixture.weights)

    def update(self, observation: Observation) -> Decision:
        self.seen.append(observation)
        if self.look is not None:
            self.look(observation)
        return Decision(observation.weights)


class Tagger(nn.Module):
    def __init__(self, seed: int = 0, dropout: float = 0.0, has_norm: bool = False):
        super().__init__()
        torch.manual_seed(seed)
        self.embedding, self.output = nn.Embedding(64, 6), nn.Linear(6, 3)
        self.norm = nn.BatchNorm1d(6) if has_norm else nn.Identity()
        self.dropout = nn.Dropout(dropout)
        self.double()

    def forward(self, input_ids: Tensor, labels: Tensor, attention_mask: Tensor | None = None) -> dict[str, Tensor]:
        hidden = self.embedding(input_ids)
        hidden = self.dropout(hidden + hidden.roll(1, dims=1))
        hidden = self.norm(hidden.transpose(1, 2)).transpose(1, 2)
        logits = self.output(hidden)
        return {"loss": F.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}


def streams() -> dict[str, Tokens]:
    return {"a": Tokens(20, 1, KIND), "b": Tokens(11, 2, KIND), "c": Tokens(6, 3, KIND)}


def build(folder: Path, policy: Policy, model: nn.Module | None = None, **changes: Any) -> MixingTrainer:
    args = {"max_steps": 4, "per_device_train_batch_size": 3, **changes.pop("args", {})}
    fields = {"train_dataset": streams(), "batch_size": 9, "mixing": policy, **changes}
    return mixing_trainer(MixingTrainer, Tagger() if model is None else model, arguments(folder, **args), **fields)
