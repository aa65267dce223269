"""What a measurement of targets holds in memory: rows with a graph, and layers whose activations are computed again."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import LlamaConfig, LlamaForCausalLM, default_data_collator

from mixer import MixingTrainer, Objective
from mixer.measurements import Alignment
from mixer.measurements.hooks.target_gradients import TargetProbe
from tests.helpers import Tokens, arguments, mixing_trainer
from tests.mixer.measurements.test_targets import Aligned

STREAMS = {"a": Tokens(20, 1), "b": Tokens(20, 2)}
TARGET = Tokens(28, 9)


class Held(nn.Module):
    """A model of somebody else that checkpoints its layer where it trains, and drops much."""

    def __init__(self, uses_flag: bool = True) -> None:
        super().__init__()
        self.gradient_checkpointing = uses_flag
        self._gradient_checkpointing_func = checkpoint
        self.embedding, self.layer, self.head = nn.Embedding(64, 8), nn.Linear(8, 8), nn.Linear(8, 64)
        self.dropout, self.norm = nn.Dropout(0.5), nn.BatchNorm1d(8)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> dict[str, Tensor]:
        hidden = self.norm(self.dropout(self.embedding(input_ids)).transpose(1, 2)).transpose(1, 2)
        if self.gradient_checkpointing and self.training:
            hidden = self._gradient_checkpointing_func(self.layer, hidden, use_reentrant=False)
        else:
            hidden = self.layer(hidden)
        logits = self.head(hidden)
        loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return {"loss": loss, "logits": logits}


def llama(dropout: float = 0.0) -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2}
    return LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=2, attention_dropout=dropout))


class Watched(MixingTrainer):
    """Counts in measurements what a layer computes, with the rows and the tokens of each forward with a graph."""

    measures, fails_from = False, 1_000

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if self.measures and torch.is_grad_enabled():
            self.rows.append(tuple(inputs["input_ids"].shape))
            if len(inputs["input_ids"]) >= self.fails_from:
                raise torch.OutOfMemoryError("CUDA out of memory.")
        return super().compute_loss(model, inputs, *args, **kwargs)


def measured(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    model: Any,
    layer: Callable[[Any], nn.Module],
    fails_from: int = 1_000,
    options: dict[str, Any] | None = None,
    **args: Any,
) -> tuple[Watched, Aligned]:
    measure, direction = TargetProbe._measure, TargetProbe._direction

    def noted(probe: TargetProbe, step: int) -> Any:
        trainer.measures = True
        try:
            return measure(probe, step)
        finally:
            trainer.measures = False

    def kept(probe: TargetProbe, *given: Any) -> Any:
        found, length = direction(probe, *given)
        trainer.directions.append([part.clone() for part in found])
        again, _ = direction(probe, *given)  # nothing is dropped at random
        assert all(torch.equal(one, other) for one, other in zip(found, again, strict=True))
        return found, length

    monkeypatch.setattr(TargetProbe, "_measure", noted)
    monkeypatch.setattr(TargetProbe, "_direction", kept)
    policy = Aligned("plain")
    steps = {"max_steps": 2, "per_device_train_batch_size": 2, "learning_rate": 0.0, **args}
    objective = Objective({"t": 1.0}, development_sets={"t": TARGET})
    data = {"train_dataset": STREAMS, "eval_dataset": {"t": TARGET}, "objective": objective, **(options or {})}
    trainer = mixing_trainer(Watched, model, arguments(folder, **steps), mixing=policy, batch_size=64, **data)
    trainer.rows, trainer.directions, trainer.uses, trainer.fails_from = [], [], 0, fails_from

    def used(*_: Any) -> None:
        trainer.uses += trainer.measures and torch.is_grad_enabled()

    layer(model).register_forward_pre_hook(used)
    trainer.train()
    return trainer, policy


def by_autograd(trainer: Watched, model: nn.Module, loss_of: Callable[[Any, Any], Tensor]) -> list[Tensor]:
    """The gradient of all rows at once: there are as many as the measurement takes, in any order."""
    probe = next(hook for hook in trainer._parts.hooks if isinstance(hook, TargetProbe))
    indices = probe._targets[0]._cursor.references(probe._positions(0, 2)).tolist()
    batch = default_data_collator([TARGET[index] for index in indices])
    return list(torch.autograd.grad(loss_of(model.eval(), batch), list(model.parameters())))


def model_loss(model: Any, batch: Any) -> Tensor:
    return model(**batch)["loss"]


def loss_of_rows(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
    """The mean over rows of the rows' sums."""
    places = nn.functional.cross_entropy(
        outputs["logits"][:, :-1].transpose(1, 2), labels[:, 1:], reduction="none", ignore_index=-100
    )
    return places.sum(dim=1).mean()


