"""Losses and gradients of an objective's targets beside those of the streams, on rows of their own."""

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, _foreach_add_, _foreach_copy_, nn
from transformers.utils import logging

from mixer.distributed.gradient_sync import local
from mixer.gradients.metric import OptimizerMetric
from mixer.loading.batching import Size
from mixer.loading.loaded_step import MicroBatch, StepBatch, StepResult
from mixer.measurements import Alignment, Results, TargetStatistics, asked
from mixer.measurements.hooks.auxiliary_passes import AuxiliaryPasses, MeasurementMemoryError
from mixer.measurements.hooks.paid_steps import LEAST_ROWS, MOST_ROWS, PaidSteps, Price
from mixer.measurements.hooks.target_losses import TargetLosses, loss_sums
from mixer.measurements.hooks.target_rows import TargetRows, collated, evened
from mixer.policies.objective import Objective
from mixer.run.hooks import StepHook
from mixer.utils.arrays import BoolArray, FloatArray, Int64Array
from mixer.utils.device import to_host

logger = logging.get_logger(__name__)
_FORWARD = 1 / 3  # of the work of a forward and a backward
_LOSS_ROWS, _LOSS_ROWS_OF_WORST = 64, 16  # of each target, whose losses are compared over time, or with each other
_TEST_ROWS, _LEAST_COMPARED = 16, 8  # of all targets where they are an average, and of each
_FALL = 0.02  # of a target's loss: length of the step along its gradient
_BYTES_AT_ONCE = 2**28  # of a gradient that is scaled, beside which as much is in memory twice


