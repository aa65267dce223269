from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from transformers import default_data_collator

from mixer import MixingTrainer, Stream
from replay import ReplayBuffer, ReplayRatio
from replay.selection import ClassBalanced, Ring
from replay.storage.sources import split
from tests.helpers import MODEL_DATA, Tokens, arguments, build_model, weights_of
from tests.mixer.forms import assert_logged, gradient_by_hand, logged, means_by_hand, multi_task, task_streams, watched
from tests.refusals import refused
from tests.replay.buffers import STORAGES, Classes, Watch, hexadecimal, make, snapshot, train


def classes_as_arrow(seed: int, column: str) -> datasets.Dataset:
    plain = [{name: value.tolist() for name, value in Classes(40, seed)[index].items()} for index in range(40)]
    return datasets.Dataset.from_list([{**row, column: row.pop("labels")} for row in plain])


def _rows(count: int, first: int = 1) -> Iterator[dict[str, Any]]:
    for number in range(count):
        row = [first, number + 1, 3, 4, 5]
        yield {"input_ids": row, "labels": row, "attention_mask": [1] * 5}


def iterable(count: int = 50, first: int = 1) -> datasets.IterableDataset:
    made = datasets.IterableDataset.from_generator(_rows, gen_kwargs={"count": count, "first": first})
    return made.with_format("torch")


class ManyOffered:
    """Notes every sample that is offered, with what is known of it."""

    def __init__(self, buffer: ReplayBuffer):
        self.labels: list[int] = []
        self.losses: list[float] = []
        self.addresses: list[int] = []
        self.now: dict[int, float] = {}  # the loss of each row that is kept, as it was last told
        offer = buffer.offer

        def noting(offers: Any, addresses_of: Any, make_rows: Any = None, **options: Any) -> Any:
            self.labels += [] if offers.labels is None else offers.labels.tolist()
            self.losses += [] if offers.losses is None else offers.losses.tolist()
            self.addresses += addresses_of(np.arange(offers.count)).tolist()
            first = buffer.rows.next_number
            kept = offer(offers, addresses_of, make_rows, **options)
            self.now |= {} if offers.losses is None else dict(enumerate(offers.losses[kept].tolist(), first))
            return kept

        buffer.offer = noting


@pytest.mark.parametrize(
    ("selection", "storage"), [(ClassBalanced, "references"), (lambda: Ring(by="label"), "memory")]
)
def test_classes_are_the_same_wherever_they_come_from(selection: Any, storage: str, tmp_path: Path) -> None:
    sources: list[Any] = [
        {"a": classes_as_arrow(1, "label"), "b": classes_as_arrow(2, "label")},
        {"a": Classes(40, 1), "b": Classes(40, 2)},
        {"a": classes_as_arrow(1, "labels"), "b": [dict(row) for row in classes_as_arrow(2, "labels")]},
    ]
    found, classes = [], [Classes(40, seed).classes for seed in (1, 2)]
    for streams in sources:
        buffer = ReplayBuffer(12, selection(), storage, seed=0)
        offered, model = ManyOffered(buffer), build_model("llama-classifier")
        options = {"model": model, "mixing": ReplayRatio(0.2, "Uniform"), "args": {"max_steps": 8}}
        trainer = train(tmp_path, {**streams, "memory": buffer}, **options)
        for labels, where in (
            (offered.labels, offered.addresses),
            (buffer.entries["label"].tolist(), buffer._entries["address"].tolist()),
        ):
            assert labels == [classes[address >> 40][address % 2**40] for address in where]
        found.append((snapshot(buffer), offered.labels, hexadecimal(trainer)))
    assert all(each == found[0] for each in found)
    if selection is ClassBalanced:
        # The first class has more than 4 of 9 samples; each class that had 4 has its third of the room.
        assert np.bincount(found[0][0]["entries"]["label"], minlength=3).tolist() == [4, 4, 4]


def test_a_named_column_rules_over_the_labels_that_are_trained_on(tmp_path: Path) -> None:
    data = classes_as_arrow(1, "labels").map(lambda row, number: {"domain": number % 5}, with_indices=True)
    buffer = ReplayBuffer(10, "ClassBalanced", label_column="domain", seed=0)
    train(tmp_path, {"a": data, "memory": buffer}, model=build_model("llama-classifier"), args={"max_steps": 6})
    assert (buffer.entries["label"] == split(buffer._entries["address"])[1] % 5).all()
    assert np.bincount(buffer.entries["label"]).tolist() == [2] * 5


