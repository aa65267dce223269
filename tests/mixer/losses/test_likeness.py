"""Whether streams can share a micro-batch, and what hundreds of streams cost."""

from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor
from transformers import TrainerCallback, default_data_collator

from mixer import LossChange, Stream
from mixer.loading.batching import MicroBatchCap, MicroBatcher, MicroBatchOptions, streams_in_turn
from mixer.loading.collate import Loaded, Samples
from mixer.mixture.planner import Planner
from mixer.mixture.step_plan import ids_of, positions_of
from mixer.run.hooks import ForwardResult
from mixer.trainer.facts import can_share_batch
from mixer.trainer.log import MOST_STREAMS_IN_HISTORY
from mixer.trainer.method import Method
from tests.helpers import Tokens
from tests.mixer.measurements.test_probed_numbers import Opaque
from tests.mixer.plans import make_plan
from tests.mixer.trainer.runs import make, train


def _ask(collator: Any, *samples: Any) -> bool:
    return can_share_batch(collator, samples, [collator([sample]) for sample in samples])


def _padding(samples: list[dict[str, Any]]) -> dict[str, Tensor]:
    rows = [torch.as_tensor(sample["x"]) for sample in samples]
    return {"x": torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)}


def _first_decides(samples: list[dict[str, Any]]) -> dict[str, Tensor]:
    length = len(samples[0]["x"])
    return {"x": torch.stack([torch.as_tensor(sample["x"])[:length] for sample in samples])}


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ({"x": [1, 2]}, {"x": [3, 4]}, True),
        ({"x": [1, 2]}, {"x": [3, 4, 5]}, False),
        ({"x": [1, 2], "y": 1}, {"x": [3, 4]}, False),
        ({"x": [1, 2]}, {"x": [3, 4], "y": 1}, False),
        ({"x": [1], "label": 1}, {"x": [1], "label": 1.5}, False),
        ({"x": [1], "label": 1.5}, {"x": [1], "label": 1}, False),
        ({"x": [1], "label": 1}, {"x": [1], "label": 2}, True),
        ({"x": [1], "label": [1]}, {"x": [1], "label": 1}, False),
        ({"x": np.ones(2, np.float32)}, {"x": np.ones(2, np.float64)}, False),
        ({"x": torch.ones(2, 3)}, {"x": torch.ones(2, 3)}, True),
        ({"x": torch.ones(2, 3)}, {"x": torch.ones(3, 2)}, False),
    ],
)
def test_the_default_collator_loses_nothing(first: Any, second: Any, expected: bool) -> None:
    assert _ask(default_data_collator, first, second) is expected


@given(st.lists(st.integers(1, 6), min_size=2, max_size=4))
def test_a_collator_that_pads_takes_any_lengths(lengths: list[int]) -> None:
    assert _ask(_padding, *({"x": list(range(length))} for length in lengths))


@given(st.lists(st.integers(1, 6), min_size=2, max_size=4))
def test_a_collator_that_cuts_by_the_first_sample_takes_equal_ones_alone(lengths: list[int]) -> None:
    rows = [{"x": list(range(length))} for length in lengths]
    assert _ask(_first_decides, *rows) is (len(set(lengths)) == 1)


def _keeping(samples: list[Any]) -> Any:
    return {"texts": [sample["text"] for sample in samples], "n": samples[0]["n"]}


def test_what_is_no_tensor_is_known_by_its_type() -> None:
    assert _ask(_keeping, {"text": "a", "n": 1}, {"text": "b", "n": 2})
    assert not _ask(_keeping, {"text": "a", "n": 1}, {"text": "b", "n": "two"})
    for collator in (len, lambda samples: {}):  # another form
        assert not can_share_batch(collator, [{}, {}], [{"x": 1}, {"x": 1}])


class _Other(Tokens):
    def __getitem__(self, index: int) -> dict[str, Tensor]:
        row = dict(super().__getitem__(index))
        return {**row, "token_type_ids": torch.zeros_like(row["input_ids"])}


