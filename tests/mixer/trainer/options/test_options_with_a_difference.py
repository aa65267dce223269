"""Options that mean something else to a mixture, where no other test shows it."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import transformers.trainer
from torch.utils.data import IterableDataset
from transformers import TrainerCallback
from transformers.debug_utils import DebugUnderflowOverflow

from docs.site.options_page import option_names
from mixer import MixingTrainer, Probing, Stream
from mixer.distributed.collectives import RankSync
from mixer.trainer.checkpointing.files import find_problem
from tests.helpers import Tokens, arguments, build_model, three_streams, weights_of


def _train(folder: Path, resume: Any = None, callbacks: Any = None, data: Any = None, **options: Any) -> MixingTrainer:
    trainer = MixingTrainer(
        build_model("llama"),
        arguments(folder, **{"per_device_train_batch_size": 4, **options}),
        train_dataset=three_streams() if data is None else data,
        callbacks=callbacks,
    )
    trainer.train(resume_from_checkpoint=resume)
    return trainer


class _Rows(IterableDataset[dict[str, torch.Tensor]]):
    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        yield from Tokens(9, 4).rows


def _streams() -> list[Stream]:
    return [Stream("indexed", Tokens(20, 1), weight=1), Stream("rows", _Rows(), weight=1)]


@pytest.mark.full
@pytest.mark.skipif("dataloader_multiprocessing_context" not in option_names(), reason="an older transformers")
def test_workers_are_started_as_is_said(tmp_path: Path) -> None:
    options = {"dataloader_num_workers": 1, "dataloader_persistent_workers": True}
    spawned = {**options, "dataloader_multiprocessing_context": "spawn"}
    ours, others = (
        _train(tmp_path / str(number), data=_streams(), **own) for number, own in enumerate((options, spawned))
    )
    assert torch.equal(weights_of(ours.model), weights_of(others.model))
    contexts = []
    for trainer in (ours, others):
        assert trainer._parts.run.loader is not None
        assert trainer._parts.run.loader._prefetcher is not None
        contexts.append(trainer._parts.run.loader._prefetcher._workers._loader.multiprocessing_context)
    assert contexts[0] is None
    assert contexts[1].get_start_method() == "spawn"


def test_workers_load_as_many_micro_batches_ahead_as_is_said(tmp_path: Path) -> None:
    args = arguments(tmp_path, dataloader_num_workers=2, dataloader_prefetch_factor=3)
    loader = MixingTrainer(build_model("llama"), args, train_dataset=three_streams()).get_train_dataloader()
    assert loader._prefetcher is not None
    assert loader._prefetcher._workers.num_jobs == 6


def test_substeps_are_not_told(tmp_path: Path) -> None:
    class Counter(TrainerCallback):
        steps = substeps = 0

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            self.steps += 1

        def on_substep_end(self, *args: Any, **kwargs: Any) -> None:
            self.substeps += 1

    counter = Counter()
    trainer = _train(tmp_path, callbacks=[counter], gradient_accumulation_steps=3)
    assert trainer.ledger.timings()["micro_batches"].tolist() == [3, 3, 3]
    assert (counter.steps, counter.substeps) == (3, 0)


def test_the_loss_of_a_step_that_is_not_finite_is_left_out(tmp_path: Path) -> None:
    class Broken(MixingTrainer):
        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            loss = super().compute_loss(*args, **kwargs)
            breaks = self.model.training and self.state.global_step == 1
            return loss * float("nan") if breaks else loss

    for filters in (True, False):
        args = arguments(tmp_path / str(filters), logging_nan_inf_filter=filters, logging_steps=3)
        trainer = Broken(build_model("llama"), args, train_dataset=three_streams(), batch_size=16, nonfinite="skip")
        trainer.train()
        logged = torch.tensor(trainer.state.log_history[0]["loss"])
        assert bool(logged.isfinite()) is filters


def test_the_data_have_a_seed_of_their_own(tmp_path: Path) -> None:
    def drawn(seed: int, data_seed: int | None) -> list[int]:
        args = arguments(tmp_path, seed=seed, data_seed=data_seed)
        trainer = MixingTrainer(build_model("llama"), args, train_dataset=three_streams())
        return [int(index) for index in trainer.mixing.planner.cursors[0].references(range(20))]

    assert drawn(1, 7) == drawn(2, 7) == drawn(7, None)
    assert drawn(1, None) != drawn(2, None)


@pytest.mark.parametrize("name", ["seed", "data_seed"])
def test_a_seed_set_after_construction_is_the_one_that_rules(name: str, tmp_path: Path) -> None:
    def trained(folder: str, at_construction: int, later: int | None = None) -> MixingTrainer:
        args = arguments(tmp_path / folder, max_steps=4, **{name: at_construction})
        trainer = MixingTrainer(
            build_model("llama"),
            args,
            train_dataset=three_streams(),
            drawing="multinomial",
            probe=Probing(interval_steps=2, mode="sketch"),
        )
        if later is not None:
            setattr(trainer.args, name, later)
        trainer.train()
        return trainer

    late, early, other = trained("late", 1, 7), trained("early", 7), trained("other", 1)
    assert torch.equal(weights_of(late.model), weights_of(early.model))
    assert not torch.equal(weights_of(late.model), weights_of(other.model))
    assert late.ledger.to_pandas().equals(early.ledger.to_pandas())
    assert late.describe_run()["data_seed"] == 7


def test_how_others_share_a_loader_does_not_matter(tmp_path: Path) -> None:
    plain = _train(tmp_path / "plain")
    config = {"even_batches": False, "use_seedable_sampler": False}
    other = _train(tmp_path / "other", accelerator_config=config)
    assert torch.equal(weights_of(plain.model), weights_of(other.model))


@pytest.mark.parametrize("is_set", [True, False])
def test_batches_are_copied_beside_the_computation_if_told_to(
    is_set: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = []
    copy = torch.Tensor.to

    def watched(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        copied.append(kwargs.get("non_blocking", False))
        return copy(tensor, *args, **kwargs)

    args = arguments(tmp_path, accelerator_config={"non_blocking": is_set}, max_steps=1)
    trainer = MixingTrainer(build_model("llama"), args, train_dataset=three_streams())
    monkeypatch.setattr(torch.Tensor, "to", watched)
    trainer.train()
    assert any(copied) is is_set


def test_nothing_is_dropped_where_a_stream_is_iterable(tmp_path: Path) -> None:
    trainer = _train(tmp_path, data=_streams(), dataloader_drop_last=True, max_steps=7)
    assert trainer.ledger.timings()["total"].sum() > 24  # an epoch has 20 samples: its last step has them all
    assert trainer.mixing.clock.dropped_samples == 0


def test_going_on_needs_no_skipping(tmp_path: Path) -> None:
    whole = _train(tmp_path / "whole", max_steps=6, lr_scheduler_type="constant")
    options = {"save_strategy": "steps", "save_steps": 2, "lr_scheduler_type": "constant", "ignore_data_skip": True}
    _train(tmp_path / "parts", max_steps=4, **options)
    parts = _train(tmp_path / "parts", resume=True, max_steps=6, **options)
    assert torch.equal(weights_of(whole.model), weights_of(parts.model))


def test_a_checkpoint_is_whole_when_it_is_pushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pushed = []

    class Pushing(MixingTrainer):
        def init_hf_repo(self, *args: Any, **kwargs: Any) -> None:
            self.hub_model_id = "nobody/nothing"

        def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
            pushed.append((Path(checkpoint_folder).name, find_problem(Path(checkpoint_folder))))

    args = arguments(tmp_path, push_to_hub=True, save_strategy="steps", save_steps=2, max_steps=4)
    Pushing(build_model("llama"), args, train_dataset=three_streams()).train()
    assert pushed == [("checkpoint-2", None), ("checkpoint-4", None)]


def test_numbers_are_watched_in_the_first_forwards_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watching: list[Any] = []

    class Watching(DebugUnderflowOverflow):  # type: ignore[misc]
        def __init__(self, model: Any):
            super().__init__(model)
            watching.append(self)

    monkeypatch.setattr(transformers.trainer, "DebugUnderflowOverflow", Watching)
    _train(tmp_path, debug="underflow_overflow", gradient_accumulation_steps=2)
    assert watching[0].batch_number == 3 + 3 * 2


def test_ranks_wait_for_each_other_as_long_as_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made: list[Any] = []
    monkeypatch.setattr(dist, "get_backend", lambda: "nccl")
    monkeypatch.setattr(dist, "new_group", lambda **options: made.append(options))
    RankSync(2, arguments(tmp_path, ddp_timeout=7200).ddp_timeout_delta)
    assert made == [{"backend": "gloo", "timeout": timedelta(hours=2)}]