def loss_of_items(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
    summed = loss_of_rows(outputs, labels) * len(labels)
    return summed / ((labels[:, 1:] != -100).sum() if num_items_in_batch is None else num_items_in_batch)


@pytest.mark.parametrize(("loss", "limit"), [(None, 23), (loss_of_rows, None), (loss_of_items, 23)])  # rows: 12 tokens
def test_rows_go_in_micro_batches_of_the_run_to_the_same_gradient(tmp_path, monkeypatch, loss, limit) -> None:
    own = (
        None
        if loss is None
        else lambda outputs, labels, num_items_in_batch=None: loss(
            outputs, labels["labels"] if isinstance(labels, dict) else labels, num_items_in_batch
        )
    )
    model = llama().double()
    options = {"compute_loss_func": own, "max_tokens_per_micro_batch": limit}
    trainer, _ = measured(tmp_path, monkeypatch, model, lambda m: m.model.layers[0], options=options)
    assert max(rows for rows, _ in trainer.rows) == (2 if limit is None else 1)
    assert len(trainer.rows) > 2
    loss_of = model_loss if loss is None else lambda m, batch: loss(m(**batch), batch["labels"])
    expected = by_autograd(trainer, model, loss_of)
    for found, wanted in zip(trainer.directions[0], expected, strict=True):
        # The Llama's own loss is computed in float32.
        exact = {"rtol": 1e-10, "atol": 1e-14} if loss is not None else {"rtol": 1e-4, "atol": 1e-7}
        torch.testing.assert_close(found, wanted, **exact)


@pytest.mark.parametrize("way", ["argument", "by hand", "reentrant", "none"])
def test_checkpointing_stays_on_and_dropout_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    model, args = llama(dropout=0.5), {}
    if way == "by hand":
        model.gradient_checkpointing_enable({"use_reentrant": False})
    elif way != "none":
        args = {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": way == "reentrant"}}
    if way == "reentrant":
        model.enable_input_require_grads()
    trainer, _ = measured(tmp_path, monkeypatch, model, lambda m: m.model.layers[0].mlp, **args)
    # The first forward of a reentrant checkpoint has no graph.
    assert trainer.uses == len(trainer.rows) * (2 if way in ("argument", "by hand") else 1)
    if way == "reentrant":
        assert all(layer.training is True for layer in model.model.layers)
    expected = by_autograd(trainer, model, model_loss)
    for found, wanted in zip(trainer.directions[0], expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("is_on", [True, False])
def test_a_model_that_checkpoints_itself_is_kept_too(tmp_path, monkeypatch, is_on) -> None:
    torch.manual_seed(0)
    model = Held(is_on)
    statistics = [buffer.clone() for buffer in model.buffers()]
    trainer, _ = measured(tmp_path, monkeypatch, model, lambda m: m.layer)
    assert trainer.uses == len(trainer.rows) * (2 if is_on else 1)
    assert not torch.equal(model.norm.running_mean, statistics[0])  # steps have changed it
    for found, wanted in zip(trainer.directions[0], by_autograd(trainer, model, model_loss), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-6)


def test_rows_are_halved_without_memory(tmp_path, monkeypatch, caplog) -> None:
    runs = []
    for name, fails_from in (("fits", 1_000), ("halved", 3)):
        args = {"per_device_train_batch_size": 4, "max_steps": 4}
        runs.append(measured(tmp_path / name, monkeypatch, llama().double(), lambda m: m.lm_head, fails_from, **args))
    assert caplog.text.count("A measurement ran out of memory") == 1  # later measurements remember it
    assert [max(rows for rows, _ in trainer.rows) for trainer, _ in runs] == [4, 4]
    assert max(rows for rows, _ in runs[1][0].rows[1:]) == 2
    for one, other in zip(*(policy.seen for _, policy in runs), strict=True):
        if one[Alignment] is not None:
            np.testing.assert_allclose(one[Alignment].losses, other[Alignment].losses, rtol=1e-5)
    for one, other in zip(*(trainer.directions[0] for trainer, _ in runs), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-7)  # the loss is computed in float32


def test_a_measurement_whose_single_rows_do_not_fit_is_left_out(tmp_path, monkeypatch, caplog) -> None:
    trainer, policy = measured(tmp_path, monkeypatch, llama(), lambda m: m.lm_head, fails_from=1, max_steps=4)
    assert trainer.state.global_step == 4
    assert [observation[Alignment] for observation in policy.seen] == [None] * 4
    assert caplog.text.count("does not fit into memory") == 1
