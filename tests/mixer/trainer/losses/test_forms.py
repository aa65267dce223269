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

from mixer import GradNorm, GroupDRO, MixingTrainer, Policy, Stream
from tests.helpers import Tokens, arguments, build_model
from tests.mixer.forms import NAMES, assert_by_hand, logged, multi_task, num_items, task_streams, trained, watched

# ---- Heads ----


@pytest.mark.parametrize(
    ("micro", "mixing", "weights"),
    [
        (64, None, {}),
        (3, {"topic": 3, "stars": 1, "flags": 2, "tags": 1}, {"topic": 0.5, "tags": 3.0}),
        (1, "Uniform", {"stars": 0.0, "flags": 2.0}),
    ],
)
def test_heads_count_by_their_samples_times_their_loss_weights(
    tmp_path: Path, micro: int, mixing: Any, weights: dict[str, float]
) -> None:
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


@pytest.mark.parametrize(
    ("names", "micro", "common"), [(["model", *_LOSSES], 64, None), (["mean", "counting"], 2, "counting")]
)
def test_losses_of_the_streams_own_count_by_their_samples(
    tmp_path: Path, names: list[str], micro: int, common: Any
) -> None:
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


def test_streams_without_anything_of_their_own_count_by_items_as_before(tmp_path: Path) -> None:
    streams = [Stream(name, Tokens(9, seed, "token-classification")) for name, seed in (("a", 1), ("b", 2))]
    trainer = trained(tmp_path, build_model("bert-tokens").double(), streams)
    for gradient, (batch, model) in zip(trainer.recorder.gradients, trainer.batches, strict=True):
        (micro,) = batch.micro_batches
        model(**micro.inputs).loss.backward()
        expected = torch.cat([p.grad.flatten() for p in model.parameters()])
        torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-12)


# ---- Labels that are all ignored ----


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


def test_a_step_without_any_item_changes_nothing(tmp_path: Path) -> None:
    kinds = (("topic", "sequence-classification"), ("tags", "token-classification"))
    model = multi_task()
    before = [parameter.clone() for parameter in model.parameters()]
    streams = [Stream(name, _Ignored(6, 1, kind)) for name, kind in kinds]
    trainer = trained(tmp_path, model, streams, batch_size=6)
    assert all(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
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


# ---- What is wrong ----


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"compute_loss_func": lambda outputs, labels: 0}, "num_items_in_batch"),
        ({"compute_loss_func": lambda outputs, labels, num_items_in_batch: 1.5}, "A loss must be a tensor with one"),
        ({"compute_loss_func": lambda outputs, labels, num_items_in_batch: torch.ones(3)}, "A loss must be a tensor"),
        ({"data_collator": lambda samples: samples}, None),
    ],
)
def test_an_error_of_a_streams_loss_or_collator_names_the_stream(
    tmp_path: Path, own: dict[str, Any], message: str | None
) -> None:
    with pytest.raises(TypeError, match=message) as caught:
        trained(tmp_path, multi_task(), task_streams(["topic", "stars"], stars=own))
    assert any("'stars'" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("nonfinite", ["skip", "raise", "warn"])
def test_a_loss_that_is_not_finite_is_that_of_its_stream(tmp_path: Path, nonfinite: str) -> None:
    def broken(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
        return outputs.logits.sum() * float("nan")

    streams, model = task_streams(["topic", "stars"], stars={"compute_loss_func": broken}), multi_task()
    before = model.heads["topic"].output.weight.clone()
    trainer = watched(tmp_path, model, streams, nonfinite=nonfinite, args={"max_steps": 1})
    if nonfinite == "raise":
        with pytest.raises(RuntimeError, match=r"\['stars'\] is not finite"):
            trainer.train()
        return
    trainer.train()
    assert torch.equal(model.heads["topic"].output.weight, before) is (nonfinite == "skip")
    (entry,) = logged(trainer)
    assert entry["loss/topic"] > 0
    assert "loss/stars" not in entry


class _Wider(IterableDataset[dict[str, Any]]):
    """Rows with a column that others do not have, which shows only when they come."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for row in Tokens(12, 3).rows:
            yield {**row, "token_type_ids": torch.zeros_like(row["input_ids"])}


def test_columns_that_show_only_in_the_run_are_not_lost(tmp_path: Path) -> None:
    options: dict[str, Any] = {"mixing": "Uniform", "batch_size": 4}
    data, args = {"plain": Tokens(12, 1), "wider": _Wider()}, arguments(tmp_path)
    with pytest.raises(ValueError, match=r"only some have \['token_type_ids'\]") as error:
        MixingTrainer(build_model("bert-classifier"), args, train_dataset=data, **options).train()
    assert any("set data_collator on a Stream" in note for note in error.value.__notes__)


def test_labels_that_are_not_there_are_refused(tmp_path: Path) -> None:
    rows = Dataset.from_list([{"input_ids": [1, 2], "labels": 0}] * 4)
    with pytest.raises(ValueError, match=r"'topic': label_names contains \['value'\], but the columns are"):
        watched(tmp_path, multi_task(), [Stream("topic", rows, label_names=["value"])])


def test_items_are_counted_by_the_label_columns(tmp_path: Path) -> None:
    trainer = trained(tmp_path, multi_task(), task_streams(), batch_size=16)
    table = trainer.ledger.to_pandas().set_index("stream")
    items, counts = ({name: table.loc[name][column].tolist() for name in NAMES} for column in ("items", "count"))
    assert items["topic"] == counts["topic"]
    assert items["flags"] == [3 * count for count in counts["flags"]]
    micros = [[micro for micro in batch.micro_batches if int(micro.stream_ids[0]) == 3] for batch, _ in trainer.batches]
    assert items["tags"] == [sum(num_items(micro.inputs) for micro in own) for own in micros]
