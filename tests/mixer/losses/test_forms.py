"""The gradient of a step on streams that differ is the one of a loop by hand, beside all that measures and cuts."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.utils.data import IterableDataset

from mixer import GradNorm, GroupDRO, Policy, Probing, Stream
from tests.helpers import Tokens, build_model, weights_of
from tests.mixer.forms import (
    KINDS,
    NAMES,
    assert_by_hand,
    gradients_by_stream,
    logged,
    means_by_hand,
    multi_task,
    shares_by_hand,
    task_streams,
    trained,
    watched,
)
from tests.mixer.trainer.runs import train
from tests.refusals import refused


@pytest.mark.parametrize(
    ("micro", "mixing", "weights"),
    [
        (64, None, {}),
        (3, {"topic": 3, "stars": 1, "flags": 2, "tags": 1}, {"topic": 0.5, "tags": 3.0}),
        (1, "Uniform", {"stars": 0.0, "flags": 2.0}),
    ],
)
def test_heads_count_by_samples_and_loss_weights(tmp_path, micro, mixing, weights) -> None:
    streams = task_streams(**{name: {"loss_weight": weight} for name, weight in weights.items()})
    trainer = trained(tmp_path, multi_task(), streams, micro, mixing=mixing)
    by_id = {NAMES.index(name): weight for name, weight in weights.items()}
    assert [len(means) for means in assert_by_hand(trainer, weights=by_id)] == [4, 4, 4]
    assert min(gradient.abs().max() for gradient in trainer.recorder.gradients) > 1e-3


@pytest.mark.parametrize("mixing", [GroupDRO(), GradNorm(interval_steps=1)], ids=lambda policy: policy.name)
def test_policies_that_weigh_losses_multiply_the_streams_own_weights(tmp_path: Path, mixing: Policy) -> None:
    streams = task_streams(topic={"loss_weight": 2.0}, tags={"loss_weight": 0.25})
    trainer = trained(tmp_path, multi_task(), streams, 5, 16, mixing=mixing)
    assert_by_hand(trainer, tolerance=1e-9)
    own = [2.0, 1.0, 1.0, 0.25]
    policies = torch.tensor([(batch.plan.loss_weights / own).tolist() for batch, _ in trainer.batches])
    assert policies.std(dim=0).max() > 0
    assert policies.min() > 0


def _counting(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
    total = 2 * F.cross_entropy(outputs.logits, labels, reduction="sum")
    return total / (len(labels) if num_items_in_batch is None else num_items_in_batch)


def _mean(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
    return F.cross_entropy(outputs.logits, labels, label_smoothing=0.2)


def _without_labels(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Tensor:
    return outputs.logits.square().sum(dim=-1).mean()


class _SquaredMargin:
    __hash__ = None  # type: ignore[assignment]

    def __call__(self, outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
        return outputs.logits.gather(1, labels[:, None]).sub(1).square().mean()


_LOSSES = {"counting": _counting, "mean": _mean, "without": _without_labels, "margin": _SquaredMargin()}


def _loss_sum(model: nn.Module, name: str, row: Any) -> Tensor:
    if name == "model":
        return model(**row).loss
    inputs = {key: value for key, value in row.items() if key != "labels"}
    return _LOSSES[name](model(**inputs), row["labels"])


@pytest.mark.parametrize(
    ("names", "micro", "common"), [(["model", *_LOSSES], 64, None), (["mean", "counting"], 2, "counting")]
)
def test_losses_of_their_own_count_by_samples(tmp_path: Path, names: list[str], micro: int, common: Any) -> None:
    own = {name: None if name == common else _LOSSES.get(name) for name in names}  # what a stream has goes before
    streams = [
        Stream(name, Tokens(9, number, "sequence-classification"), compute_loss_func=loss)
        for number, (name, loss) in enumerate(own.items())
    ]
    loss = _LOSSES.get(common)
    model = build_model("bert-classifier").double()
    trainer = trained(tmp_path, model, streams, micro, 17, compute_loss_func=loss)
    assert_by_hand(trainer, names, {}, loss_sum=_loss_sum, items=lambda row: 1)
    assert trainer.compute_loss_func is loss


class _Ignored(Tokens):
    def __getitem__(self, index: int) -> dict[str, Tensor]:
        row = dict(super().__getitem__(index))
        return {**row, "labels": torch.full_like(row["labels"], -100)}


@pytest.mark.parametrize("micro", [64, 2])
def test_a_stream_whose_labels_are_all_ignored_counts_for_nothing(tmp_path: Path, micro: int) -> None:
    streams = [*task_streams(["topic"]), Stream("tags", _Ignored(12, 1, "token-classification"))]
    trainer = trained(tmp_path, multi_task(), streams, micro, 8)
    assert [list(means) for means in assert_by_hand(trainer, ["topic", "tags"])] == [[0]] * 3
    assert not any("loss/tags" in entry for entry in logged(trainer))
    model = multi_task()
    before = weights_of(model)
    streams = [Stream(name, _Ignored(6, 1, kind)) for name, kind in list(KINDS.items())[::3]]
    trainer = watched(tmp_path / "none", model, streams, batch_size=6)  # steps without any item
    with refused("labels"):
        trainer.train()
    assert torch.equal(before, weights_of(model))
    assert all(entry["loss"] == 0.0 for entry in logged(trainer))


class _Holes(Tokens):
    """Rows one of whose values nobody knows: -100, as for classes; of every fifth row none is."""

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        row = dict(super().__getitem__(index))
        labels = row["labels"].clone().reshape(-1)
        labels[0 if index % 5 else slice(None)] = -100
        return {**row, "labels": labels.reshape(row["labels"].shape)}


def _sum_without_holes(model: nn.Module, task: str, row: Any) -> Tensor:
    logits = model(task=task, **{key: value for key, value in row.items() if key != "labels"}).logits
    known, labels = row["labels"].reshape(logits.shape).ne(-100), row["labels"].reshape(logits.shape).to(logits.dtype)
    loss = F.mse_loss if task == "stars" else F.binary_cross_entropy_with_logits
    return loss(logits[known], labels[known], reduction="sum")


@pytest.mark.parametrize("micro", [64, 3])
def test_values_that_are_not_known_count_for_nothing(tmp_path: Path, micro: int) -> None:
    streams = [Stream("stars", _Holes(12, 1, "regression")), Stream("flags", _Holes(12, 2, "multi-label"))]
    trainer = trained(tmp_path, multi_task(), streams, micro, 12)
    assert_by_hand(trainer, ["stars", "flags"], loss_sum=_sum_without_holes)


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"compute_loss_func": lambda outputs, labels: 0}, "num_items_in_batch"),
        ({"compute_loss_func": lambda outputs, labels, num_items_in_batch: 1.5}, "must be a tensor with one"),
        ({"compute_loss_func": lambda outputs, labels, num_items_in_batch: torch.ones(3)}, "must be a tensor with one"),
        ({"data_collator": lambda samples: samples}, None),
    ],
)
def test_an_error_of_a_loss_or_collator_names_the_stream(tmp_path, own, message) -> None:
    with pytest.raises(TypeError, match=message) as caught:
        trained(tmp_path, multi_task(), task_streams(["topic", "stars"], stars=own))
    assert any("'stars'" in note for note in caught.value.__notes__)


class _Wider(IterableDataset[dict[str, Any]]):
    def __iter__(self) -> Iterator[dict[str, Any]]:
        for row in Tokens(12, 3).rows:
            yield {**row, "token_type_ids": torch.zeros_like(row["input_ids"])}


def test_columns_that_show_only_in_the_run_are_not_lost(tmp_path: Path) -> None:
    data = {"plain": Tokens(12, 1), "wider": _Wider()}
    with refused("columns", found=["token_type_ids"]) as error:
        train(tmp_path, "bert-classifier", train_dataset=data, mixing="Uniform", batch_size=4)
    assert any("set data_collator on a Stream" in note for note in error.value.__notes__)


EXACT: dict[str, Any] = {"mode": "exact", "exact_accumulate": True}


@pytest.mark.parametrize(
    ("options", "micro"),
    [(EXACT, 64), (EXACT, 2), ({**EXACT, "homogeneous": True}, 2), ({"mode": "sketch", "sketch_size": 10**4}, 2)],
)
def test_a_probe_finds_the_gradient_of_each_mean_loss(tmp_path: Path, options: dict[str, Any], micro: int) -> None:
    streams = task_streams(topic={"loss_weight": 3.0}, flags={"loss_weight": 0.5})
    trainer = trained(tmp_path, multi_task(), streams, micro, probe=Probing(1, **options), args={"max_steps": 1})
    batch, model = trainer.batches[0]
    means = means_by_hand(batch, model, NAMES)
    gradients = gradients_by_stream(model, means, 4).detach()
    found: Any = trainer._parts.probe.statistics
    expected = (gradients @ gradients.T).numpy()
    np.testing.assert_allclose(found.gram, expected, rtol=1e-5, atol=1e-6 * expected.max())
    assert found.counts.tolist() == batch.plan.counts.tolist()
    shares = np.array([shares_by_hand(batch, means)[k] for k in range(4)]) * [3.0, 1.0, 0.5, 1.0]
    np.testing.assert_allclose(found.shares, shares / shares.sum(), rtol=1e-6)


@pytest.mark.parametrize("options", [{"max_tokens_per_micro_batch": 40}, {"args": {"auto_find_batch_size": True}}])
def test_other_micro_batches_have_the_same_gradient(tmp_path: Path, options: dict[str, Any]) -> None:
    args = {"train_sampling_strategy": "group_by_length", **options.pop("args", {})}
    assert_by_hand(trained(tmp_path, multi_task(), task_streams(), args=args, **options))


def test_smoothing_is_that_of_each_head(tmp_path: Path) -> None:
    def smoothed(model: nn.Module, task: str, row: Any) -> Tensor:
        logits = model(task=task, **{key: row[key] for key in ("input_ids", "attention_mask")}).logits.reshape(-1, 3)
        labels = row["labels"].reshape(-1)
        return F.cross_entropy(logits, labels, reduction="sum", label_smoothing=0.2, ignore_index=-100)

    names, args = ["topic", "tags"], {"label_smoothing_factor": 0.2}
    trainer = trained(tmp_path, multi_task(), task_streams(names), 2, args=args)
    assert_by_hand(trainer, names, tolerance=1e-6, loss_sum=smoothed)
