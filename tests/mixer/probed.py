"""Runs whose gradients are probed, beside what has to be found: by a backward for each sample, or each micro-batch."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from transformers import GPT2LMHeadModel, LlamaForCausalLM

from mixer import GradientStatistics, MixingTrainer, Probing
from mixer.gradients.records import rows_of
from mixer.models.row_losses import items_per_row
from tests.helpers import MODEL_DATA, arguments, build_model, mixing_trainer, three_streams

BIG = 10**4  # a sketch of at least so many rows and columns as a parameter has is exact

RowLoss = Callable[[nn.Module, dict[str, Tensor]], Tensor]


def loss_of(model: nn.Module, inputs: dict[str, Tensor], smoothing: float = 0.0) -> Tensor:
    inputs = dict(inputs)
    labels = inputs.pop("labels")
    logits = model(**inputs).logits.float()
    if isinstance(model, LlamaForCausalLM | GPT2LMHeadModel):
        logits, labels = logits[:, :-1], labels[:, 1:]
    logits, labels = logits.reshape(-1, logits.shape[-1]), labels.reshape(-1)
    losses = nn.functional.cross_entropy(logits, labels, reduction="none", label_smoothing=smoothing)
    return losses.sum()


@dataclass
class Group:
    stream_id: int
    num_samples: int
    num_items: int
    gradient: Tensor  # float64 `[size]`, of the sum over their items


def groups_of(
    batch: Any, model: nn.Module, row_loss: RowLoss, is_by_micro_batch: bool, shifts_labels: bool
) -> list[Group]:
    """The samples of this rank's step, or its micro-batches, each by a forward and backward of its own."""
    groups = []
    for micro in batch.micro_batches:
        rows = range(0 if micro.is_padding else len(micro.stream_ids))
        ids = micro.stream_ids
        parts = [slice(row, row + 1) for row in rows]
        if is_by_micro_batch:
            parts = [slice(0, None)] * bool(rows)
        for part in parts:
            inputs = {name: values[part] for name, values in micro.inputs.items()}
            gradients = torch.autograd.grad(row_loss(model, inputs), list(model.parameters()), allow_unused=True)
            flat = [
                torch.zeros(one.numel()) if gradient is None else gradient.flatten()
                for gradient, one in zip(gradients, model.parameters(), strict=True)
            ]
            num_items = int(items_per_row(inputs, shifts_labels).sum())
            groups.append(Group(int(ids[part][0]), len(ids[part]), num_items, torch.cat(flat).double()))
    return groups


def statistics_of(groups: list[Group], num_streams: int = 3) -> GradientStatistics:
    gram = np.full((num_streams, num_streams), np.nan)
    signal, noise = np.full((2, num_streams), np.nan)
    counts, items = np.zeros(num_streams, dtype=np.int64), np.zeros(num_streams)
    means = {}
    for stream_id in range(num_streams):
        own = [group for group in groups if group.stream_id == stream_id and group.num_items]
        counts[stream_id] = sum(group.num_samples for group in own)
        items[stream_id] = sum(group.num_items for group in own)
        if own:
            means[stream_id] = torch.stack([group.gradient for group in own]).sum(0) / items[stream_id]
            pairs = [(one, other) for one in own for other in own if one is not other]
            if pairs:
                products = sum(float(one.gradient @ other.gradient) for one, other in pairs)
                signal[stream_id] = products / sum(one.num_items * other.num_items for one, other in pairs)
                square = float(means[stream_id].square().sum())
                noise[stream_id] = counts[stream_id] * (square - signal[stream_id])
    for one, first in means.items():
        for other, second in means.items():
            gram[one, other] = float(first @ second)
    return GradientStatistics(gram, noise, signal, counts, items / items.sum(), np.zeros_like(gram))


@dataclass
class ProbedRun:
    trainer: MixingTrainer
    expected: dict[int, GradientStatistics]
    found: dict[int, GradientStatistics]
    num_paddings: int = 0

    @property
    def frame(self) -> pd.DataFrame:
        """What was found, as the ledger has it, which only the main rank can read at once."""
        names = self.trainer.mixing.names
        parts = []
        for step, found in self.found.items():
            columns = rows_of(step, names, found)
            parts.append(pd.DataFrame({name: list(values) for name, values in columns.items()}))
        return pd.concat(parts, ignore_index=True)


