"""The parts of a trainer, in the order in which they are built: facts make the plan of its runs, the plan its parts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from transformers import Trainer

from mixer.checkpoint.starting_point import StartingPoint
from mixer.distributed.collectives import RankSync
from mixer.ledger.description import describe_run
from mixer.ledger.ledger import Ledger
from mixer.ledger.recorder import Recorder
from mixer.loading.build import MixtureOptions, new_mixing, resolve_budget
from mixer.loading.learning_rate import check_schedule
from mixer.loading.lengths import Lengths
from mixer.losses.stream_losses import StreamLosses
from mixer.measurements.hooks.auxiliary_passes import AuxiliaryPasses
from mixer.measurements.hooks.stream_gradients import RunProbe
from mixer.measurements.hooks.table import check_measured, new_hooks
from mixer.mixture.resolve import resolve_epoch_size
from mixer.mixture.stream import Stream
from mixer.models.row_losses import generates
from mixer.run.class_checks import check_arguments, check_budget
from mixer.run.hooks import Observer
from mixer.run.loading import StreamLoading
from mixer.run.plan import Options, RunPlan, plan_run
from mixer.run.samples import LoadingRules, StreamSamples
from mixer.run.state import Basis, Run
from mixer.run.trl_metrics import trl_hooks
from mixer.trainer.agreement import StepAgreement
from mixer.trainer.checks.classes import check_classes
from mixer.trainer.checks.engines import check_engine
from mixer.trainer.checks.requirements import (
    check_gradient_noise,
    check_needs,
    check_strategies,
    check_whole_steps,
    warn_of_forwards,
    warn_of_ungrouped,
)
from mixer.trainer.evaluation.best_model import check_best_metric, check_best_of_each
from mixer.trainer.evaluation.evaluation import EvaluatedMixture, StreamEvaluation
from mixer.trainer.evaluation.evaluation_sets import check_evaluation_names
from mixer.trainer.facts import facts_of
from mixer.trainer.gradient_aggregation import check_conflict
from mixer.trainer.guard import WeightGuard
from mixer.trainer.hyperparameter_search import Search
from mixer.trainer.log import StreamLog
from mixer.trainer.loop import LoopControl
from mixer.trainer.methods import MethodList, methods_of
from mixer.trainer.resume import Resuming
from mixer.trainer.save import Checkpointing, HeldArguments
from mixer.trainer.step import StepRunner


class Parts:
    """The parts of a trainer, built from the plan of its runs.

    Args:
        samples: The samples of its streams, with the trainer after the construction of its parent class.
        plan: The plan of the run.
        metrics_by_set: The option `compute_metrics` as a dict with one function per evaluation set.

    Raises:
        ValueError: If options do not go together; with the alternatives.
    """

    def __init__(
        self, samples: StreamSamples, plan: RunPlan, metrics_by_set: Mapping[str, Callable[..., Any]] | None = None
    ):
        self.trainer = trainer = samples.trainer
        self.plan, self.samples = plan, samples
        self.ranks = ranks = RankSync(trainer.args.world_size, trainer.args.ddp_timeout_delta)
        self.loading = StreamLoading(plan, samples, ranks)
        self.run = run = _new_run(trainer, plan, self.loading.lengths())
        basis = Basis(trainer, plan, run, ranks)
        self.losses = losses = StreamLosses(trainer, run.step, plan)
        self.auxiliary_passes = passes = AuxiliaryPasses(basis, losses, samples)
        observers = new_hooks(passes)
        self.probe = next((hook for hook in observers if isinstance(hook, RunProbe)), None)
        self.methods = methods = MethodList(basis, passes, losses.sum_dtype)
        self.hooks = hooks = [*observers, *trl_hooks(trainer, run.step), *methods]
        self.arguments = arguments = HeldArguments(trainer)
        guard = WeightGuard(basis, methods)
        self.checkpoints = checkpoints = Checkpointing(basis, losses, methods, arguments, guard)
        self.loop = loop = LoopControl(basis, checkpoints, arguments)
        self.start = start = StartingPoint(basis)
        self.resuming = Resuming(basis, start, loop, checkpoints, methods)
        self.search = Search(basis, methods, partial(check_trial, samples, plan, metrics_by_set is not None))
        self.agreement = agreement = StepAgreement(basis, losses, hooks, samples.rules)
        self.steps = StepRunner(basis, losses, hooks, methods, agreement, guard, self.probe)
        self.log = StreamLog(trainer, run, methods)
        mixture = EvaluatedMixture(basis, samples, loop.agree)
        self.evaluation = StreamEvaluation(trainer, losses, samples.rules, metrics_by_set, mixture)
        _check_parts(basis, hooks, samples, self.evaluation)

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


def parts_of(
    trainer: Trainer,
    streams: Sequence[Stream],
    options: Options,
    rules: LoadingRules,
    metrics_by_set: Mapping[str, Callable[..., Any]] | None = None,
) -> Parts:
    """Builds the parts of a trainer: what is known of it makes the plan of its runs, and the plan makes the parts.

    Args:
        trainer: The trainer, after the construction of its parent class.
        streams: The streams.
        options: The options of the mixture.
        rules: How the trainer loads.
        metrics_by_set: The option `compute_metrics` as a dict with one function per evaluation set.

    Raises:
        ValueError: If options do not go together; with the alternatives.
        TypeError: If an option is of the wrong type.
    """
    check_options(trainer, streams, options, metrics_by_set is not None, rules.most_samples)
    samples = StreamSamples(trainer, streams, rules)
    facts = facts_of(trainer, samples)
    plan = plan_run(streams, options, methods_of(streams, options.methods), trainer.args, facts)
    return Parts(samples, plan, metrics_by_set)


def check_options(trainer: Trainer, streams: Sequence[Stream], options: Options, has_metrics: bool, cap: int) -> None:
    """Refuses options that do not go together, of the constructor or of a trial.

    Args:
        trainer: The trainer.
        streams: The streams.
        options: Its options.
        has_metrics: Whether the user computes metrics by evaluation set.
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
    check_whole_steps(options, streams)
    check_schedule(schedule, trainer.lr_scheduler)
    check_gradient_noise(trainer, schedule)
    check_evaluation_names(trainer.eval_dataset)
    has_metrics = has_metrics or trainer.compute_metrics is not None or generates(args)  # rewards
    check_best_metric(trainer, has_metrics, options.mixture.objective)
    if options.config.save_best_of_each:
        check_best_of_each(trainer)


