"""Every part of a trainer is built of a plan and of other parts, which it leaves as they are, without a Trainer."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import numpy as np
import torch
from torch import nn
from transformers import TrainerControl, TrainerState, TrainingArguments, default_data_collator
from transformers.trainer_callback import CallbackHandler

from mixer import Stream
from mixer.checkpoint.starting_point import StartingPoint
from mixer.distributed.collectives import RankSync
from mixer.ledger.ledger import Ledger
from mixer.ledger.recorder import Recorder
from mixer.ledger.trackers.reporting import Reporting
from mixer.loading.build import assemble
from mixer.losses.stream_losses import StreamLosses
from mixer.measure.auxiliary_passes import AuxiliaryPasses
from mixer.mixture.controller import Mixing
from mixer.run.loading import LoadingRules, StreamLoading
from mixer.run.plan import RunPlan
from mixer.run.state import Basis, PresentStep, Run
from mixer.trainer.confirmation import StepConfirmation
from mixer.trainer.evaluation.evaluation import StreamEvaluation
from mixer.trainer.guard import WeightGuard
from mixer.trainer.hyperparameter_search import Search
from mixer.trainer.log import StreamLog
from mixer.trainer.loop import LoopControl, MixingCallback
from mixer.trainer.loss_trials import LossTrials
from mixer.trainer.measuring import new_hooks
from mixer.trainer.methods import MethodList
from mixer.trainer.micro_batch import MicroBatchTraining
from mixer.trainer.out_of_memory import Recovery
from mixer.trainer.resume import Resuming
from mixer.trainer.save import Checkpointing, HeldArguments
from mixer.trainer.step import StepRunner
from mixer.trainer.stream_separation import StreamSeparation
from mixer.trainer.streams_that_differ import StreamDifferences
from mixer.trainer.training import Training
from tests.mixer.run.run_plans import planned


class _Model(nn.Module):
    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> Any:
        """Is never run."""


class _StandIn(SimpleNamespace):
    def compute_loss(self, *_: Any) -> None:
        """Is never called; a loss of the user's own."""


class Built:
    """Builds parts, and notes which attributes of anything built or given before a constructor has changed."""

    def __init__(self, *given: Any) -> None:
        self._known, self.changed = list(given), list[str]()

    def make(self, kind: Any, *args: Any, **kwargs: Any) -> Any:
        before = [dict(vars(one)) for one in self._known]
        part = kind(*args, **kwargs)
        for one, was in zip(self._known, before, strict=True):
            now = vars(one)
            names = [name for name in {**was, **now} if was.get(name, kind) is not now.get(name, kind)]
            self.changed += [f"{kind.__name__}: {type(one).__name__}.{name}" for name in names]
        self._known.append(part)
        return part


def stand_in(folder: Path) -> Any:
    """What constructors read of a Trainer."""
    args, model = TrainingArguments(str(folder), use_cpu=True, report_to=[], max_steps=4), _Model()
    handler = CallbackHandler([], model, None, None, None)
    return _StandIn(
        args=args,
        model=model,
        model_wrapped=model,
        compute_loss_func=None,
        compute_metrics=None,
        data_collator=default_data_collator,
        eval_dataset=None,
        processing_class=None,
        callback_handler=handler,
        state=TrainerState(),
        control=TrainerControl(),
        is_world_process_zero=lambda: True,
        accelerator=SimpleNamespace(),
        _train_batch_size=8,
        _signature_columns=["x", "labels"],
        _set_signature_columns_if_needed=lambda: None,
        _remove_unused_columns=lambda dataset, description: dataset,
        _get_collator_with_removed_columns=lambda collator, description: collator,
    )


def parts_of(folder: Path, built: Built, trainer: Any, plan: RunPlan) -> SimpleNamespace:
    """Builds every part, in the order of `Parts`."""
    make, args = built.make, trainer.args
    ranks, step, streams = RankSync(1), PresentStep(), list(plan.streams)
    rules = make(LoadingRules, trainer)
    loading = make(StreamLoading, trainer, streams, plan, ranks, rules)
    differences = make(StreamDifferences, trainer, streams, loading, rules)
    losses = make(StreamLosses, trainer, step, plan)
    planner, clock, size = assemble(args, streams, plan.mixture)
    mixing = make(Mixing, planner, plan.policy, clock, size)
    ledger = make(Ledger, folder / "ledger", True)
    run = make(Run, mixing, ledger, make(Recorder, mixing, ledger, plan.reads_losses_at_once), step)
    basis = Basis(trainer, plan, run, ranks)
    passes = make(AuxiliaryPasses, basis, losses, loading)
    observers = new_hooks(passes)
    methods = make(MethodList, basis, passes, losses.sum_dtype)
    hooks = [*observers, *methods]
    arguments, guard = make(HeldArguments, trainer), make(WeightGuard, basis, methods)
    checkpoints = make(Checkpointing, basis, methods, arguments, guard)
    loop = make(LoopControl, basis, checkpoints, arguments)
    start = make(StartingPoint, basis)
    resuming = make(Resuming, basis, start, loop, checkpoints, methods)
    search = make(Search, basis, methods, lambda: None)
    confirmation = make(StepConfirmation, basis, losses, differences.check_classes, lambda: loop.signals)
    recovery = make(Recovery, basis, hooks, losses, confirmation, rules)
    separation = make(StreamSeparation, basis, len(hooks) > 0, confirmation)
    make(LossTrials, basis, losses, confirmation, separation, recovery)
    make(MicroBatchTraining, trainer, run, losses)
    steps = make(StepRunner, basis, hooks, losses, confirmation, recovery, methods, guard, arguments, None)
    reporting = make(Reporting, trainer)
    log = make(StreamLog, trainer, run, methods, reporting)
    make(StreamEvaluation, trainer).connect(basis, losses, differences, loop.agree)
    return SimpleNamespace(**locals())


def streams_of(**changes: Any) -> list[Stream]:
    rows = datasets.Dataset.from_dict({"x": np.arange(6.0).tolist(), "labels": [0, 1] * 3})
    return [Stream("a", rows), Stream("b", rows, **changes)]


def test_no_constructor_changes_what_is_not_its_own(tmp_path: Path) -> None:
    streams = streams_of()
    trainer, plan = stand_in(tmp_path), planned(streams)
    built = Built(trainer, plan, *streams)
    built.make(Training, parts_of(tmp_path, built, trainer, plan))
    assert built.changed == []
    assert isinstance(trainer.callback_handler.callbacks[0], MixingCallback)  # Training adds it, which closes steps


def test_parts_are_as_the_plan_says(tmp_path: Path) -> None:
    for changes, is_apart in (({}, False), ({"compute_loss_func": lambda *_: None}, True)):
        streams = streams_of(**changes)
        trainer, plan = stand_in(tmp_path), planned(streams)
        parts = parts_of(tmp_path, Built(), trainer, plan)
        made = Training(parts).new_loader()
        assert [parts.losses.differ, made.by_stream, not parts.differences.share_batches] == [is_apart] * 3
