"""Branches of the model during a run: short trainings on each stream, and losses of their mixtures."""

import copy
import math
import time
from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from torch import nn

from mixer.gradients.metric import OptimizerMetric
from mixer.loading.loaded_step import MicroBatch, StepResult
from mixer.measure.auxiliary_passes import AuxiliaryPasses
from mixer.measure.target_rows import TargetRows
from mixer.measurements import Branches, BranchStatistics, Results
from mixer.models.model_branches import AdapterBranches, Branches as ModelBranches, WeightBranches
from mixer.run.hooks import StepHook
from mixer.utils.arrays import BoolArray, FloatArray
from mixer.utils.random_state import seeded

_PART_OF_RUN, _LEAST_STEPS = 40, 4
_TARGET_ROWS = 128  # of each target, the same at each stage
_SEED = 5  # apart from that of other draws


class BranchProbe(StepHook):
    """Trains a branch of the model on each stream at each stage, and evaluates mixtures of them on the targets.

    Branches start from the model as it is, and see the streams' next rows at the present learning rate. Afterwards
    weights, optimizer and random numbers are as before, to the bit. Mixtures are the branches themselves, their mean,
    and draws from the simplex. Iterable streams and memories have no branch.

    Args:
        targets: The rows of each target, in order.
        runs: Runs the model outside of training.
        plan: When and how the model is branched.
    """

    def __init__(self, targets: Sequence[TargetRows], runs: AuxiliaryPasses, plan: Branches):
        self._targets, self._runs, self._trainer, self._plan = targets, runs, runs.trainer, plan
        self._mixing, streams = runs.run.mixing, runs.plan.streams
        self._may_branch: BoolArray = np.array([not (stream.is_iterable or stream.is_memory) for stream in streams])

    def prepare(self, model: nn.Module) -> None:
        """Refuses a model whose ranks have no gradients of their own; see `StepHook.prepare`."""
        self._runs.check_own_gradients(model, "trains branches of the model")

    def observe(self, result: StepResult) -> Results:
        """Trains and evaluates branches if a stage begins; see `StepHook.observe`."""
        self.seconds_after, step, most = 0.0, result.plan.step, self._trainer.state.max_steps
        before, after = self._progress(result)
        if not any(before < stage <= after for stage in self._plan.stages):
            return {}
        started = time.perf_counter()
        num_steps = self._plan.num_steps or max(_LEAST_STEPS, round(most / _PART_OF_RUN))
        statistics = self._measure(step, num_steps)
        self.seconds_after = time.perf_counter() - started
        return {Branches: statistics}

    def _progress(self, result: StepResult) -> tuple[float, float]:
        """The share of the run that is done before and after a step, which the run's own clock has not counted yet."""
        clock, plan, contents = copy.deepcopy(self._mixing.clock), result.plan, result.contents
        before = clock.progress
        clock.tick(*map(plan.clocked, (plan.counts, contents.tokens, contents.amounts("labels"))))
        return before, clock.progress

    def _measure(self, step: int, num_steps: int) -> BranchStatistics:
        mixing = self._mixing
        have_branch = self._may_branch & mixing.planner.active(mixing.clock.progress)
        with self._runs.own_gradients(training=True) as parameters:
            branches = self._new(parameters)
            for stream in np.flatnonzero(have_branch).tolist():
                with seeded(self._trainer.args.seed, _SEED, step, stream), branches.training() as (trained, optimizer):
                    for number in range(num_steps):
                        self._train(trained, optimizer, stream, number)
        mixtures = self._mixtures(int(have_branch.sum()), step) if have_branch.any() else np.zeros((0, 0))
        with self._runs.without_gradients(training=False):
            losses = [self._losses(branches, mixture) for mixture in mixtures]
        whole = np.zeros((len(mixtures), len(have_branch)))
        whole[:, have_branch] = mixtures
        return BranchStatistics(whole, np.array(losses).reshape(len(mixtures), len(self._targets)), have_branch)

    def _new(self, parameters: Sequence[nn.Parameter]) -> ModelBranches:
        if self._plan.adapter_rank:
            is_adam = OptimizerMetric(self._runs.optimizer).name(parameters) == "adam"
            rate = self._runs.learning_rate if is_adam else None
            return AdapterBranches(self._runs.model, self._plan.adapter_rank, rate)
        return WeightBranches(parameters, self._runs.optimizer)

    def _mixtures(self, count: int, step: int) -> FloatArray:
        """`[num_mixtures, count]`: the branches, their mean, and others."""
        generator = np.random.default_rng([self._trainer.args.seed, _SEED, step])
        others = generator.dirichlet(np.ones(count), self._plan.num_mixtures - 1)
        return np.concatenate([np.eye(count), np.full((1, count), 1.0 / count), others])

    # ---- Training ----

    def _train(
        self, parameters: Sequence[nn.Parameter], optimizer: torch.optim.Optimizer, stream: int, number: int
    ) -> None:
        """Takes an optimizer step on a stream, with as many samples as a step of the run has."""
        runs, args, mixing = self._runs, self._trainer.args, self._mixing
        start = int(mixing.seen[stream]) + number * mixing.batch_size
        positions = np.arange(start + args.process_index, start + mixing.batch_size, args.world_size, dtype=np.int64)
        micros = runs.on_all_ranks(partial(runs.samples, {stream: positions}))
        own = sum(int(runs.items(micro).sum()) for micro in micros)
        total = max(int(self._runs.ranks.all_reduce_sum(np.array([own]))[0]), 1)
        runs.on_all_ranks(partial(self._backward, micros, total))
        runs.average_own(parameters)
        if args.max_grad_norm:
            torch.nn.utils.clip_grad_norm_(parameters, args.max_grad_norm)
        optimizer.step()
        for parameter in {*parameters, *runs.parameters}:
            parameter.grad = None

    def _backward(self, micros: Sequence[MicroBatch], total: int) -> None:
        for micro in micros:
            self._runs.backward(micro, int(self._runs.items(micro).sum()) / total)

    # ---- Losses ----

    def _losses(self, branches: ModelBranches, mixture: FloatArray) -> list[float]:
        """Returns the mean loss of each target under a mixture of the branches, over all ranks."""
        with branches.mixed(mixture.tolist()):
            own = self._runs, self._trainer.args.process_index, self._trainer.args.world_size, _TARGET_ROWS
            sums = np.array([target.loss_sums(*own)[:2] for target in self._targets])
        totals = self._runs.ranks.add_up(torch.from_numpy(sums)).tolist()
        return [total / num_items if num_items else math.nan for total, num_items in totals]
