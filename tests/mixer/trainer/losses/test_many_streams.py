"""Hundreds of streams: what the Trainer's own state keeps of them, and what their losses cost."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import TrainerCallback, default_data_collator

from mixer import LossChange, MixingTrainer, Stream
from mixer.loading.batching import MicroBatcher, MicroBatchOptions, ids_of, positions_of, streams_in_turn
from mixer.loading.collate import Loaded
from mixer.loading.memory import MicroBatchCap
from mixer.loading.transport import Samples
from mixer.mixture.planner import Planner
from mixer.trainer.log import MOST_STREAMS_IN_HISTORY
from tests.helpers import Tokens, arguments, build_model
from tests.mixer.plans import make_plan
from tests.mixer.trainer.observers.test_probed_numbers import Opaque


@pytest.mark.parametrize("is_beyond", [False, True])
def test_the_history_keeps_single_streams_only_where_they_are_not_too_many(tmp_path: Path, is_beyond: bool) -> None:
    told: list[dict[str, Any]] = []

    class Told(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
            told.append(dict(logs))

    names = [f"s{number}" for number in range(MOST_STREAMS_IN_HISTORY + is_beyond)]
    data, args = dict.fromkeys(names, Tokens(4, 1)), arguments(tmp_path, max_steps=2)
    trainer = MixingTrainer(build_model("llama"), args, train_dataset=data, callbacks=[Told()])
    trainer.train()
    batches = [entry for entry in trainer.state.log_history if "loss" in entry]
    of_streams = {f"{what}/{name}" for what in ("coverage", "weight", "count") for name in names}
    assert len(batches) == 2
    for entry, logs in zip(batches, told, strict=False):
        assert {"loss", "learning_rate", "train_coverage", "batch_size", "step"} <= entry.keys()
        assert of_streams <= logs.keys()
        assert bool(of_streams & entry.keys()) != is_beyond
        assert all(entry[key] == logs[key] for key in logs.keys() & entry.keys())
    assert trainer.ledger.to_pandas().groupby("step").size().tolist() == [len(names)] * 2


@given(st.lists(st.integers(0, 4), min_size=1, max_size=60), st.integers(1, 4), st.integers(1, 5))
def test_micro_batches_in_turns_hold_every_sample_once(counts: list[int], world_size: int, max_samples: int) -> None:
    plan = make_plan(counts, starts=list(range(len(counts))))
    are_alone = streams_in_turn(plan, most=5)
    assert are_alone.sum() == min(5, np.count_nonzero(plan.counts))
    planner = Planner([Stream(str(k), range(1000)) for k in range(len(counts))], seed=0)
    found, num_micro_batches = [], set()
    for rank in range(world_size):
        cutter = MicroBatcher(lambda: planner, MicroBatchOptions(max_samples), rank, world_size)
        share = cutter.share(plan, are_alone)
        ids, positions = ids_of(share), positions_of(share)
        order, slices = cutter.split(
            plan, share, ids, Loaded(Samples(None, ids)), are_alone, MicroBatchCap(max_samples)
        )
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
    args = arguments(tmp_path, max_steps=3, per_device_train_batch_size=64, learning_rate=0.0)
    trainer = MixingTrainer(model, args, train_dataset=streams, mixing=LossChange(floor=0.01), batch_size=num_streams)
    trainer.train()
    micro_batches = trainer.ledger.timings()["micro_batches"]
    assert micro_batches.tolist() == [17] * 3  # sixteen streams alone, and the others together
    rows = trainer.ledger.to_pandas()
    assert rows.groupby("step")["loss"].count().tolist() == [16] * 3
    assert rows.groupby("stream")["loss"].count().min() == 1  # three steps show all forty
    assert "a step measures the losses of 16 of the 40 streams, in turns" in caplog.text
    assert "not finite" not in caplog.text
    # The loss that is trained is the mean over all samples all the same.
    with torch.no_grad():
        expected = model(**default_data_collator(list(data)))["loss"]
    losses = [entry["loss"] for entry in trainer.state.log_history[:2]]
    assert np.mean(losses) == pytest.approx(float(expected), rel=1e-5)


def test_streams_that_cannot_share_micro_batches_are_told_with_the_cost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = Tokens(4, 1, "sequence-classification")
    own = [Stream(f"s{k}", data, data_collator=partial(default_data_collator)) for k in range(20)]
    args = arguments(tmp_path, per_device_train_batch_size=8)
    MixingTrainer(build_model("bert-classifier"), args, train_dataset=own[:16], batch_size=64)
    assert not caplog.text  # so few are not worth a word
    MixingTrainer(build_model("bert-classifier"), args, train_dataset=own, batch_size=64)
    assert "Each of the 20 streams has separate micro-batches" in caplog.text
    assert "a step of 64 samples takes at least 20 forward passes instead of 8" in caplog.text
