"""The gradient of a step on streams that differ is the one of a loop by hand."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from datasets import Dataset
from torch import Tensor, nn
from torch.utils.data import IterableDataset

from mixer import FAMO, GradNorm, GroupDRO, MixingTrainer, Policy, Stream
from tests.helpers import GradientRecorder, Tokens, arguments, build_model
from tests.mixer.forms import (
    NAMES,
    assert_logged,
    gradient_by_hand,
    logged,
    means_by_hand,
    multi_task,
    num_items,
    task_streams,
    watched,
)

# ---- Heads ----


@pytest.mark.parametrize("micro", [64, 3, 1])
@pytest.mark.parametrize(
    ("mixing", "weights"),
    [
        (None, {}),
        ({"topic": 3, "stars": 1, "flags": 2, "tags": 1}, {"topic": 0.5, "tags": 3.0}),
        ("Uniform", {"stars": 0.0, "flags": 2.0}),
    ],
)
def test_heads_count_by_their_samples_times_their_loss_weights(
    tmp_path: Path, micro: int, mixing: Any, weights: dict[str, float]
) -> None:
    recorder = GradientRecorder()
    streams = task_streams(**{name: {"loss_weight": weight} for name, weight in weights.items()})
    trainer = watched(tmp_path, multi_task(), streams, micro, mixing=mixing, callbacks=[recorder])
    trainer.train()
    by_id = {NAMES.index(name): weight for name, weight in weights.items()}
    for gradient, (batch, model), entry in zip(recorder.gradients, trainer.batches, logged(trainer), strict=True):
        means = means_by_hand(batch, model, NAMES)
        assert len(means) == 4
        expected = gradient_by_hand(batch, model, means, by_id)
        torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-12)
        assert gradient.abs().max() > 1e-3
        assert_logged(entry, batch, means, NAMES)


@pytest.mark.parametrize(
    "mixing", [GroupDRO(), GradNorm(interval_steps=1), FAMO(acts_on="loss")], ids=lambda policy: policy.name
)
def test_policies_that_weigh_losses_multiply_the_streams_own_weights(tmp_path: Path, mixing: Policy) -> None:
    recorder = GradientRecorder()
    streams = task_streams(topic={"loss_weight": 2.0}, tags={"loss_weight": 0.25})
    options: dict[str, Any] = {"mixing": mixing, "callbacks": [recorder], "args": {"max_steps": 5}}
    trainer = watched(tmp_path, multi_task(), streams, 5, 16, **options)
    trainer.train()
    own = [2.0, 1.0, 1.0, 0.25]
    for gradient, (batch, model), entry in zip(recorder.gradients, trainer.batches, logged(trainer), strict=True):
        weights = dict(enumerate(batch.plan.loss_weights.tolist()))
        means = means_by_hand(batch, model, NAMES)
        torch.testing.assert_close(gradient, gradient_by_hand(batch, model, means, weights), rtol=1e-9, atol=1e-12)
        assert_logged(entry, batch, means, NAMES)
    policies = torch.tensor([(batch.plan.loss_weights / own).tolist() for batch, _ in trainer.batches])
    assert policies.std(dim=0).max() > 0
    assert policies.min() > 0


# ---- Losses ----


def _counting(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
    total = 2 * F.cross_entropy(outputs.logits, labels, reduction="sum")
    return total / (len(labels) if num_items_in_batch is None else num_items_in_batch)


def _mean(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
    return F.cross_entropy(outputs.logits, labels, label_smoothing=0.2)


def _without_labels(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Tensor:
    return outputs.logits.square().sum(dim=-1).mean()


class _SquaredMargin:
    """A loss that cannot be hashed."""

    __hash__ = None  # type: ignore[assignment]

    def __call__(self, outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
        return outputs.logits.gather(1, labels[:, None]).sub(1).square().mean()


_LOSSES = {"counting": _counting, "mean": _mean, "without": _without_labels, "margin": _SquaredMargin()}


def _loss_sum(model: nn.Module, name: str, row: Any) -> Tensor:
    if name == "model":
        return model(**row).loss
    inputs = {key: value for key, value in row.items() if key != "labels"}
    return _LOSSES[name](model(**inputs), row["labels"])


@pytest.mark.parametrize("micro", [64, 2])
def test_losses_of_the_streams_own_count_by_their_samples(tmp_path: Path, micro: int) -> None:
    names = ["model", *_LOSSES]
    streams = [
        Stream(name, Tokens(9, number, "sequence-classification"), compute_loss_func=_LOSSES.get(name))
        for number, name in enumerate(names)
    ]
    recorder = GradientRecorder()
    trainer = watched(tmp_path, build_model("bert-classifier").double(), streams, micro, 17, callbacks=[recorder])
    trainer.train()
    for gradient, (batch, model), entry in zip(recorder.gradients, trainer.batches, logged(trainer), strict=True):
        means = means_by_hand(batch, model, names, _loss_sum, lambda row: 1)
        torch.testing.assert_close(gradient, gradient_by_hand(batch, model, means), rtol=0, atol=1e-12)
        assert_logged(entry, batch, means, names)


def test_a_loss_of_a_stream_goes_before_that_of_the_trainer(tmp_path: Path) -> None:
    data = Tokens(9, 1, "sequence-classification")
    streams = [Stream("own", data, compute_loss_func=_without_labels), Stream("common", data)]
    trainer = watched(tmp_path, build_model("bert-classifier").double(), streams, compute_loss_func=_counting)
    trainer.train()
    sums = {"own": _without_labels, "common": _counting}
    for (batch, model), entry in zip(trainer.batches, logged(trainer), strict=True):
        means = means_by_hand(
            batch,
            model,
            ["own", "common"],
            lambda model, name, row: sums[name](
                model(**{k: v for k, v in row.items() if k != "labels"}), row["labels"]
            ),
            lambda row: 1,
        )
        assert_logged(entry, batch, means, ["own", "common"])
    assert trainer.compute_loss_func is _counting


def test_streams_without_anything_of_their_own_count_by_items_as_before(tmp_path: Path) -> None:
    recorder = GradientRecorder()
    streams = [Stream(name, Tokens(9, seed, "token-classification")) for name, seed in (("a", 1), ("b", 2))]
    trainer = watched(tmp_path, build_model("bert-tokens").double(), streams, callbacks=[recorder])
    trainer.train()
    for gradient, (batch, model) in zip(recorder.gradients, trainer.batches, strict=True):
        micro = batch.micro_batches[0]
        assert len(batch.micro_batches) == 1
        model(**micro.inputs).loss.backward()
        expected = torch.cat([p.grad.flatten() for p in model.parameters()])
        torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-12)


# ---- Labels that are all ignored ----


class _Ignored(Tokens):
    def __getitem__(self, index: int) -> dict[str, Tensor]:
        row = dict(super().__getitem__(index))
        row["labels"] = torch.full_like(row["labels"], -100)
        return row


@pytest.mark.parametrize("micro", [64, 2])
def test_a_stream_whose_labels_are_all_ignored_counts_for_nothing(tmp_path: Path, micro: int) -> None:
    recorder, names = GradientRecorder(), ["topic", "tags"]
    streams = [*task_streams(["topic"]), Stream("tags", _Ignored(12, 1, "token-classification"))]
    trainer = watched(tmp_path, multi_task(), streams, micro, 8, callbacks=[recorder])
    trainer.train()
    for gradient, (batch, model), entry in zip(recorder.gradients, trainer.batches, logged(trainer), strict=True):
        means = means_by_hand(batch, model, names)
        assert list(means) == [0]
        torch.testing.assert_close(gradient, gradient_by_hand(batch, model, means), rtol=0, atol=1e-12)
        assert_logged(entry, batch, means, names)
        assert "loss/tags" not in entry


def test_a_step_without_any_item_changes_nothing(tmp_path: Path) -> None:
    streams = [Stream(name, _Ignored(6, 1, kind)) for name, kind in (("topic", "sequence-classification"),)]
    streams.append(Stream("tags", _Ignored(6, 1, "token-classification")))
    model = multi_task()
    before = [parameter.clone() for parameter in model.parameters()]
    trainer = watched(tmp_path, model, streams, batch_size=6)
    trainer.train()
    for old, new in zip(before, model.parameters(), strict=True):
        assert torch.equal(old, new)
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
    recorder, names = GradientRecorder(), ["stars", "flags"]
    streams = [Stream("stars", _Holes(12, 1, "regression")), Stream("flags", _Holes(12, 2, "multi-label"))]
    trainer = watched(tmp_path, multi_task(), streams, micro, 12, callbacks=[recorder])
    trainer.train()
    for gradient, (batch, model), entry in zip(recorder.gradients, trainer.batches, logged(trainer), strict=True):
        means = means_by_hand(batch, model, names, _sum_without_holes)
        torch.testing.assert_close(gradient, gradient_by_hand(batch, model, means), rtol=0, atol=1e-12)
        assert_logged(entry, batch, means, names)


def test_an_error_of_a_streams_loss_or_collator_names_the_stream(tmp_path: Path) -> None:
    wrong: list[dict[str, Any]] = [
        {"compute_loss_func": lambda outputs, labels: 0},
        {"data_collator": lambda samples: samples},
    ]
    for own in wrong:
        with pytest.raises(TypeError) as caught:
            watched(tmp_path, multi_task(), task_streams(["topic", "stars"], stars=own)).train()
        assert any("'stars'" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("nonfinite", ["skip", "raise", "warn"])
def test_a_loss_that_is_not_finite_is_that_of_its_stream(tmp_path: Path, nonfinite: str) -> None:
    def broken(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
        return outputs.logits.sum() * float("nan")

    streams = task_streams(["topic", "stars"], stars={"compute_loss_func": broken})
    model = multi_task()
    before = model.heads["topic"].output.weight.clone()
    trainer = watched(tmp_path, model, streams, nonfinite=nonfinite, args={"max_steps": 1})
    if nonfinite == "raise":
        with pytest.raises(RuntimeError, match=r"\['stars'\] is not finite"):
            trainer.train()
        return
    trainer.train()
    assert torch.equal(model.heads["topic"].output.weight, before) is (nonfinite == "skip")
    entry = logged(trainer)[0]
    assert entry["loss/topic"] > 0
    assert "loss/stars" not in entry


def test_items_are_counted_by_the_label_columns(tmp_path: Path) -> None:
    trainer = watched(tmp_path, multi_task(), task_streams(), batch_size=16)
    trainer.train()
    table = trainer.ledger.to_pandas()
    items = {name: table[table["stream"] == name]["items"].tolist() for name in NAMES}
    counts = {name: table[table["stream"] == name]["count"].tolist() for name in NAMES}
    assert items["topic"] == counts["topic"]
    assert items["flags"] == [3 * count for count in counts["flags"]]
    tags = [sum(num_items(row) for row in _rows(batch, 3)) for batch, _ in trainer.batches]
    assert items["tags"] == tags


def _rows(batch: Any, stream_id: int) -> Any:
    for micro in batch.micro_batches:
        if int(micro.stream_ids[0]) == stream_id:
            yield from ({"labels": labels} for labels in micro.inputs["labels"])


class _Wider(IterableDataset[dict[str, Any]]):
    """Rows with a column that others do not have, which shows only when they come."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for row in Tokens(12, 3).rows:
            yield {**row, "token_type_ids": torch.zeros_like(row["input_ids"])}


