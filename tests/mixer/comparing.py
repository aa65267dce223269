"""Runs whose policy compares losses, and what it has to see, by a loop written out by hand."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from mixer import Decision, MixingTrainer, Mixture, Observation, Policy
from mixer.measurements import ExcessLoss, LossAfter, Measurement, asked
from mixer.utils.arrays import FloatArray
from tests.helpers import Tokens, arguments, mixing_trainer

KIND = "token-classification"
LossOf = Callable[[Tensor, Tensor], Tensor]


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


class Leaning(Watching):
    """Leans towards streams with much excess that move little: its weights show every bit of what it sees."""

    def start(self, mixture: Mixture) -> Decision:
        self.sums = np.zeros(len(mixture.names))
        return super().start(mixture)

    def update(self, observation: Observation) -> Decision:
        super().update(observation)
        for values in (observation[ExcessLoss], observation[LossAfter]):
            self.sums = self.sums + np.nan_to_num(np.zeros(1) if values is None else values)
        return Decision(np.exp(0.3 * (self.sums - self.sums.max())))

    def state_dict(self) -> dict[str, Any]:
        return {"sums": self.sums.tolist()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.sums = np.array(state["sums"])


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
    if asked(policy.needs, ExcessLoss):
        fields.setdefault("reference_model", Tagger(seed=7))
    return mixing_trainer(MixingTrainer, Tagger() if model is None else model, arguments(folder, **args), **fields)


def cross_entropies(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.mT if labels.dim() == 2 else logits, labels, reduction="none")


def item_losses_of(
    model: nn.Module, inputs: Mapping[str, Any], shifts: bool = False, loss_of: LossOf = cross_entropies
) -> list[Tensor]:
    """The losses of each row's own items, as a single row's forward gives them."""
    found = []
    for row in range(len(inputs["labels"])):
        own = {name: values[row : row + 1] for name, values in inputs.items()}
        with torch.no_grad():
            output = model(**own)
        logits, labels = output["logits"], own["labels"]
        if shifts:
            logits, labels = logits[:, :-1], labels[:, 1:]
        found.append(loss_of(logits, labels).reshape(-1)[labels.reshape(-1) != -100])
    return found


def means_of(values: list[tuple[int, Tensor]], num_streams: int = 3) -> FloatArray:
    means = np.full(num_streams, np.nan)
    for stream_id in range(num_streams):
        own = [items for number, items in values if number == stream_id]
        if own and torch.cat(own).numel():
            means[stream_id] = float(torch.cat(own).double().mean())
    return means


def train_by_hand(
    trainer: MixingTrainer, reference: nn.Module, plain: nn.Module, *how: Any
) -> list[tuple[FloatArray, FloatArray]]:
    """Trains; gives by step the excess over a reference before its step, and the losses after it, by hand."""
    plain, reference = deepcopy(plain).eval(), deepcopy(reference).eval()
    excess: list[FloatArray] = []
    after: list[FloatArray] = []
    current: list[Any] = []
    step, policy = trainer._parts.steps.train, trainer.mixing.policy

    def items(batch: Any, model: nn.Module) -> list[tuple[int, Tensor]]:
        found = []
        for micro in batch.micro_batches:
            if not micro.is_padding:
                found += zip(micro.stream_ids.tolist(), item_losses_of(model, micro.inputs, *how), strict=True)
        return found

    def before(model: nn.Module, batch: Any, num_items: Any = None) -> Tensor:
        plain.load_state_dict(trainer.model.state_dict())
        current[:] = [batch]
        pairs = zip(items(batch, plain), items(batch, reference), strict=True)
        excess.append(means_of([(number, (own - other).clamp(min=0)) for (number, own), (_, other) in pairs]))
        return step(model, batch, num_items)

    def look(observation: Observation) -> None:
        plain.load_state_dict(trainer.model.state_dict())
        after.append(means_of(items(current[0], plain)))

    trainer._parts.steps.train = before  # type: ignore[method-assign]
    policy.look = look
    trainer.train()
    return list(zip(excess, after, strict=True))