class Opaque(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(64))

    def forward(self, input_ids: Any, attention_mask: Any = None, labels: Any = None) -> dict[str, Any]:
        return {"loss": (self.weight[input_ids] ** 2).mean()}


BALANCED = {"selection": "ClassBalanced"}


@pytest.mark.parametrize(
    ("model", "streams", "buffer", "option"),
    [
        ("llama", {}, {"selection": "Ring"}, "selection"),
        ("bert-regression", {}, BALANCED, "selection"),
        ("bert-multi-label", {}, BALANCED, "selection"),
        ("llama", {}, {**BALANCED, "label_column": "lable"}, "label_column"),
        ("llama", {"rows": iterable}, {**BALANCED, "storage": "memory", "label_column": "x"}, "label_column"),
        ("llama", {"rows": iterable}, {}, "storage"),
        (None, {}, {"selection": "LossAware"}, "selection"),
    ],
)
def test_what_is_not_known_of_samples_is_refused(tmp_path, model, streams, buffer, option) -> None:
    data = {"a": Tokens(20, 1, MODEL_DATA[model or "llama"]), **{name: each() for name, each in streams.items()}}
    options = {"model": build_model(model) if model else Opaque(), "mixing": ReplayRatio(0.3, "Uniform")}
    with refused(option):
        train(tmp_path, {**data, "memory": ReplayBuffer(10, **buffer)}, **options)


def row_losses(model: Any, row: dict[str, torch.Tensor]) -> float:
    """Mean cross entropy of the next tokens, from the logits."""
    with torch.no_grad():
        logits = model(input_ids=row["input_ids"][None], attention_mask=row["attention_mask"][None]).logits[0, :-1]
    return float(torch.nn.functional.cross_entropy(logits.double(), row["labels"][1:], ignore_index=-100))


@pytest.mark.parametrize("micro_batch_size", [50, 3])
def test_losses_are_those_of_the_step_that_trained(micro_batch_size: int, tmp_path: Path) -> None:
    streams = {"a": Tokens(31, 1), "b": Tokens(20, 2)}
    buffer, watch = ReplayBuffer(9, "LossAware", "memory", seed=0), Watch()
    offered = ManyOffered(buffer)
    expected: list[float] = []
    args = {"per_device_train_batch_size": micro_batch_size, "learning_rate": 0.5, "max_steps": 6}
    trainer = make(tmp_path, {**streams, "memory": buffer}, watch, args=args)
    note = watch.on_pre_optimizer_step

    def measure(*arguments: Any, **kwargs: Any) -> None:  # before the step, as the step's forward saw the model
        note(*arguments, **kwargs)
        trainer.model.eval()
        expected.extend(row_losses(trainer.model, streams[name][index]) for name, index in watch.offered[-1])
        for row in watch.drawn[-1].get("memory", []):
            (found,) = buffer.rows.read(np.array([row]))
            offered.now[row] = row_losses(trainer.model, found.sample)
        trainer.model.train()

    watch.on_pre_optimizer_step = measure
    trainer.train()
    assert len(offered.losses) == len(expected) == buffer.num_offered
    np.testing.assert_allclose(offered.losses, expected, rtol=1e-4)
    assert np.ptp(expected) > 0.1
    now = [offered.now[row] for row in buffer._entries["row"].tolist()]
    np.testing.assert_allclose(buffer.selection.state_dict()["weights"], np.exp(-np.array(now)), rtol=1e-4)


def test_losses_of_a_classifier_and_under_weights_of_losses_are_unweighted(tmp_path: Path) -> None:
    buffer = ReplayBuffer(200, "LossAware", seed=0)
    offered = ManyOffered(buffer)
    streams = [Stream("a", Classes(30, 1), loss_weight=0.5), Stream("b", Classes(30, 2)), Stream("memory", buffer)]
    options = {"model": build_model("llama-classifier"), "args": {"max_steps": 4}}
    rows = train(tmp_path, streams, **options).ledger.to_pandas()
    means = rows[rows["stream"] != "memory"]
    assert sum(offered.losses) == pytest.approx((means["loss"] * means["items"]).sum(), rel=1e-4)


