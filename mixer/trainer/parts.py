"""The parts of a trainer, and the order in which they are built."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from transformers import Trainer, TrainingArguments

from mixer.distributed.collectives import RankSync
from mixer.ledger.description import describe_run
from mixer.ledger.ledger import Ledger
from mixer.ledger.recorder import Recorder
from mixer.ledger.trackers.reporting import Reporting
from mixer.loading.build import assemble, resolve_budget
from mixer.loading.learning_rate import check_schedule
from mixer.loading.loss_units import new_loss_units
from mixer.measurements import Loss, MeanLoss, asked
from mixer.mixture.controller import Mixing
from mixer.mixture.loss_units import LossUnits
from mixer.mixture.resolve import check_own_weights, check_samples
from mixer.mixture.stream import Stream, describe
from mixer.models.trl import keeps_metrics
from mixer.trainer.best_of_each import check_best_of_each
from mixer.trainer.checkpointing.resume import Resuming
from mixer.trainer.checkpointing.save import Checkpointing, HeldArguments
from mixer.trainer.checks import check_arguments, check_budget
from mixer.trainer.classes import check_classes
from mixer.trainer.confirmation import StepConfirmation
from mixer.trainer.engines import EngineRequest, check_engine
from mixer.trainer.evaluation import StreamEvaluation, check_best_metric
from mixer.trainer.evaluation_sets import check_evaluation_names
from mixer.trainer.gradient_aggregation import check_conflict, with_conflict
from mixer.trainer.guard import WeightGuard
from mixer.trainer.loading import LoadingRules, StreamLoading
from mixer.trainer.log import StreamLog
from mixer.trainer.loop import LoopControl
from mixer.trainer.losses import StreamLosses
from mixer.trainer.measuring import Means, check_measured, new_hooks
from mixer.trainer.method import Method
from mixer.trainer.methods import MethodList
from mixer.trainer.observers.gradients import RunProbe
from mixer.trainer.out_of_memory import Recovery
from mixer.trainer.requirements import check_gradient_noise, check_needs, warn_of_forwards
from mixer.trainer.run import Options, PresentStep, Run, Steering, StepNeeds
from mixer.trainer.search import Search
from mixer.trainer.side_runs import SideRuns
from mixer.trainer.step import StepRunner
from mixer.trainer.streams_that_differ import StreamDifferences
from mixer.trainer.targets import TargetRows
from mixer.trainer.trl import TRLMetrics


class Parts:
    """The parts of a trainer, built from its options once all of these are checked.

    Args:
        trainer: The trainer, after the construction of its parent class.
        streams: The streams.
        options: The options of the mixture.
        evaluation: Its evaluations.
        rules: How the trainer loads.

    Raises:
        ValueError: If options do not go together; with the alternatives.
        TypeError: If an option is of the wrong type.
    """

    def __init__(
        self,
        trainer: Trainer,
        streams: Sequence[Stream],
        options: Options,
        evaluation: StreamEvaluation,
        rules: LoadingRules,
    ):
        check_options(trainer, streams, options, evaluation, rules.most_samples)
        self.trainer, self._evaluation, self._rules = trainer, evaluation, rules
        args, step, needs = trainer.args, PresentStep(), StepNeeds()
        rank_sync = RankSync(args.world_size, args.ddp_timeout_delta)
        self.losses = StreamLosses(trainer, streams, step, needs)
        self.loading = StreamLoading(trainer, streams, options, rank_sync, rules)
        self.differences = StreamDifferences(trainer, streams, self.loading, self.losses, needs, rules)
        units = new_loss_units(options.config.loss_units, options.policy, streams, self.differences.has_heads)
        mixing = _new_mixing(args, streams, options, units)
        folder, is_writer = Path(str(args.output_dir)) / "ledger", trainer.is_world_process_zero()
        ledger = Ledger(folder, is_writer, options.config.ledger_interval_steps)
        recorder = new_recorder(trainer, options, mixing, ledger)
        self.run = run = Run(streams, options, mixing, rank_sync, ledger, recorder, needs, step)
        self.side_runs = SideRuns(trainer, run, self.losses, self.loading)
        means = Means(trainer, run, self.side_runs, self.losses, rules.most_samples, self._target_rows)
        run.hooks = (*new_hooks(means), *_trl_metrics(trainer, step))
        self.probe = next((hook for hook in run.hooks if isinstance(hook, RunProbe)), None)
        self.methods = MethodList(trainer, run, self.side_runs, self.losses.sum_dtype)
        self.methods.attach(with_conflict(options.methods, options.conflict))
        check_conflict(trainer, options.mixture.schedule, self.methods.all)
        check_measured(run, run.hooks)
        self.arguments = HeldArguments(trainer)
        guard = WeightGuard(trainer, run, self.methods)
        self.checkpoints = Checkpointing(trainer, run, self.methods, self.arguments, guard)
        self.loop = loop = LoopControl(trainer, run, self.checkpoints, self.arguments, options.config.handle_signals)
        self.resuming = Resuming(trainer, run, loop, self.checkpoints)
        self.search = Search(trainer, run, self.methods, self._check_again)
        evaluation.join(run, self.losses, self.differences, loop.agree)
        check_classes(trainer, streams, self.differences, evaluation, options.steering)
        confirmation = StepConfirmation(trainer, run, self.losses, self.differences.check_classes, lambda: loop.signals)
        self.recovery = Recovery(trainer, run, self.losses, confirmation, rules)
        together = trainer, run, self.losses, confirmation, self.recovery, self.methods
        self.steps = StepRunner(*together, guard, self.arguments, self.probe)
        _check_engine(trainer, run, self.methods.all, self.probe is not None, self.differences.has_heads)
        if needs.one_stream_each or mixing.weighs_losses:
            warn_of_forwards(len(streams), mixing.batch_size, args)
        self.reporting = Reporting(trainer, partial(_settle, run))
        self.log = StreamLog(trainer, run, self.methods, self.reporting)

    def _target_rows(self, steering: Steering) -> list[TargetRows]:
        """Returns the rows of each target of the objective."""
        streams, seed = self.run.streams, self.loading.seed
        return [
            TargetRows(name, steering.rows[name], self.trainer, streams, self.differences, seed)
            for name in steering.objective.names
        ]

    def describe(self) -> dict[str, Any]:
        """Describes the mixture of the run as plain data: the entry `run` of `ledger.json`."""
        names, run = [method.name for method in self.methods], self.run
        described = describe_run(run.streams, run.mixing, run.options.mixture, self.trainer.args.world_size, names)
        steering = run.options.steering
        return {**described, "steering_rows": {} if steering is None else dict(steering.taken)}

    def _check_again(self) -> None:
        """Checks the options of a trial."""
        cap = self._rules.most_samples
        check_options(self.trainer, self.run.streams, self.run.options, self._evaluation, cap, self.methods.all)


def check_options(
    trainer: Trainer,
    streams: Sequence[Stream],
    options: Options,
    evaluation: StreamEvaluation,
    cap: int,
    methods: Sequence[Method] = (),
) -> None:
    """Refuses options that do not go together, of the constructor or of a trial.

    Args:
        trainer: The trainer.
        streams: The streams.
        options: Its options.
        evaluation: Its evaluations.
        cap: Maximum samples of a micro-batch.
        methods: The methods of the run, once they are attached.

    Raises:
        ValueError: With the option, the reason and the alternatives.
    """
    args, schedule, policy = trainer.args, options.mixture.schedule, options.policy
    check_arguments(trainer, streams, schedule, cap, options.config.max_tokens_per_micro_batch)
    check_budget(args, resolve_budget(args, options.mixture.budget, streams))
    check_needs(policy, streams, args, trainer.eval_dataset, options.mixture.objective)
    check_schedule(schedule, trainer.lr_scheduler)
    check_gradient_noise(trainer, schedule)
    check_evaluation_names(trainer.eval_dataset)
    check_best_metric(trainer, evaluation.has_metrics, options.mixture.objective)
    if options.config.save_best_of_each:
        check_best_of_each(trainer)
    check_conflict(trainer, schedule, methods)


def _new_mixing(
    args: TrainingArguments, streams: Sequence[Stream], options: Options, units: LossUnits | None
) -> Mixing:
    planner, clock, size = assemble(args, streams, options.mixture, None)
    check_samples(options.policy, len(streams), size.value)
    mixing = Mixing(planner, options.policy, clock, size, options.mixture.objective, units)
    check_own_weights(options.policy, describe(streams), mixing.weights)
    return mixing


def new_recorder(trainer: Trainer, options: Options, mixing: Mixing, ledger: Ledger) -> Recorder:
    """Makes the recorder of a run.

    Args:
        trainer: The trainer.
        options: The options of the mixture; policy and schedule may need losses at once.
        mixing: The controller of the mixture.
        ledger: The ledger.
    """
    reads_losses = bool(asked(options.needs, Loss, MeanLoss))
    return Recorder(mixing, ledger, reads_at_once=trainer.args.device.type == "cpu" or reads_losses)


def _trl_metrics(trainer: Trainer, step: PresentStep) -> list[TRLMetrics]:
    return [TRLMetrics(trainer, lambda: int(step.counts.tokens.sum()))] if keeps_metrics(trainer) else []


def _check_engine(trainer: Trainer, run: Run, methods: Sequence[Method], probes: bool, has_heads: bool) -> None:
    options, schedule = run.options, run.options.mixture.schedule
    budget = resolve_budget(trainer.args, options.mixture.budget, run.streams)
    request = EngineRequest(
        policy=options.policy,
        schedule=schedule,
        methods=methods,
        streams=run.streams,
        probes=probes,
        skips=options.config.nonfinite == "skip",
        has_heads=has_heads,
        is_cut_by_tokens=options.config.max_tokens_per_micro_batch is not None,
        counts_steps=schedule.is_constant and budget.is_in_steps,
    )
    check_engine(trainer, request)


def _settle(run: Run) -> None:
    run.recorder.settle()
    run.ledger.flush()
