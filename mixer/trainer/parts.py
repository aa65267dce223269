"""The parts of a trainer, and the order in which they are built."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from transformers import Trainer

from mixer.checkpoint.starting_point import StartingPoint
from mixer.distributed.collectives import RankSync
from mixer.ledger.description import describe_run
from mixer.ledger.ledger import Ledger
from mixer.ledger.recorder import Recorder
from mixer.loading.build import MixtureOptions, assemble, resolve_budget
from mixer.loading.chosen_loss_units import new_loss_units
from mixer.loading.learning_rate import check_schedule
from mixer.loading.lengths import Lengths
from mixer.losses.stream_losses import StreamLosses
from mixer.measurements.hooks.auxiliary_passes import AuxiliaryPasses
from mixer.measurements.hooks.stream_gradients import RunProbe
from mixer.measurements.hooks.table import check_measured, new_hooks
from mixer.mixture.controller import Mixing
from mixer.mixture.resolve import check_own_weights, check_samples, resolve_epoch_size
from mixer.mixture.stream import Stream
from mixer.mixture.streams import describe
from mixer.models.trl_metrics import keeps_metrics
from mixer.run.class_checks import check_arguments, check_budget
from mixer.run.loading import LoadingRules, StreamLoading
from mixer.run.plan import Facts, Options, RunPlan, plan_run
from mixer.run.state import Basis, PresentStep, Run
from mixer.trainer.checks.classes import check_classes
from mixer.trainer.checks.engines import check_engine
from mixer.trainer.checks.requirements import (
    check_gradient_noise,
    check_needs,
    check_strategies,
    warn_of_forwards,
    warn_of_ungrouped,
)
from mixer.trainer.confirmation import StepConfirmation
from mixer.trainer.evaluation.best_model import check_best_metric, check_best_of_each
from mixer.trainer.evaluation.evaluation import StreamEvaluation
from mixer.trainer.evaluation.evaluation_sets import check_evaluation_names
from mixer.trainer.gradient_aggregation import check_conflict
from mixer.trainer.guard import WeightGuard
from mixer.trainer.hyperparameter_search import Search
from mixer.trainer.log import StreamLog
from mixer.trainer.loop import LoopControl
from mixer.trainer.methods import MethodList, methods_of
from mixer.trainer.out_of_memory import Recovery
from mixer.trainer.resume import Resuming
from mixer.trainer.save import Checkpointing, HeldArguments
from mixer.trainer.step import StepRunner
from mixer.trainer.streams_that_differ import StreamDifferences
from mixer.trainer.trl.preparation import TRLMetrics


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
        args, step = trainer.args, PresentStep()
        self.ranks = ranks = RankSync(args.world_size, args.ddp_timeout_delta)
        self.loading = StreamLoading(trainer, streams, options, ranks, rules)
        self.differences = StreamDifferences(trainer, streams, self.loading, rules)
        # TRL's trainers set padding_free if one row holds several samples.
        packs_rows = bool(getattr(trainer, "padding_free", False))
        facts = Facts(rules.most_samples, self.differences.tasks, self.differences.share_batches, packs_rows)
        self.plan = plan = plan_run(streams, options, methods_of(streams, options.methods), args, facts)
        self.losses = losses = StreamLosses(trainer, step, plan)
        mixing = _new_mixing(trainer, plan, self.loading.lengths())
        folder, is_writer = Path(str(args.output_dir)) / "ledger", trainer.is_world_process_zero()
        ledger = Ledger(folder, is_writer, plan.config.ledger_interval_steps)
        self.run = run = Run(mixing, ledger, Recorder(mixing, ledger, plan.reads_losses_at_once), step)
        basis = Basis(trainer, plan, run, ranks)
        self.auxiliary_passes = AuxiliaryPasses(basis, losses, self.loading)
        observers = new_hooks(self.auxiliary_passes)
        self.probe = next((hook for hook in observers if isinstance(hook, RunProbe)), None)
        self.methods = methods = MethodList(basis, self.auxiliary_passes, losses.sum_dtype)
        self.hooks = hooks = [*observers, *_trl_metrics(trainer, step), *methods]
        self.arguments = HeldArguments(trainer)
        guard = WeightGuard(basis, methods)
        self.checkpoints = Checkpointing(basis, losses, methods, self.arguments, guard)
        self.loop = loop = LoopControl(basis, self.checkpoints, self.arguments)
        self.start = start = StartingPoint(basis)
        self.resuming = Resuming(basis, start, loop, self.checkpoints, methods)
        self.search = Search(basis, methods, self._check_again)
        confirmation = StepConfirmation(basis, losses, self.differences.check_classes, lambda: loop.signals)
        self.recovery = Recovery(basis, hooks, losses, confirmation, rules)
        together = hooks, losses, confirmation, self.recovery, methods
        self.steps = StepRunner(basis, *together, guard, self.arguments, self.probe)
        self.log = StreamLog(trainer, run, methods)
        evaluation.connect(basis, losses, self.differences, loop.agree)
        self._check_parts()

    def _check_parts(self) -> None:
        """Refuses what only the parts can tell."""
        trainer, plan, mixing = self.trainer, self.plan, self.run.mixing
        check_conflict(trainer, plan)
        check_measured(plan, self.hooks)
        check_classes(trainer, plan, self.differences, self._evaluation)
        check_engine(trainer, plan)
        warn_of_ungrouped(plan.streams, trainer.args)
        if plan.one_stream_each or mixing.weighs_losses:
            warn_of_forwards(len(plan.streams), mixing.batch_size, trainer.args)

    @property
    def mixture(self) -> MixtureOptions:
        """Settings of the mixture; the seed of the arguments may have changed since construction."""
        return replace(self.plan.mixture, seed=self.loading.seed)

    def describe(self) -> dict[str, Any]:
        """Describes the mixture of the run as plain data: the entry `run` of `ledger.json`."""
        names, ranks, plan = [method.name for method in self.methods], self.ranks.world_size, self.plan
        return {
            **describe_run(plan.streams, self.run.mixing, self.mixture, ranks, names),
            "seed": self.trainer.args.seed,
            "evaluated_on_training_rows": plan.evaluated_on_training_rows,
            "development_rows": {} if plan.target_splits is None else dict(plan.target_splits.taken),
        }

    def _check_again(self) -> None:
        """Checks the options of a trial."""
        plan, cap = self.plan, self._rules.most_samples
        check_options(self.trainer, plan.streams, plan, self._evaluation, cap)
        check_conflict(self.trainer, plan)


def check_options(
    trainer: Trainer, streams: Sequence[Stream], options: Options, evaluation: StreamEvaluation, cap: int
) -> None:
    """Refuses options that do not go together, of the constructor or of a trial.

    Args:
        trainer: The trainer.
        streams: The streams.
        options: Its options.
        evaluation: Its evaluations.
        cap: Maximum samples of a micro-batch.

    Raises:
        ValueError: With the option, the reason and the alternatives.
    """
    args, schedule, policy = trainer.args, options.mixture.schedule, options.policy
    check_arguments(trainer, streams, schedule, cap, options.config.max_tokens_per_micro_batch)
    budget = resolve_budget(args, options.mixture.budget, streams)
    check_budget(args, budget)
    epoch_size = resolve_epoch_size(budget, streams, options.mixture.epoch_size)
    check_strategies(args, streams, has_length=epoch_size is not None)
    check_needs(policy, streams, args, trainer.eval_dataset, options.mixture.objective)
    check_schedule(schedule, trainer.lr_scheduler)
    check_gradient_noise(trainer, schedule)
    check_evaluation_names(trainer.eval_dataset)
    check_best_metric(trainer, evaluation.has_metrics, options.mixture.objective)
    if options.config.save_best_of_each:
        check_best_of_each(trainer)


def _new_mixing(trainer: Trainer, plan: RunPlan, lengths: Lengths | None) -> Mixing:
    policy, streams, mixture = plan.policy, plan.streams, plan.mixture
    planner, clock, size = assemble(trainer.args, streams, mixture, scheduler=trainer.lr_scheduler, lengths=lengths)
    check_samples(policy, len(streams), size.value)
    units = new_loss_units(plan.config.loss_units, policy, streams, plan.have_heads)
    mixing = Mixing(planner, policy, clock, size, mixture.objective, units)
    check_own_weights(policy, describe(streams), mixing.weights)
    return mixing


def _trl_metrics(trainer: Trainer, step: PresentStep) -> list[TRLMetrics]:
    return [TRLMetrics(trainer, lambda: int(step.counts.tokens.sum()))] if keeps_metrics(trainer) else []
