"""Steps and micro-batches of one stream each, in a trainer."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mixer import Exposure, LossChange, MixingTrainer, PiKE, Stream
from mixer.loading.loaded_step import StepBatch
from replay import ReplayBuffer, ReplayRatio
from tests.helpers import build_model, three_streams, weights_of
from tests.mixer.trainer.runs import folder_of, logged, make, train
from tests.refusals import refused

SIZES = {"a": 20, "b": 11, "c": 6}
EPOCHS = {"max_steps": -1, "num_train_epochs": 2, "one_stream_per": "step"}


class Recording(MixingTrainer):
    """Keeps the steps as they are loaded."""

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        batch, num_items = super().get_batch_samples(*args, **kwargs)
        self.__dict__.setdefault("steps", []).extend(batch)
        return batch, num_items


def steps_of(trainer: Any) -> list[StepBatch]:
    return trainer.steps


def pairs(batch_size: int, number: int, seed: int) -> Sequence[Sequence[int]]:
    order = np.random.default_rng([seed, number]).permutation(20).reshape(5, 4)
    return order.tolist()


def once() -> list[Stream]:
    return [Stream(name, data, max_epochs=1) for name, data in three_streams().items()]


def test_each_step_is_one_streams_and_shares_are_those_of_samples(tmp_path: Path) -> None:
    trainer = train(tmp_path, kind=Recording, mixing={"a": 2, "b": 1, "c": 1}, **{**EPOCHS, "num_train_epochs": 8})
    for batch in steps_of(trainer):
        assert np.count_nonzero(batch.plan.counts) == 1
        assert all(len(set(micro.stream_ids.tolist())) == 1 for micro in batch.micro_batches)
    seen = trainer.mixing.seen
    assert np.abs(seen - seen.sum() * np.array([0.5, 0.25, 0.25])).max() <= (2 + np.log(3)) * 8


def test_a_run_over_whole_streams_gives_every_row_once_and_ends_its_learning_rate(tmp_path: Path) -> None:
    trainer = train(tmp_path, train_dataset=once(), **{**EPOCHS, "num_train_epochs": 1})
    assert trainer.mixing.seen.tolist() == [*SIZES.values()]
    assert trainer.state.global_step == sum(-(-size // 8) for size in SIZES.values())
    assert trainer.state.epoch == 1
    assert max(trainer.lr_scheduler.get_last_lr()) == pytest.approx(0.0, abs=1e-9)


def test_its_gradients_and_losses_are_those_of_plain_pytorch(tmp_path: Path) -> None:
    trainer = train(tmp_path, kind=Recording, lr_scheduler_type="constant", one_stream_per="step", max_steps=4)
    model = build_model("llama")
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1), []
    for batch in steps_of(trainer):
        loss = model(**{name: batch[name] for name in ("input_ids", "attention_mask", "labels")}).loss
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.testing.assert_close(weights_of(trainer.model), weights_of(model), rtol=1e-5, atol=1e-6)
    assert logged(trainer, "loss") == pytest.approx(losses, abs=1e-4)


def test_micro_batches_of_one_stream_each_leave_the_gradient_of_a_step_as_it_is(tmp_path: Path) -> None:
    mixed = train(tmp_path / "mixed", batch_size=12)
    parted = train(tmp_path / "parted", kind=Recording, batch_size=12, one_stream_per="micro_batch")
    assert all(len(set(micro.stream_ids.tolist())) == 1 for step in steps_of(parted) for micro in step.micro_batches)
    assert any(np.count_nonzero(step.plan.counts) > 1 for step in steps_of(parted))
    torch.testing.assert_close(weights_of(parted.model), weights_of(mixed.model), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["shuffled", "batches"])
def test_a_resumed_run_goes_on_as_if_it_was_never_interrupted(tmp_path: Path, kind: str) -> None:
    def streams() -> list[Stream]:
        own = {"a": pairs} if kind == "batches" else {}
        return [Stream(name, data, batches=own.get(name)) for name, data in three_streams().items()]

    options = {**EPOCHS, "save_strategy": "steps", "save_steps": 5, "mixing": LossChange(num_warmup_observations=1)}
    whole = train(tmp_path, train_dataset=streams(), **options)
    options["mixing"] = LossChange(num_warmup_observations=1)
    resumed = train(tmp_path, train_dataset=streams(), resume=tmp_path / "checkpoint-5", **options)
    assert torch.equal(weights_of(whole.model), weights_of(resumed.model))
    assert whole.mixing.seen.tolist() == resumed.mixing.seen.tolist()


def test_a_policy_by_losses_sees_the_loss_of_the_steps_stream(tmp_path: Path) -> None:
    trainer = train(tmp_path, mixing=LossChange(num_warmup_observations=1), **EPOCHS)
    assert trainer.mixing.weights != pytest.approx(dict.fromkeys(SIZES, 1 / 3))


def test_the_ledger_tells_the_rows_of_batches(tmp_path: Path) -> None:
    streams = [Stream(name, data, batches=pairs if name == "a" else None) for name, data in three_streams().items()]
    trainer = train(tmp_path, kind=Recording, train_dataset=streams, **EPOCHS)
    exposure = Exposure(folder_of(trainer))
    for batch in steps_of(trainer):
        name = trainer.mixing.names[batch.plan.first_stream]
        rows = [index for micro in batch.micro_batches for index in micro.indices.tolist()]
        found = exposure.at(batch.plan.step)
        assert sorted(found["row"]) == sorted(rows)
        assert set(found["stream"]) == {name}
    assert not [*exposure.never("a")] or trainer.mixing.seen[0] < SIZES["a"]


@pytest.mark.parametrize(
    ("option", "changes"),
    [
        ("mixing", {"mixing": PiKE()}),
        ("conflict", {"conflict": "pcgrad"}),
        ("one_stream_per", {"one_stream_per": "epoch"}),
        ("one_stream_per", {"one_stream_per": None, "train_dataset": [Stream("a", range(4), batches=pairs)]}),
        ("one_stream_per", {"one_stream_per": "micro_batch", "train_dataset": [Stream("a", [1], distinct_by="row")]}),
        ("batch_size", {"batch_size": "SmoothedLossChange", "train_dataset": [Stream("a", [1], distinct_by="row")]}),
    ],
)
def test_what_does_not_go_together_is_refused(tmp_path: Path, option: str, changes: dict[str, Any]) -> None:
    with refused(option):
        make(tmp_path, **{"one_stream_per": "step", **changes})


def test_replay_on_top_of_a_step_is_refused(tmp_path: Path) -> None:
    streams = [*once(), Stream("memory", ReplayBuffer(8))]
    with refused("mixing"):
        make(tmp_path, one_stream_per="step", train_dataset=streams, mixing=ReplayRatio(0.5, additional=True))