def _micro_batches(folder: Path, streams: Any, **options: Any) -> list[set[int]]:
    found: list[set[int]] = []

    class Watching(Method):
        def begin_micro_batch(self, trained: ForwardResult, is_synchronised: bool) -> None:
            found.append(set(trained.micro.stream_ids.tolist()))

    options = {"train_dataset": streams, "batch_size": 8, "methods": [Watching()], "max_steps": 2, **options}
    train(folder, "bert-classifier", **options)
    return found


_KIND = "sequence-classification"


def _taking_labels_out(samples: list[Any]) -> Any:
    labels = [sample.pop("labels") for sample in samples]
    return {**default_data_collator(samples), "labels": torch.stack(labels)}


def _pairs(samples: list[Any]) -> Any:
    assert len(samples) > 1, "two at least"
    return default_data_collator(samples)


class _Fresh(Tokens):
    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return dict(super().__getitem__(index))


class _FailsOnce(_Other):
    is_broken = True

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        if self.is_broken:
            self.is_broken = False
            raise OSError("not now")
        return super().__getitem__(index)


def _table(**more: Any) -> datasets.Dataset:
    ids = [[1, 2, 3], [4, 5, 6]] * 4
    return datasets.Dataset.from_dict({"input_ids": ids, "labels": [0, 1] * 4, **more}).with_format("torch")


OWN, OTHER = Tokens(8, 1, _KIND), _Other(8, 2, _KIND)
FRESH = {"data_collator": _taking_labels_out, "remove_unused_columns": False}


@pytest.mark.parametrize(
    ("streams", "options", "are_alike"),
    [
        ([OWN, Tokens(8, 2, _KIND)], {}, True),
        ([OWN, OTHER], {}, False),
        ([OTHER, OWN], {}, False),
        ([Tokens(8, 1, _KIND, 6), Tokens(8, 2, _KIND, 9)], {}, False),
        # A collator may change the samples that it is given.
        ([_Fresh(8, 1, _KIND), _Fresh(8, 2, _KIND)], FRESH, True),
        # Columns of tables are compared after those that the model takes are left.
        ([_table(), _table(source=["x"] * 8)], {}, True),
        ([_table(), _table(attention_mask=[[1, 1, 1]] * 8)], {}, False),
        # Of these nothing is known: one cannot be read at first, the other not be collated alone.
        ([OWN, _FailsOnce(8, 2, _KIND)], {}, False),
        ([OWN, OTHER], {"data_collator": _pairs}, False),
    ],
)
def test_streams_that_differ_have_micro_batches_of_their_own(tmp_path, streams, options, are_alike) -> None:
    found = _micro_batches(tmp_path, dict(zip("ab", streams, strict=True)), **options)
    assert found == ([{0, 1}] if are_alike else [{0}, {1}]) * 2


class _Drawing(Tokens):
    def __getitem__(self, index: int) -> dict[str, Tensor]:
        torch.rand(()), np.random.rand()  # noqa: NPY002
        return super().__getitem__(index)


def test_reading_first_samples_leaves_no_trace(tmp_path: Path) -> None:
    states = []
    for kind in (Tokens, _Drawing):  # the Trainer seeds the generators, and nothing moves them from there
        make(tmp_path, "bert-classifier", train_dataset={"a": kind(4, 1, _KIND), "b": kind(4, 2, _KIND)})
        states.append((torch.get_rng_state(), torch.from_numpy(np.random.get_state()[1])))  # type: ignore[index]  # noqa: NPY002
    assert all(torch.equal(one, other) for one, other in zip(*states, strict=True))