@pytest.mark.parametrize(
    ("selection", "storage", "num_workers"),
    [("Reservoir", "disk", 0), ("LossAware", "memory", 0), ("LossAware", "disk", 1)],
)
def test_rows_that_are_kept_come_back(selection: str, storage: str, num_workers: int, tmp_path: Path) -> None:
    buffer, watch = ReplayBuffer(15, selection, STORAGES[storage](tmp_path / "rows"), seed=0), Watch()
    streams = [Stream("rows", iterable()), Stream("map", Tokens(30, 1, length=5)), Stream("memory", buffer)]
    args = {"dataloader_num_workers": num_workers, "max_steps": 8}
    train(tmp_path / "run", streams, watch, mixing=ReplayRatio(0.3, "Uniform"), args=args)
    trained: list[set[tuple[int, ...]]] = [set(), set(), set()]
    for step in watch.rows:
        now = [(int(stream_id), tuple(ids.tolist())) for stream_id, _, ids in step]
        assert {ids for stream_id, ids in now if stream_id == 2} <= trained[0] | trained[1]
        for stream_id, ids in now:
            trained[stream_id].add(ids)
    assert trained[2] & trained[0]
    assert trained[2] & trained[1]
    assert set(buffer.num_samples_by_source) == {"rows", "map"}
    rows = buffer._entries["task"] == buffer.sources.names.index("rows")
    assert ((buffer._entries["address"] == -1) == rows).all()
    held = {tuple(torch.as_tensor(buffer[slot]["input_ids"]).tolist()) for slot in np.flatnonzero(rows).tolist()}
    assert held <= trained[0]


NAMES, HEADS = ["topic", "stars", "memory"], ["topic", "stars", "stars"]


def _make(folder: Path, **buffer: Any) -> Any:
    memory = Stream("memory", ReplayBuffer(10, **{"streams": ["stars"], **buffer}), head="stars")
    args = {"save_strategy": "steps", "save_steps": 2, "max_steps": 4}
    options = {"mixing": ReplayRatio(0.3), "batch_size": 12, "args": args}
    return watched(folder, multi_task(), [*task_streams(["topic", "stars"]), memory], 5, **options)


@pytest.mark.parametrize("options", [{}, {"storage": "memory"}, {"retrieval": "MIR"}])
def test_what_is_remembered_goes_through_its_head(tmp_path: Path, options: dict[str, Any]) -> None:
    trainer = _make(tmp_path, **options)
    trainer.train()
    steps = zip(trainer.recorder.gradients, trainer.batches, logged(trainer), strict=True)
    for gradient, (batch, model), entry in steps:
        means = means_by_hand(batch, model, HEADS)
        torch.testing.assert_close(gradient, gradient_by_hand(batch, model, means), rtol=0, atol=1e-12)
        assert_logged(entry, batch, means, NAMES)
    assert sum(int(batch.plan.counts[2]) for batch, _ in trainer.batches) > 5
    if not options:
        resumed = _make(tmp_path)
        resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
        assert torch.equal(weights_of(trainer.model), weights_of(resumed.model))


@pytest.mark.parametrize("streams", [None, ["topic"], ["topic", "stars"]])
def test_a_memory_of_samples_of_another_head_is_refused(tmp_path: Path, streams: list[str] | None) -> None:
    with refused("head", stream="memory", found=["topic"]):
        _make(tmp_path, streams=streams).train()


def test_other_memories_beside_heads(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Stream 'memory': name the head"):
        watched(tmp_path, multi_task(), [*task_streams(["topic"]), Stream("memory", ReplayBuffer(10))])
    streams = [Stream(name, Tokens(8, 1, "regression"), head="stars") for name in ("a", "b")]
    streams.append(Stream("memory", ReplayBuffer(10), head="stars"))
    watched(tmp_path, multi_task(), streams, mixing=ReplayRatio(0.2))
    assert _make(tmp_path, is_online=False, streams=None).streams[-1].is_memory


def _loss(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
    return outputs.logits.square().mean()


def test_a_buffer_needs_the_form_of_its_streams(tmp_path: Path) -> None:
    own = {"data_collator": default_data_collator, "label_names": ["labels"], "compute_loss_func": _loss}

    def build(**memory: Any) -> None:
        streams = [Stream("a", Tokens(8, 1, "sequence-classification"), **own), Stream("m", ReplayBuffer(20), **memory)]
        args = arguments(tmp_path)
        MixingTrainer(build_model("bert-classifier"), args, train_dataset=streams, mixing=ReplayRatio(0.25))

    with refused("compute_loss_func, data_collator, label_names", stream="m", found=["a"]):
        build()
    build(**own)