def test_columns_that_show_only_in_the_run_are_not_lost(tmp_path: Path) -> None:
    data = {"plain": Tokens(12, 1), "wider": _Wider()}
    trainer = MixingTrainer(
        build_model("bert-classifier"), arguments(tmp_path), train_dataset=data, mixing="Uniform", batch_size=4
    )
    with pytest.raises(ValueError, match=r"only some have \['token_type_ids'\]") as error:
        trainer.train()
    assert any("set data_collator on a Stream" in note for note in error.value.__notes__)


@pytest.mark.parametrize("loss", [1.5, torch.ones(3)])
def test_a_loss_that_is_none_is_refused_with_its_stream(tmp_path: Path, loss: Any) -> None:
    streams = task_streams(("topic",), topic={"compute_loss_func": lambda outputs, labels, num_items_in_batch: loss})
    with pytest.raises(TypeError, match="A loss must be a tensor with one element") as error:
        watched(tmp_path, multi_task(), streams).train()
    assert "topic" in error.value.__notes__[0]


def test_labels_that_are_not_there_are_refused(tmp_path: Path) -> None:
    rows = Dataset.from_list([{"input_ids": [1, 2], "labels": 0}] * 4)
    with pytest.raises(ValueError, match=r"'topic': label_names contains \['value'\], but the columns are"):
        watched(tmp_path, multi_task(), [Stream("topic", rows, label_names=["value"])])
