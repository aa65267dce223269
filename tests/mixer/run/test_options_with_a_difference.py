"""Options that mean something else to a mixture, where no other test shows it."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from docs.site.options_page import option_names
from mixer import MixingTrainer, Probing, Stream
from mixer.distributed.collectives import RankSync
from tests.helpers import InOrder, Tokens, arguments, weights_of
from tests.mixer.trainer.runs import make, train


@pytest.mark.skipif("dataloader_multiprocessing_context" not in option_names(), reason="an older transformers")
def test_workers_are_started_and_load_ahead_as_is_said(tmp_path: Path) -> None:
    options = {"dataloader_num_workers": 2, "dataloader_prefetch_factor": 3}
    for own, context in (({}, None), ({"dataloader_multiprocessing_context": "spawn"}, "spawn")):
        workers = make(tmp_path, **options, **own).get_train_dataloader()._prefetcher._workers
        assert workers.num_jobs == 6
        found = workers._loader.multiprocessing_context
        assert (found and found.get_start_method()) == context


class _Broken(MixingTrainer):
    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        loss = super().compute_loss(*args, **kwargs)
        return loss * float("nan") if self.model.training and self.state.global_step == 1 else loss


@pytest.mark.parametrize("filters", [True, False])
def test_the_loss_of_a_step_that_is_not_finite_is_left_out(filters: bool, tmp_path: Path) -> None:
    options = {"logging_nan_inf_filter": filters, "logging_steps": 3}
    trainer = train(tmp_path, kind=_Broken, nonfinite="skip", **options)
    assert bool(torch.tensor(trainer.state.log_history[0]["loss"]).isfinite()) is filters


@pytest.mark.parametrize("name", ["seed", "data_seed"])
def test_a_seed_set_after_construction_is_the_one_that_rules(name: str, tmp_path: Path) -> None:
    trainers = []
    for at_construction, later in ((1, 7), (7, 7), (1, 1)):
        own: dict[str, Any] = {"drawing": "multinomial", "probe": Probing(interval_steps=2, mode="sketch")}
        trainer = make(tmp_path / str(len(trainers)), **own, **{name: at_construction})
        setattr(trainer.args, name, later)
        trainer.train()
        trainers.append(trainer)
    late, early, other = trainers
    assert torch.equal(weights_of(late.model), weights_of(early.model))
    assert not torch.equal(weights_of(late.model), weights_of(other.model))
    assert late.ledger.to_pandas().equals(early.ledger.to_pandas())
    assert late.describe_run()["data_seed"] == 7


def test_nothing_is_dropped_where_a_stream_is_iterable(tmp_path: Path) -> None:
    streams = [Stream("indexed", Tokens(20, 1), weight=1), Stream("rows", InOrder(Tokens(9, 4)), weight=1)]
    trainer = train(
        tmp_path, train_dataset=streams, dataloader_drop_last=True, max_steps=7, per_device_train_batch_size=4
    )
    assert trainer.ledger.timings()["total"].sum() > 24  # an epoch has 20 samples: its last step has them all
    assert trainer.mixing.clock.dropped_samples == 0


def test_going_on_needs_no_skipping(tmp_path: Path) -> None:
    options: dict[str, Any] = {"save_strategy": "steps", "save_steps": 2, "ignore_data_skip": True, "max_steps": 4}
    whole = train(tmp_path, **options)
    parts = train(tmp_path, resume=tmp_path / "checkpoint-2", **options)
    assert torch.equal(weights_of(whole.model), weights_of(parts.model))


def test_ranks_wait_for_each_other_as_long_as_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made: list[Any] = []
    monkeypatch.setattr(dist, "get_backend", lambda: "nccl")
    monkeypatch.setattr(dist, "new_group", lambda **options: made.append(options))
    RankSync(2, arguments(tmp_path, ddp_timeout=7200).ddp_timeout_delta)
    assert made == [{"backend": "gloo", "timeout": timedelta(hours=2)}]