def check_trial(samples: StreamSamples, plan: RunPlan, has_metrics: bool) -> None:
    """Checks the options of a trial of a search, in the arguments that it has set; see `check_options`."""
    check_options(samples.trainer, plan.streams, plan, has_metrics, samples.rules.most_samples)
    check_conflict(samples.trainer, plan)


def _check_parts(basis: Basis, hooks: Sequence[Observer], samples: StreamSamples, evaluation: StreamEvaluation) -> None:
    """Refuses what only the parts can tell."""
    trainer, plan, run, _ = basis
    check_conflict(trainer, plan)
    check_measured(plan, hooks)
    check_classes(trainer, plan, samples, evaluation.stream_and_task_of)
    check_engine(trainer, plan)
    warn_of_ungrouped(plan.streams, trainer.args)
    is_parted = plan.one_stream_each or run.mixing.weighs_losses
    if is_parted and not run.mixing.planner.has_whole_steps:
        warn_of_forwards(len(plan.streams), run.mixing.batch_size, trainer.args)


def _new_run(trainer: Trainer, plan: RunPlan, lengths: Lengths | None) -> Run:
    args, units = trainer.args, plan.config.loss_units
    mixing = new_mixing(
        args, plan.streams, plan.policy, plan.mixture, units, plan.have_heads, trainer.lr_scheduler, lengths
    )
    folder, is_writer = Path(str(args.output_dir)) / "ledger", trainer.is_world_process_zero()
    ledger = Ledger(folder, is_writer, plan.config.ledger_interval_steps)
    return Run(mixing, ledger, Recorder(mixing, ledger, plan.reads_losses_at_once))
