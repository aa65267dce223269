"""The parts of a trainer, built from its options once all of these are checked."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn
from transformers import Trainer

from mixer.distributed.collectives import RankSync
from mixer.ledger.ledger import Ledger
from mixer.ledger.trackers.reporting import Reporting
from mixer.loading.build import MixtureOptions, assemble, resolve_budget
from mixer.mixture.bad_samples import Skipping
from mixer.mixture.controller import Mixing
from mixer.mixture.resolve import (
    check_evaluation_names,
    check_gradient_noise,
    check_needs,
    check_own_weights,
    check_samples,
    check_schedule,
    warn_of_forwards,
)
from mixer.mixture.stream import Stream, describe
from mixer.models.trl import keeps_metrics
from mixer.policies.contract import Policy
from mixer.trainer.checkpointing.resume import Resuming
from mixer.trainer.checkpointing.save import Checkpointing, HeldArguments
from mixer.trainer.checks import check_arguments, check_budget
from mixer.trainer.confirmation import StepConfirmation
from mixer.trainer.engines import EngineRequest, check_engine
from mixer.trainer.evaluation import StreamEvaluation, check_best_metric
from mixer.trainer.gradient_aggregation import check_conflict, with_conflict
from mixer.trainer.hooks import StepHook
from mixer.trainer.loading import StreamLoading
from mixer.trainer.log import StreamLog
from mixer.trainer.loop import LoopControl
from mixer.trainer.losses import StreamLosses
from mixer.trainer.method import Method
from mixer.trainer.methods import MethodList
from mixer.trainer.observers.gradient_options import Probing, check_exact, exact_refusal, resolve_probing
from mixer.trainer.observers.gradients import NoiseBetweenRanks, RunProbe, StepLength
from mixer.trainer.observers.reference import ExcessLoss, LossesAfter, ReferenceModel, needed_reference
from mixer.trainer.out_of_memory import Recovery
from mixer.trainer.run import PresentStep, Run, StepNeeds
from mixer.trainer.search import Search
from mixer.trainer.side_runs import SideRuns
from mixer.trainer.step import NonFinite, StepRunner, was_skipped
from mixer.trainer.streams_that_differ import StreamDifferences
from mixer.trainer.training import Training, new_recorder
from mixer.trainer.trl import TRLMetrics, with_fused_head


@dataclass(frozen=True)
class Options:
    """The options of a mixture besides its streams; see `MixingMixin`.

    Args:
        policy: The mixing policy.
        mixture: Settings of the mixture.
        skipping: What happens to samples that cannot be loaded.
        max_tokens: Maximum number of tokens in a micro-batch, or `None`.
        probe: Options for measuring gradients, or `None`.
        reference_model: The reference model, or `None`.
        methods: The user's methods.
        conflict: How conflicting gradients are combined, or `None`.
        nonfinite: Reaction to a loss that is not finite.
        allow_inexact: Whether a resumed run may differ from the uninterrupted one.
        handles_signals: Whether a signal saves and ends the run.
        has_metrics: Whether the user computes metrics.
    """

    policy: Policy
    mixture: MixtureOptions
    skipping: Skipping
    max_tokens: int | None
    probe: Probing | None
    reference_model: nn.Module | None
    methods: Sequence[Method]
    conflict: Any
    nonfinite: NonFinite
    allow_inexact: bool
    handles_signals: bool
    has_metrics: bool


def build(
    trainer: Trainer,
    streams: Sequence[Stream],
    options: Options,
    evaluation: StreamEvaluation,
    most_samples: Callable[[], int],
    removes_columns: Callable[[], bool],
    smaller_cap: Callable[[str], str],
) -> Training:
    """Checks the options of a trainer with streams, and builds its parts.

    Args:
        trainer: The trainer, after the construction of its parent class.
        streams: The streams.
        options: Its options.
        evaluation: Its evaluations.
        most_samples: Returns the maximum samples of a micro-batch.
        removes_columns: Returns whether columns that the model does not take are removed.
        smaller_cap: Describes the arguments that lower the micro-batch limit; see `Recovery`.

    Raises:
        ValueError: If options do not go together; with the alternatives.
        TypeError: If an option is of the wrong type.
    """
    check_options(trainer, streams, options)
    args, step, needs = trainer.args, PresentStep(), StepNeeds()
    rank_sync = RankSync(args.world_size, args.ddp_timeout_delta)
    losses = StreamLosses(trainer, streams, step, needs)
    loading = StreamLoading(
        trainer, streams, options.max_tokens, options.skipping, rank_sync, most_samples, removes_columns
    )
    differences = StreamDifferences(trainer, streams, loading, losses, needs, removes_columns)
    run = _new_run(trainer, streams, options, rank_sync, step, needs)
    runs = SideRuns(trainer, run, losses, loading)
    probe = _new_probe(run, options.probe, runs, losses, trainer)
    run.hooks = tuple(_observers(trainer, run, options, runs, losses, probe))
    methods = MethodList(trainer, run, runs, losses.sum_dtype)
    methods.attach(with_conflict(options.methods, options.conflict))
    check_conflict(trainer, run.mixture.schedule, tuple(methods))
    arguments = HeldArguments(trainer)
    checkpoints = Checkpointing(trainer, run, methods, arguments)
    loop = LoopControl(trainer, run, checkpoints, arguments, options.handles_signals)
    evaluation.join(run, losses, differences, loop.agree)
    confirmation = StepConfirmation(trainer, run, losses, differences.check_classes, lambda: loop.signals)
    recovery = Recovery(trainer, run, losses, confirmation, smaller_cap)
    steps = StepRunner(trainer, run, losses, confirmation, recovery, methods, probe, options.nonfinite)
    _check_engine(trainer, run, options, tuple(methods), probe is not None, differences.has_heads)
    if needs.one_stream_each or run.mixing.weighs_losses:
        warn_of_forwards(len(streams), run.mixing.batch_size, args)
    reporting = Reporting(trainer, partial(_settle, run))
    return Training(
        trainer=trainer,
        run=run,
        steps=steps,
        losses=losses,
        loading=loading,
        differences=differences,
        methods=methods,
        recovery=recovery,
        arguments=arguments,
        checkpoints=checkpoints,
        loop=loop,
        resuming=Resuming(trainer, run, loop, checkpoints),
        search=Search(trainer, run, methods, partial(check_options, trainer, streams, options, methods)),
        reporting=reporting,
        log=StreamLog(trainer, run, methods, reporting),
        side_runs=runs,
        probe=probe,
    )


def check_options(
    trainer: Trainer, streams: Sequence[Stream], options: Options, methods: Iterable[Method] = ()
) -> None:
    """Refuses options that do not go together, of the constructor or of a trial.

    Args:
        trainer: The trainer.
        streams: The streams.
        options: Its options.
        methods: The methods of the run, once they are attached.

    Raises:
        ValueError: With the option, the reason and the alternatives.
    """
    args, schedule, policy = trainer.args, options.mixture.schedule, options.policy
    check_arguments(trainer, streams, schedule, options.max_tokens)
    check_budget(args, resolve_budget(args, options.mixture.budget))
    check_needs(policy, streams, args, trainer.eval_dataset)
    check_schedule(schedule, trainer.lr_scheduler)
    check_gradient_noise(trainer, schedule)
    check_evaluation_names(trainer.eval_dataset)
    check_best_metric(trainer, options.has_metrics)
    check_conflict(trainer, schedule, tuple(methods))


def _new_run(
    trainer: Trainer,
    streams: Sequence[Stream],
    options: Options,
    rank_sync: RankSync,
    step: PresentStep,
    needs: StepNeeds,
) -> Run:
    args, policy = trainer.args, options.policy
    planner, clock, size = assemble(args, streams, options.mixture, None)
    check_samples(policy, len(streams), size.value)
    mixing = Mixing(planner, policy, clock, size)
    check_own_weights(policy, describe(streams), mixing.weights)
    ledger = Ledger(Path(str(args.output_dir)) / "ledger", is_writer=trainer.is_world_process_zero())
    return Run(
        streams,
        policy,
        options.mixture,
        mixing,
        rank_sync,
        ledger,
        new_recorder(trainer, mixing, ledger, policy.needs | options.mixture.schedule.needs),
        needs,
        step,
        options.skipping,
        options.max_tokens,
        options.allow_inexact,
    )


def _new_probe(
    run: Run, options: Probing | None, runs: SideRuns, losses: StreamLosses, trainer: Trainer
) -> RunProbe | None:
    """Makes the hook that measures the streams' gradients, if anyone needs them."""
    args, schedule, policy = trainer.args, run.mixture.schedule, run.policy
    if (resolved := resolve_probing(options, policy, schedule, args.world_size)) is None:
        return None
    check_exact(resolved[0], args, run.mixing.size, run.max_tokens, policy, list(run.streams))
    if resolved[0].needs_one_micro_batch and run.needs.one_stream_each and len(run.streams) > 1:
        raise exact_refusal("streams that differ have micro-batches of their own")
    probe = RunProbe(*resolved, [stream.name for stream in run.streams], args.world_size, args.seed, runs)
    probe.check(losses.own_model)
    run.needs.one_stream_each |= probe.options.homogeneous
    return probe