def build(folder: Path, model: Any = "llama", probe: Probing | None = None, **changes: Any) -> MixingTrainer:
    kind = MODEL_DATA[model] if isinstance(model, str) else "causal-lm"
    options = {"max_steps": 3, **changes.pop("args", {})}
    fields = {"train_dataset": three_streams(kind), "mixing": [1, 1, 1], "batch_size": 12, **changes}
    model = build_model(model) if isinstance(model, str) else model
    probe = Probing(interval_steps=1) if probe is None else probe
    return mixing_trainer(
        MixingTrainer, model, arguments(folder, **{"per_device_train_batch_size": 16, **options}), probe=probe, **fields
    )


def train(
    trainer: MixingTrainer,
    row_loss: RowLoss = loss_of,
    is_by_micro_batch: bool = False,
    gather: Callable[[list[Group]], list[Group]] = list,
    plain: nn.Module | None = None,
) -> ProbedRun:
    """Trains, with the reference of every step taken before it, from another model of the same kind."""
    plain = deepcopy(trainer.model) if plain is None else plain
    expected: dict[int, GradientStatistics] = {}
    found: dict[int, GradientStatistics] = {}
    run = ProbedRun(trainer, expected, found)
    step = trainer._parts.steps.train

    def compare(model: nn.Module, batch: Any, num_items: Any = None) -> Tensor:
        plain.load_state_dict(trainer.model.state_dict())
        groups = gather(groups_of(batch, plain, row_loss, is_by_micro_batch, trainer._parts.losses.shifts_labels))
        expected[batch.plan.step] = _weighed(statistics_of(groups, len(trainer.streams)), batch.plan.loss_weights)
        run.num_paddings += sum(micro.is_padding for micro in batch.micro_batches)
        loss = step(model, batch, num_items)
        if trainer._parts.probe.statistics is not None:
            found[batch.plan.step] = trainer._parts.probe.statistics
        return loss

    trainer._parts.steps.train = compare  # type: ignore[method-assign]
    trainer.train()
    return run


def _weighed(statistics: GradientStatistics, loss_weights: np.ndarray | None) -> GradientStatistics:
    shares = statistics.shares * (1.0 if loss_weights is None else loss_weights)
    return replace(statistics, shares=shares / shares.sum())


def assert_found(
    frame: pd.DataFrame, expected: dict[int, GradientStatistics], tolerance: float = 1e-4, has_variance: bool = True
) -> None:
    assert len(frame) > 0
    for step, rows in frame.groupby("step"):
        _assert_products(rows, expected[int(step)], tolerance)
        if has_variance:
            _assert_variance(rows, expected[int(step)], 3 * tolerance)


def _assert_products(rows: pd.DataFrame, wanted: GradientStatistics, tolerance: float) -> None:
    gram = np.stack(rows["gram"].tolist())
    norms = np.sqrt(np.diagonal(wanted.gram))
    assert rows["count"].tolist() == wanted.counts.tolist()
    np.testing.assert_allclose(rows["share"], wanted.shares, rtol=1e-6)
    there = wanted.counts > 0
    assert np.isnan(gram).tolist() == np.isnan(wanted.gram).tolist()
    errors = (np.abs(gram - wanted.gram) / np.outer(norms, norms))[np.ix_(there, there)]
    assert errors.max() < tolerance, (gram, wanted.gram)


def _assert_variance(rows: pd.DataFrame, wanted: GradientStatistics, tolerance: float) -> None:
    sizes = np.maximum(np.diagonal(wanted.gram), np.nan_to_num(wanted.variance))
    for name in ("variance", "squared_norm"):
        found, right = rows[name].to_numpy(), getattr(wanted, name)
        assert np.isnan(found).tolist() == np.isnan(right).tolist(), (name, found, right)
        errors = np.abs(found - right) / sizes
        assert np.nanmax(errors, initial=0.0) < tolerance, (name, found, right)


def steps_of(trainer: MixingTrainer) -> list[int]:
    steps: list[int] = trainer.ledger.gradients()["step"].unique().tolist()
    return steps


def is_untouched(model: nn.Module) -> bool:
    hooks = [one._backward_hooks for one in model.parameters() if one._backward_hooks]
    return not hooks and not any("forward" in module.__dict__ for module in model.modules())