class TargetProbe(StepHook):
    """Measures how well each stream's gradient fits those of the targets, outside of the optimizer steps.

    With the direction `v = D g_j` of a target's gradient in the optimizer's metric, `<v, g_k> = (L_k(θ + εv) − L_k(θ −
    εv)) / 2ε + O(ε²)`: two forwards of rows of stream k, for any model and any layers, with a value for each row. ε
    lowers the target's loss by 2 %, which is far above the rounding errors of float32; weights of fewer bits lose most
    of so short a step, and the log warns of them. The parameters are restored to the bit.

    Rows of streams are some that are still to come, others in each measurement. So a stream without samples in the
    mixture is measured too, and one that repeats its rows is measured on rows that it repeats. A target's
    gradient is averaged over ranks, and sums over rows are added up. The average of several targets without bounds is
    measured at once, along its own gradient, where the policy is content with that.

    Rows run in micro-batches as large as those of steps, and in smaller ones if these do not fit into memory; gradient
    checkpointing stays on. Rows of several targets share micro-batches if they are collated alike and their losses can
    be told apart, and for the gradient if all of their items have the same weight. Beside a micro-batch, two copies of
    the trained parameters are in memory at a time, in their own type. If not even single rows fit, the measurement is
    left out.

    Where ranks have shards of the weights, a rank that runs out of memory in a backward cannot be helped. So
    micro-batches of several rows that go back have no more elements there than the largest of the step before.

    A measurement reads from the device a few times, whatever the number of rows and parameters. Other steps do not.

    Losses of an objective with bounds are those of the same up to 64 rows of each target each time, those of the worst
    target of 16 or more; others are those of the measurement's rows. With bounds, the first ones follow step 1. Where
    losses of test rows are asked for, up to 16 rows of either kind, at least 8 of each target, are the same each time;
    a measurement that cannot pay for these goes without.

    When there is a measurement, and of how many rows, goes by its cost; see `PaidSteps`.

    Args:
        targets: The rows of each target, in order.
        runs: Runs the model outside of training.
        request: What is asked for.
        objective: The objective, with its targets by name.
        test: The test rows of each target, in order; empty if they are not asked for.
    """

    def __init__(
        self,
        targets: Sequence[TargetRows],
        runs: AuxiliaryPasses,
        request: Alignment,
        objective: Objective,
        test: Sequence[TargetRows] = (),
    ):
        self._targets, self._test, self._runs, self._mixing = targets, test, runs, runs.run.mixing
        self._rank, self._world_size = runs.trainer.args.process_index, runs.ranks.world_size
        mixing = self._mixing
        self._are_measured: BoolArray = np.array([not (s.is_iterable or s.is_memory) for s in mixing.planner.streams])
        self._objective, self._is_plain = objective, request.metric == "plain"
        is_joined = request.joined and objective.kind == "average" and not objective.bounds
        unknown = np.full(len(targets), np.nan)
        self._directions = objective.weights(unknown, 1.0)[None] if is_joined else np.eye(len(targets))
        num_forwards = 2 * len(self._directions) * int(self._are_measured.sum())
        self._num_compared = _num_compared(objective, bool(test))
        compared = sum(min(self._num_compared, rows.num_rows) for rows in (*targets, *test))
        price = Price(
            float(np.count_nonzero(self._directions) + _FORWARD * num_forwards),
            _FORWARD * compared,
            must_compare=bool(objective.bounds) or objective.kind == "worst",
        )
        self.paid_steps = PaidSteps(
            mixing.initial_batch_size,
            price,
            self._world_size,
            request.interval_steps,
            is_compared_first=bool(objective.bounds),
            least_rows=LEAST_ROWS * runs.num_parts,
        )
        self._has_warned = self._has_warned_of_bits = self._has_left_out = False
        self._joins = runs.num_parts == 1  # whether targets share micro-batches, as far as is known
        self._most_elements: int | None = None  # of the step's micro-batches, where that matters
        self._are_separate: bool | None = None  # whether rows run one by one; unknown before the first measurement

    def prepare(self, model: nn.Module) -> None:
        """Refuses a model whose ranks have no gradients of their own; see `StepHook.prepare`."""
        self._runs.check_own_gradients(model, "measures gradients of targets on each rank")
        if self._rank == 0:
            num_steps = self._mixing.clock.max_steps
            share, first = self.paid_steps.share(num_steps), self.paid_steps.first
            if first <= num_steps:
                words = "Measuring what the streams are worth for the objective takes about %.1f %% of the work of "
                logger.warning(words + "training.", 100.0 * share)
            else:
                logger.warning(
                    "No measurement is paid for before step %d, and the run ends at step %d: its mixture does not go "
                    "by what the streams are worth. Train longer, with larger batches, or on fewer streams or "
                    "targets.",
                    *(first, num_steps),
                )

    def begin_step(self, model: nn.Module, batch: StepBatch) -> None:
        """Notes how large micro-batches are trained; see `StepHook.begin_step`."""
        if self._runs.is_sharded:
            self._most_elements = Size.largest(batch.micro_batches).elements

    def observe(self, result: StepResult) -> Results:
        """Measures targets and streams if that is due; see `StepHook.observe`."""
        self.seconds_after, step = 0.0, result.plan.step
        num_rows, compares = self.paid_steps.at(step)
        if not (num_rows or compares):
            return {}
        started, found = time.perf_counter(), dict[Any, Any]()
        try:
            statistics = self._measure(step) if num_rows else None
            found[Alignment] = self._with_losses_of_same_rows(statistics) if compares else statistics
        except MeasurementMemoryError:
            self._warn_of_memory(step)
        self.seconds_after = time.perf_counter() - started
        return found

    def _warn_of_memory(self, step: int) -> None:
        if self._rank == 0 and not self._has_left_out:
            logger.warning(
                "The measurement after step %d does not fit into memory: it takes two copies of the trained weights, "
                "and a row. It is left out, as are others that do not fit; the mixture stays as it is meanwhile.",
                step,
            )
        self._has_left_out = True

    def _with_losses_of_same_rows(self, statistics: TargetStatistics | None) -> TargetStatistics:
        """Replaces the losses by those of each target's first rows: other rows differ by more than a bound allows."""
        count, sets = len(self._targets), (*self._targets, *self._test)
        with self._runs.without_gradients(training=False):
            totals = loss_sums(sets, self._num_compared, self._runs, self._joins)
            if totals is None:
                self._joins = False
                totals = loss_sums(sets, self._num_compared, self._runs, joins=False)
        assert totals is not None, "micro-batches of one target each can be told apart"  # noqa: S101
        losses, errors = _means_and_errors(totals.T[None])
        losses, errors = losses[0], errors[0]
        if statistics is None:
            unknown = np.full((count, len(self._are_measured)), np.nan)
            statistics = TargetStatistics(losses[:count], unknown, unknown)
        if not self._test:
            return replace(statistics, losses=losses[:count])
        with np.errstate(divide="ignore", invalid="ignore"):
            relative = (errors / losses).reshape(2, count)
        own, test = losses.reshape(2, count)
        return replace(statistics, losses=own, test_losses=test, gap_error=np.sqrt((relative**2).sum(axis=0)))

    def _measure(self, step: int) -> TargetStatistics:
        losses, sums = np.full(len(self._targets), np.nan), []
        with self._runs.own_gradients(training=False) as parameters:
            metric = None if self._is_plain else OptimizerMetric(self._runs.optimizer)
            self._warn_of_few_bits(parameters)
            micros = self._stream_rows(step)
            for weights in self._directions:
                direction, length = self._direction(weights, parameters, metric, step, losses)
                while (own := self._differences(micros, parameters, direction, length)) is None:
                    micros = self._stream_rows(step)
                sums.append(own)
                del direction  # before the next gradient
        name = "plain" if metric is None else metric.name(parameters)
        self._warn_of_plain(name, metric)
        totals = self._runs.ranks.add_up(torch.stack(sums)).numpy()  # [num_directions, 6, num_streams]
        alignment, error = _means_and_errors(totals[:, :5])
        with np.errstate(invalid="ignore", divide="ignore"):
            stream_losses = totals[:, 5].sum(axis=0) / totals[:, 1].sum(axis=0)
        return TargetStatistics(losses, alignment, error, name, stream_losses=stream_losses)

    def _warn_of_plain(self, name: str, metric: OptimizerMetric | None) -> None:
        optimizer = "SGD" if metric is None else type(metric.optimizer).__name__
        if name == "plain" and optimizer != "SGD" and not self._has_warned:
            logger.warning(
                "%s has no running squares of gradients to read: streams are compared by plain products, as for SGD.",
                optimizer,
            )
            self._has_warned = True

    def _warn_of_few_bits(self, parameters: Sequence[nn.Parameter]) -> None:
        few = sum(parameter.numel() for parameter in parameters if parameter.dtype in (torch.bfloat16, torch.float16))
        if few > sum(parameter.numel() for parameter in parameters) / 2 and not self._has_warned_of_bits:
            logger.warning(
                "Most trained weights have 16 bits, which round away the short steps that measure the targets: streams "
                "are measured less well. Load the model in float32 and set bf16=True (DeepSpeed's bf16 stores 16 bits "
                "too), or train adapters."
            )
            self._has_warned_of_bits = True

    def _positions(self, start: int, step: int) -> Int64Array:
        """This rank's positions of the rows of a measurement, `[num_rows / world_size]`."""
        own = np.arange(self._rank, self.paid_steps.at(step).num_rows, self._world_size, dtype=np.int64)
        return start + step * MOST_ROWS + own

    # ---- Targets ----

    def _direction(
        self,
        weights: FloatArray,
        parameters: Sequence[nn.Parameter],
        metric: OptimizerMetric | None,
        step: int,
        losses: FloatArray,
    ) -> tuple[list[Tensor | None], float]:
        """Returns the scaled gradient of the weighted losses of targets and the step along it; fills in the losses."""
        runs, chosen = self._runs, np.flatnonzero(weights)
        while (found := self._backward(chosen, weights[chosen], parameters, step)) is None:
            pass
        runs.average_own()
        direction = [parameter.grad for parameter in parameters]
        for parameter in parameters:
            parameter.grad = None
        scale = partial(self._scale, parameters, direction, metric)
        # DeepSpeed's squares are gathered: a rank without memory could not be waited for there.
        product = scale() if metric is not None and metric.is_divided else runs.alone(scale)
        losses[chosen], fall = found.read(runs, product)
        loss = float(weights[chosen] @ losses[chosen])
        return direction, _FALL * abs(loss) / fall if fall > 0.0 and math.isfinite(loss) else 0.0

    def _scale(
        self, parameters: Sequence[nn.Parameter], gradient: list[Tensor | None], metric: OptimizerMetric | None
    ) -> Tensor:
        """Scales a gradient in place, some of it at a time; returns what this rank has of its product with itself."""
        products = []
        for part in _parts(gradient):
            before, after = gradient[part], gradient[part]
            if all(own is None for own in before):
                continue
            if metric is not None:
                after = gradient[part] = [None if own is None else torch.empty_like(own) for own in before]
                copies = [local(own) for own in after if own is not None]
                _foreach_copy_(copies, [local(own) for own in before if own is not None])
                metric.scale(parameters[part], after)
            products.append(self._runs.product(after, before))
        return torch.stack(products).sum() if products else torch.zeros(())

    def _backward(
        self, chosen: Int64Array, weights: FloatArray, parameters: Sequence[nn.Parameter], step: int
    ) -> TargetLosses | None:
        """Computes this rank's gradient of the chosen targets.

        Args:
            chosen: int64 `[num_chosen]`: their numbers.
            weights: `[num_chosen]`: their weights.
            parameters: The trained parameters.
            step: The step.

        Returns:
            Their losses; `None` on all ranks if it has to be tried again, as memory ran out on one or as the targets
            cannot share micro-batches.
        """
        runs, positions, joins = self._runs, self._positions(0, step), self._joins and len(chosen) > 1
        targets = [self._targets[number] for number in chosen.tolist()]
        rows = runs.on_all_ranks(lambda: [target.read(place, positions, step) for place, target in enumerate(targets)])

        def counted(joins: bool) -> TargetLosses:
            micros = runs.on_all_ranks(partial(collated, rows, runs, joins, self._most_elements))
            return TargetLosses.of(evened(micros, runs), len(chosen), runs)

        found = counted(joins)
        if joins and not found.have_same_weight(weights):
            joins, found = False, counted(joins=False)
        for parameter in parameters:
            parameter.grad = None
        if not found.backward(weights, runs):
            return None
        if joins and runs.ranks.max_over_ranks(int(not found.are_known)):
            self._joins = False
            return None
        return found

    # ---- Streams ----

    def _stream_rows(self, step: int) -> list[MicroBatch]:
        """Reads this rank's rows of the streams: one by one if their losses cannot be separated, or in a few parts."""
        mixing, runs = self._mixing, self._runs
        active = self._are_measured & mixing.planner.active(mixing.clock.progress)
        wanted = {k: self._positions(int(mixing.seen[k]), step) for k in np.flatnonzero(active).tolist()}
        most = 1 if runs.num_parts == 1 else -(-len(self._positions(0, step)) // runs.num_parts)
        micros = runs.on_all_ranks(partial(runs.samples, wanted, most if self._are_separate else None))
        if self._are_separate is None:
            firsts = {int(micro.stream_ids[0]): micro for micro in reversed(micros)}  # streams may have other losses
            trials = runs.evened([*firsts.values()])
            with torch.no_grad():
                rows = runs.fitted([partial(runs.summed_row_losses, micro) for micro in trials], trials)
            if rows is None:
                return self._stream_rows(step)
            self._are_separate = bool(runs.ranks.max_over_ranks(int(any(own is None for own in rows))))
            if self._are_separate:
                micros = runs.on_all_ranks(partial(runs.samples, wanted, most))
        return runs.evened(micros)

    def _differences(
        self,
        micros: Sequence[MicroBatch],
        parameters: Sequence[nn.Parameter],
        direction: Sequence[Tensor | None],
        length: float,
    ) -> Tensor | None:
        """Returns this rank's sums over rows, `[6, num_streams]`, of `d, n, d², dn, n²` and the loss.

        `d` is the derivative of a row's summed loss along the direction, `n` its number of items. On all ranks it is
        `None` if memory ran out on one, to be tried again.
        """
        sums, runs, rows = torch.zeros(6, len(self._are_measured), dtype=torch.float64), self._runs, []
        if not length > 0.0:
            return sums
        losses_of: Callable[[MicroBatch], Any] = runs.summed_loss if self._are_separate else runs.summed_row_losses
        works = [partial(losses_of, micro) for micro in micros]
        with torch.no_grad(), self._moving(parameters, direction) as move:
            for sign in (1.0, -1.0):
                move(sign * length)
                if (losses := runs.fitted(works, micros)) is None:
                    return None
                rows += losses
        values = list(map(torch.from_numpy, to_host(rows)))  # one read from the device
        for micro, above, below in zip(micros, values[: len(micros)], values[len(micros) :], strict=True):
            if micro.is_padding:
                continue
            d = (above - below) / (2.0 * length)
            n, ids = runs.items(micro).double().cpu(), torch.from_numpy(micro.stream_ids)
            if self._are_separate:  # the micro-batch counts as a row
                n, ids = n.sum().reshape(1), ids[:1]
            sums.index_add_(1, ids, torch.stack([d, n, d * d, d * n, n * n, (above + below) / 2.0]))
        return sums

    @contextlib.contextmanager
    def _moving(
        self, parameters: Sequence[nn.Parameter], direction: Sequence[Tensor | None]
    ) -> Iterator[Callable[[float], None]]:
        """Allows moving the parameters along a direction, from where they are; restores them."""
        pairs = zip(parameters, direction, strict=True)
        both = [(local(own.detach()), local(part)) for own, part in pairs if part is not None]
        moved, steps = [own for own, _ in both], [part.to(own) for own, part in both]
        kept = self._runs.alone(lambda: [torch.empty_like(own) for own in moved])
        _foreach_copy_(kept, moved)

        def move(length: float) -> None:
            _foreach_copy_(moved, kept)
            _foreach_add_(moved, steps, alpha=length)

        try:
            yield move
        finally:
            _foreach_copy_(moved, kept)


def _parts(gradient: Sequence[Tensor | None]) -> Iterator[slice]:
    """Divides a gradient by its size."""
    start, num_bytes = 0, 0
    for place, own in enumerate(gradient):
        num_bytes += 0 if own is None else local(own).nbytes
        if num_bytes >= _BYTES_AT_ONCE or place == len(gradient) - 1:
            yield slice(start, place + 1)
            start, num_bytes = place + 1, 0


def _means_and_errors(sums: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Returns means per item and their standard errors, those of a ratio of sums over rows.

    Args:
        sums: `[num_directions, 5, num_streams]`: see `TargetProbe._differences`, over all ranks.

    Returns:
        `[num_directions, num_streams]` each; NaN for a stream without rows.
    """
    d, n, dd, dn, nn_ = sums.transpose(1, 0, 2)
    with np.errstate(invalid="ignore", divide="ignore"):
        means = d / n
        residual = np.maximum(dd - 2.0 * means * dn + means**2 * nn_, 0.0)
        errors = np.sqrt(residual) / n
    return means, errors


def _num_compared(objective: Objective, has_test: bool) -> int:
    """Returns how many rows of each target are the same each time; 0 where no losses are compared."""
    count = len(objective.names)
    if objective.bounds:
        return _LOSS_ROWS
    if objective.kind == "worst":
        return max(_LOSS_ROWS_OF_WORST, _LOSS_ROWS // count)
    return max(_LEAST_COMPARED, _TEST_ROWS // count) if has_test else 0


def new_hook(passes: AuxiliaryPasses) -> TargetProbe | None:
    """Makes the hook, if the targets' gradients are asked for."""
    requests = asked(passes.plan.needs, Alignment)
    if not requests:
        return None
    splits, request = passes.plan.aim, Alignment.merged(requests)
    test = _targets(passes, splits.test) if request.test_losses and splits.test else []
    return TargetProbe(_targets(passes, splits.rows), passes, request, splits.objective, test)


def _targets(passes: AuxiliaryPasses, rows: Mapping[str, Any]) -> list[TargetRows]:
    """Returns the rows of each target of the objective, from data sets by name."""
    return [TargetRows(name, rows[name], passes) for name in passes.plan.aim.objective.names]