@pytest.mark.parametrize("is_beyond", [False, True])
def test_the_history_keeps_single_streams_only_where_they_are_not_too_many(tmp_path: Path, is_beyond: bool) -> None:
    told: list[dict[str, Any]] = []

    class Told(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
            told.append(dict(logs))

    names = [f"s{number}" for number in range(MOST_STREAMS_IN_HISTORY + is_beyond)]
    trainer = train(tmp_path, max_steps=2, train_dataset=dict.fromkeys(names, Tokens(4, 1)), callbacks=[Told()])
    batches = [entry for entry in trainer.state.log_history if "loss" in entry]
    of_streams = {f"{what}/{name}" for what in ("coverage", "weight", "count") for name in names}
    assert len(batches) == 2
    for entry, logs in zip(batches, told, strict=False):
        assert {"loss", "learning_rate", "train_coverage", "batch_size", "step"} <= entry.keys()
        assert of_streams <= logs.keys()
        assert bool(of_streams & entry.keys()) != is_beyond
        assert all(entry[key] == logs[key] for key in logs.keys() & entry.keys())
    num_rows = 1 if is_beyond else 2  # of each stream: with many, a row covers several steps
    assert trainer.ledger.to_pandas().groupby("step").size().tolist() == [len(names)] * num_rows


@given(st.lists(st.integers(0, 4), min_size=1, max_size=60), st.integers(1, 4), st.integers(1, 5))
def test_micro_batches_in_turns_hold_every_sample_once(counts: list[int], world_size: int, max_samples: int) -> None:
    plan = make_plan(counts, starts=list(range(len(counts))))
    are_alone = streams_in_turn(plan, most=5)
    assert are_alone.sum() == min(5, np.count_nonzero(plan.counts))
    planner = Planner([Stream(str(k), range(1000)) for k in range(len(counts))], seed=0)
    found, num_micro_batches = [], set()
    for rank in range(world_size):
        cutter = MicroBatcher(MicroBatchOptions(max_samples), rank, world_size)
        share = cutter.share(planner, plan, are_alone)
        ids, positions = ids_of(share), positions_of(share)
        loaded = Loaded(Samples(None, ids).references(len(ids)))
        order, slices = cutter.split(plan, share, ids, loaded, are_alone, MicroBatchCap(max_samples))
        assert order is not None
        num_micro_batches.add(len(slices))
        for cut in slices:
            places = order[cut.start : cut.stop]
            assert len(places) <= max_samples
            assert cut.stream_id < 0 or set(ids[places]) <= {cut.stream_id}
            assert cut.stream_id >= 0 or not are_alone[ids[places]].any()
            found += list(zip(ids[places].tolist(), positions[places].tolist(), strict=True))
    assert len(num_micro_batches) == 1
    assert sorted(found) == [(k, k + i) for k, count in enumerate(counts) for i in range(count)]


def test_losses_without_rows_are_measured_in_turns(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    num_streams, model = 40, Opaque()
    data = Tokens(80, 1, "sequence-classification")
    streams = {f"s{k}": [data[2 * k], data[2 * k + 1]] for k in range(num_streams)}
    own = {"per_device_train_batch_size": 64, "learning_rate": 0.0, "batch_size": num_streams, "max_steps": 4}
    trainer = train(tmp_path, model, train_dataset=streams, mixing=LossChange(floor=0.01), **own)
    micro_batches = trainer.ledger.timings()["micro_batches"]
    assert micro_batches.tolist() == [1, 17, 17, 17]  # sixteen streams alone, and the others together
    rows = trainer.ledger.to_pandas()
    assert rows.groupby("step")["loss"].count().tolist() == [0, 16, 16, 16]
    assert rows.groupby("stream")["loss"].count().min() == 1  # three steps with them show all forty
    assert "each step measures the losses of 16 of the 40 streams, in turns" in caplog.text
    assert "not finite" not in caplog.text
    # The loss that is trained is the mean over all samples all the same.
    with torch.no_grad():
        expected = model(**default_data_collator(list(data)))["loss"]
    losses = [entry["loss"] for entry in trainer.state.log_history[:2]]
    assert np.mean(losses) == pytest.approx(float(expected), rel=1e-5)