def _observers(
    trainer: Trainer, run: Run, options: Options, runs: SideRuns, losses: StreamLosses, probe: RunProbe | None
) -> list[StepHook]:
    """Makes the hooks that measure what policy, schedule and metrics need."""
    args, dtype, rank_sync, needs = trainer.args, losses.sum_dtype, run.rank_sync, run.policy.needs
    hooks: list[StepHook] = [] if probe is None else [probe]
    if args.world_size > 1 and "gradient_noise" in run.mixture.schedule.needs:
        hooks.append(NoiseBetweenRanks(runs, rank_sync, args.world_size, args.device))
    if "update_norm" in needs:
        hooks.append(StepLength())
    reference = with_fused_head(needed_reference(options.reference_model, trainer.model, run.policy), trainer.model)
    if reference is not None:
        run.needs.item_losses = True
        autocast, new_reader = trainer.accelerator.autocast, losses.new_reader
        new = partial(ReferenceModel, runs=runs, device=args.device, autocast=autocast, new_tracker=new_reader)
        hooks.append(ExcessLoss(reference, len(run.streams), rank_sync, new, dtype))
    if "loss_after" in needs:
        skipped = partial(was_skipped, options.nonfinite, trainer.accelerator)
        hooks.append(LossesAfter(runs, rank_sync, skipped, args.device, dtype))
    if keeps_metrics(trainer):
        hooks.append(TRLMetrics(trainer, lambda: int(run.step.counts.tokens.sum())))
    return hooks


def _check_engine(
    trainer: Trainer, run: Run, options: Options, methods: Sequence[Method], probes: bool, has_heads: bool
) -> None:
    schedule, budget = run.mixture.schedule, resolve_budget(trainer.args, run.mixture.budget)
    request = EngineRequest(
        policy=run.policy,
        schedule=schedule,
        methods=methods,
        streams=run.streams,
        probes=probes,
        skips=options.nonfinite == "skip",
        has_heads=has_heads,
        is_cut_by_tokens=run.max_tokens is not None,
        counts_steps=schedule.is_constant and budget.is_in_steps,
    )
    check_engine(trainer, request)


def _settle(run: Run) -> None:
    run.recorder.settle()
    run.ledger.flush()
