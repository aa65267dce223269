"""A mixture in your own training loop: what the batch sampler and the data loader share."""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, SupportsFloat

import numpy as np
import torch
from transformers.utils import logging

from mixer.loading.build import resolve_policy
from mixer.mixture.batch_size import BatchSize
from mixer.mixture.clock import Budget, Clock
from mixer.mixture.controller import Mixing
from mixer.mixture.plan import Plan
from mixer.mixture.planner import Planner
from mixer.mixture.resolve import check_schedule, resolve_epoch_size
from mixer.mixture.stream import Stream, as_streams, combine, total_max_samples
from mixer.policies import Policy, Scheduled, Wrapper
from mixer.policies.contract import Weights
from mixer.policies.gradient_statistics import GradientStatistics
from mixer.schedules import AdaBatch, CriticalBatchWarmup, Function, Ramp, Schedule, as_schedule
from mixer.schedules.limits import check_whole
from mixer.utils.arrays import FloatArray, Int64Array

BatchSizeLike = Schedule | str | int | Callable[[int, int], int]
_ENDLESS = Budget(epochs=1e12)
_TRAINED_BY = ("preprocess", "data_collator", "label_names", "compute_loss_func", "head")


def resolve_ranks(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Gives this rank and the number of ranks.

    Args:
        rank: What the user says, or `None`.
        world_size: Likewise.

    Returns:
        That, or what `torch.distributed` says if it is initialised, else 0 and 1.

    Raises:
        ValueError: If there is no such rank.
        TypeError: If either is no whole number.
    """
    has_ranks = torch.distributed.is_available() and torch.distributed.is_initialized()
    if world_size is None:
        world_size = torch.distributed.get_world_size() if has_ranks else 1
    if rank is None:
        rank = torch.distributed.get_rank() if has_ranks else 0
    for name, value in (("rank", rank), ("world_size", world_size)):
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name} must be a whole number, got {value!r}.")
    if not 0 <= rank < world_size:
        raise ValueError(
            f"rank must be 0 or more and below world_size={world_size}, got {rank}; give both, or neither after "
            "torch.distributed was initialised."
        )
    return rank, world_size


def resolve_streams(data: Any, honoured: Collection[str] = ()) -> list[Stream]:
    """Gives the streams of what a user gives as data.

    Args:
        data: A number of samples, or what `as_streams` takes.
        honoured: What of the fields that say how a stream's samples are trained is done; the others are refused.

    Returns:
        The streams; for a number one of the indices themselves.

    Raises:
        ValueError: If the number is below 1, or a data set is empty.
        TypeError: If a data set cannot be indexed.
    """
    if isinstance(data, int):
        check_whole("data", data)
        data = range(data)
    streams = as_streams(data, "data")
    for stream in streams:
        if stream.is_iterable:
            raise TypeError(
                f"Stream {stream.name!r}: the rows of an iterable data set cannot be picked by index, and to share "
                "them out the ranks have to talk to each other at every step, which MixingTrainer does. Use it, or "
                "give a data set with __len__ and __getitem__."
            )
        left = [name for name in _TRAINED_BY if name not in honoured and getattr(stream, name) is not None]
        if left:
            raise ValueError(
                f"Stream {stream.name!r}: {left} say how a trainer treats its samples, which is the loop's own affair "
                "here. Leave them out; which stream a sample is of, stream_ids says."
            )
    return streams


def resolve_size(batch_size: BatchSizeLike, world_size: int) -> BatchSize:
    """Gives what decides the batch size.

    Args:
        batch_size: What `as_schedule` takes.
        world_size: Number of ranks.

    Returns:
        It; a function is given one sample a rank to begin with.

    Raises:
        ValueError: If there are fewer samples than ranks, or nothing says with how many to begin.
        TypeError: If it is of the wrong kind.
    """
    schedule = as_schedule(batch_size)
    check_schedule(schedule, None)
    if schedule.initial is None and not isinstance(schedule, Function):
        raise ValueError(
            f"batch_size={schedule.name} says no size to begin with, and there are no training arguments to take it "
            "from: give a number, or initial= to the schedule."
        )
    return BatchSize(schedule, world_size, world_size)


def check_progress(schedule: Schedule, policy: Policy) -> None:
    """Refuses what goes by the progress of a run that has no end.

    Args:
        schedule: The batch-size schedule.
        policy: The mixing policy.

    Raises:
        ValueError: If either does.
    """
    while isinstance(policy, Wrapper):
        policy = policy.policy
    goes_by_progress = isinstance(schedule, AdaBatch | Ramp | CriticalBatchWarmup) and schedule.unit == "progress"
    rule = schedule.name if goes_by_progress else policy.name if isinstance(policy, Scheduled) else None
    if rule is not None:
        raise ValueError(
            f"{rule} goes by the progress of the run, and without a budget there is none: give budget=Budget(epochs=3) "
            "or a schedule in another unit."
        )


def resolve_clock(
    batch_size: int,
    streams: Sequence[Stream],
    budget: Budget | None,
    epoch_size: int | None,
    drop_last: bool,
    world_size: int,
) -> Clock:
    """Gives the clock.

    Args:
        batch_size: Samples of the first batch over all ranks.
        streams: The streams.
        budget: How much is trained, or `None` for no end.
        epoch_size: Samples of an epoch, or `None` for those of all streams.
        drop_last: Whether the rest of an epoch is dropped.
        world_size: Number of ranks.

    Returns:
        A clock that counts data from the start: a size that is constant now may be set by hand at any time.

    Raises:
        ValueError: If an epoch has too few samples, or a stream is there for a share of a run that has no end.
        TypeError: If the budget is none, or the epoch no whole number.
    """
    if budget is not None and not isinstance(budget, Budget):
        raise TypeError(f"budget must be a Budget, such as Budget(epochs=3), got {budget!r}.")
    max_samples = total_max_samples(streams)
    if budget is None and max_samples is None:
        _check_always_there(streams)
    budget = _ENDLESS if budget is None else budget
    size = resolve_epoch_size(budget, streams, batch_size, epoch_size)
    if drop_last and size < batch_size:
        raise ValueError(
            f"drop_last=True leaves nothing of an epoch of {size} samples: batch_size is {batch_size}. Lower it, or "
            "keep the last batch."
        )
    if size < world_size:
        raise ValueError(
            f"data: an epoch of {size} samples is fewer than the world_size={world_size} ranks. Start fewer ranks, or "
            "set epoch_size."
        )
    return Clock(batch_size, size, budget, int(drop_last), max_samples, is_constant=False)


def _check_always_there(streams: Sequence[Stream]) -> None:
    for stream in streams:
        if (stream.enters_at, stream.leaves_at) != (0.0, 1.0):
            raise ValueError(
                f"Stream {stream.name!r} enters or leaves at a share of the run, which has no end: give budget, such "
                "as Budget(epochs=3)."
            )


# By name, in order, or one number for a single stream.
ByStream = Mapping[str, SupportsFloat] | Sequence[SupportsFloat] | FloatArray | SupportsFloat


@dataclass(frozen=True)
class StepReport:
    """What a batch showed; NaN where something was not measured.

    Args:
        losses: `[num_streams]`: mean loss of each stream.
        tokens: int64 `[num_streams]`: tokens of each stream.
        loss: Mean loss over all streams.
        gradient_norm: Norm of the gradient before clipping.
        learning_rate: Factor of the learning-rate schedule for the next batch.
        gradients: The streams' gradients, or `None`.
        update_norm: How far the optimizer step moved the parameters.
        excess_losses: `[num_streams]`: mean per item of what the loss exceeds that of a reference model; `None` where
            nobody measured it, as below.
        losses_after: `[num_streams]`: mean loss of each stream once more after the optimizer step.
    """

    losses: FloatArray
    tokens: Int64Array
    loss: float = math.nan
    gradient_norm: float = math.nan
    learning_rate: float = math.nan
    gradients: GradientStatistics | None = None
    update_norm: float = math.nan
    excess_losses: FloatArray | None = None
    losses_after: FloatArray | None = None

    def lacking(
        self,
        policy_needs: frozenset[str],
        schedule_needs: frozenset[str],
        is_policy_due: bool,
        is_schedule_due: bool,
    ) -> list[str]:
        """Says what of the things that are needed was not reported.

        Args:
            policy_needs: What the policy needs.
            schedule_needs: What the batch-size schedule needs.
            is_policy_due: Whether gradients, where the policy needs them, are due after this batch.
            is_schedule_due: The same for the schedule.

        Returns:
            Names, of those that can be reported and are no counts.
        """
        measured = {"loss": self.loss, "gradient_norm": self.gradient_norm, "learning_rate": self.learning_rate}
        lacking = {name for name in schedule_needs & measured.keys() if math.isnan(measured[name])}
        if "loss" in policy_needs and np.isnan(self.losses).all():
            lacking.add("losses")
        for need, name in (("excess_loss", "excess_losses"), ("loss_after", "losses_after")):
            values = getattr(self, name)
            if need in policy_needs and (values is None or np.isnan(values).all()):
                lacking.add(name)
        if "update_norm" in policy_needs and math.isnan(self.update_norm):
            lacking.add("update_norm")
        needs_gradients = policy_needs & {"gradient", "gradient_variance"} if is_policy_due else set()
        if self.gradients is None and (needs_gradients or (is_schedule_due and "gradient_noise" in schedule_needs)):
            lacking.add("gradients")
        return sorted(lacking)


def make_reported(
    names: Sequence[str],
    losses: ByStream | None = None,
    tokens: ByStream | None = None,
    loss: SupportsFloat = math.nan,
    gradient_norm: SupportsFloat = math.nan,
    learning_rate: SupportsFloat = math.nan,
    gradients: GradientStatistics | None = None,
    update_norm: SupportsFloat = math.nan,
    excess_losses: ByStream | None = None,
    losses_after: ByStream | None = None,
) -> StepReport:
    """Brings what a user reports into order.

    Args:
        names: Names of the streams.
        losses: Mean losses; those that are not finite count as none.
        tokens: Numbers of tokens; 0 where there are none.
        loss: Mean loss over all streams; of a single stream it is the same as `losses`, and either is enough.
        gradient_norm: See `Reported`.
        learning_rate: See `Reported`.
        gradients: See `Reported`.
        update_norm: See `Reported`.
        excess_losses: See `Reported`; those that are not finite count as none, as below.
        losses_after: See `Reported`.

    Returns:
        The report.

    Raises:
        ValueError: If numbers do not fit the streams; what and which is named.
        TypeError: If the gradients are something else.
    """
    mean, is_single = _number(loss), len(names) == 1
    values = _finite("losses", mean if losses is None and is_single else losses, names)
    others = [
        None if given is None else _finite(where, given, names)
        for where, given in (("excess_losses", excess_losses), ("losses_after", losses_after))
    ]
    if math.isnan(mean) and is_single:
        mean = float(values[0])
    if not isinstance(gradients, GradientStatistics | None):
        raise TypeError(
            f"observe: gradients must be what GradientProbe.finish() gives, got a {type(gradients).__name__}."
        )
    if gradients is not None and len(gradients.counts) != len(names):
        raise ValueError(
            f"observe: gradients must be of the streams {list(names)}, got those of {len(gradients.counts)} streams."
        )
    counts = _by_stream("tokens", tokens, names, 0.0).astype(np.int64)
    numbers = (mean, _number(gradient_norm), _number(learning_rate))
    return StepReport(values, counts, *numbers, gradients, _number(update_norm), *others)


def _finite(where: str, given: ByStream | None, names: Sequence[str]) -> FloatArray:
    values = _by_stream(where, given, names, math.nan)
    values[~np.isfinite(values)] = math.nan
    return values


def _by_stream(where: str, given: ByStream | None, names: Sequence[str], missing: float) -> FloatArray:
    if given is None:
        return np.full(len(names), missing)
    if isinstance(given, torch.Tensor):
        given = given.tolist()
    if isinstance(given, Mapping):
        unknown = sorted(set(given) - set(names))
        if unknown:
            raise ValueError(f"observe: {where} has {unknown}, but the streams are {list(names)}.")
        return np.array([_number(given.get(name, missing)) for name in names])
    values = [_number(value) for value in given] if isinstance(given, Sequence | np.ndarray) else [_number(given)]
    if len(values) != len(names):
        raise ValueError(f"observe: {where} must have one number for each of {list(names)}, got {len(values)}.")
    return np.array(values)


def _number(value: SupportsFloat) -> float:
    """Takes losses as they come out of a model: torch warns of `float` where a gradient hangs on a tensor."""
    return float(value.item() if isinstance(value, torch.Tensor) else value)


MixingLike = Policy | str | Mapping[str, float] | Sequence[float] | Callable[..., Any]
logger = logging.get_logger(__name__)


class Standalone:
    """A mixture that plans a batch when one is asked for and counts it when the next one is.

    Args:
        data: A number of samples, a data set, a mapping of names to data sets, or a list of `Stream`.
        batch_size: Samples of a batch over all ranks: a number, a schedule, its name, or `f(step, batch_size)`, which
            is given one sample a rank at step 0 (`Function(f, initial=...)` for another number).
        mixing: What decides the weights, as for `MixingTrainer`.
        shuffle: Whether every epoch of a stream has a shuffled order of its own.
        seed: The seed of those orders.
        drop_last: Whether the rest of an epoch that makes no whole batch is dropped. An epoch smaller than a batch is
            one batch all the same.
        epoch_size: Samples of an epoch; `None` takes those of all streams together.
        budget: How much is trained in all, after which there are no more batches; what goes by progress needs one.
            `None` is without end.
        rank: This rank; `None` takes that of `torch.distributed`, or 0.
        world_size: Number of ranks, likewise, or 1.

    Raises:
        ValueError: If sizes, ranks and streams do not fit together.
        TypeError: If something is of the wrong kind.
    """

    _honoured: Collection[str] = ()  # fields of a stream that say how its samples are trained, and are done here

    def __init__(
        self,
        data: Any,
        batch_size: BatchSizeLike,
        mixing: MixingLike | None,
        shuffle: bool,
        seed: int,
        drop_last: bool,
        epoch_size: int | None,
        budget: Budget | None,
        rank: int | None,
        world_size: int | None,
    ):
        self.rank, self.world_size = resolve_ranks(rank, world_size)
        streams = resolve_streams(data, self._honoured)
        self.dataset = combine(streams, [stream.dataset for stream in streams])
        self.streams = streams if shuffle else [replace(stream, shuffle=False) for stream in streams]
        self._drop_last = drop_last
        size = resolve_size(batch_size, self.world_size)
        clock = resolve_clock(size.value, self.streams, budget, epoch_size, drop_last, self.world_size)
        policy = resolve_policy(mixing, self.streams)
        if budget is None and total_max_samples(streams) is None:
            check_progress(size.schedule, policy)
        self.mixing = Mixing(Planner(self.streams, seed), policy, clock, size)
        self._followers = [
            stream.dataset.follow(stream.name, self.streams, lambda: self.mixing.planner)
            for stream in self.streams
            if stream.is_memory
        ]
        self.plan: Plan | None = None
        self.stream_ids: Int64Array = np.empty(0, dtype=np.int64)
        self.is_padding = False
        self._uncounted: Plan | None = None
        self._has_warned = False

    def __len__(self) -> int:
        size, epoch_size = self.mixing.batch_size, self.mixing.clock.epoch_size
        return max(1, epoch_size // size) if self._drop_last else -(-epoch_size // size)

    # ---- Where it is ----

    @property
    def epoch(self) -> int:
        """Index of the present epoch; an epoch ends when a batch beyond its last one is asked for."""
        return self.mixing.clock.num_epochs_done

    @property
    def coverage(self) -> float:
        """Share of the present epoch that was given, in [0, 1]; that of each stream is `mixing.coverage`."""
        if self._uncounted is None:
            return self.mixing.clock.epoch_coverage
        uncounted = self._uncounted.clocked(self._uncounted.counts)
        clock = self.mixing.clock
        return min(1.0, (clock.samples_in_epoch + uncounted) / clock.whole_epoch)

    @property
    def is_finished(self) -> bool:
        """Whether the budget is used up, or no stream has a sample left: there is no further batch."""
        return self.mixing.clock.progress >= 1.0 or self.mixing.is_exhausted

    @property
    def loss_scale(self) -> float:
        """What the mean loss of this rank's batch is multiplied by.

        The mean of the gradients over the ranks, which is what DistributedDataParallel gives, then is the gradient of
        the mean loss of the whole batch, also where ranks have unequal parts of it; a repeated sample counts 0.
        """
        return self._loss_scale(0 if self.is_padding else len(self.stream_ids))

    # ---- What moves it ----

    def set_batch_size(self, batch_size: int | None) -> None:
        """Rules the size of the batches to come by hand; see `Mixing.set_batch_size`."""
        self.mixing.set_batch_size(batch_size)

    def set_weights(self, weights: Weights | None) -> None:
        """Rules the mixture of the batches to come by hand; see `Mixing.set_weights`."""
        self.mixing.set_weights(weights)

    def observe(
        self,
        losses: ByStream | None = None,
        *,
        loss: SupportsFloat = math.nan,
        tokens: ByStream | None = None,
        gradient_norm: SupportsFloat = math.nan,
        learning_rate: SupportsFloat = math.nan,
        gradients: GradientStatistics | None = None,
        update_norm: SupportsFloat = math.nan,
        excess_losses: ByStream | None = None,
        losses_after: ByStream | None = None,
    ) -> None:
        """Reports what the last batch showed, for adaptive policies and schedules.

        Optional: without a report a batch is counted when the next one is asked for. On several ranks all have to
        report the same numbers, those of the whole batch.

        Args:
            losses: Mean loss of each stream, by name or in order, or one number for a single stream; NaN, or no entry,
                where there is none.
            loss: Mean loss over all streams; for a single stream either of the two is enough.
            tokens: Tokens of each stream in the batch, likewise.
            gradient_norm: Norm of the gradient before clipping.
            learning_rate: Factor of the learning-rate schedule for the next batch, 1 at its peak.
            gradients: What a `GradientProbe` measured in it, for a policy or schedule that goes by gradients.
            update_norm: How far the optimizer step moved the parameters, as `mixer.gradients.update_norm.UpdateNorm`
                measures it.
            excess_losses: Mean per item of what each stream's loss exceeds that of a reference model on the same item,
                0 where it is below, by name or in order.
            losses_after: Mean loss of each stream on the same samples once more after the optimizer step, likewise.

        Raises:
            RuntimeError: If no batch waits for a report.
            ValueError: If the numbers do not fit the streams, or tokens are needed and not given.
            TypeError: If the gradients are something else.
        """
        if self._uncounted is None:
            raise RuntimeError(
                "observe: no batch waits for a report. Report on each batch once, before the next one or the state "
                "is asked for."
            )
        names = self.mixing.names
        numbers = (losses, tokens, loss, gradient_norm, learning_rate, gradients, update_norm)
        report = make_reported(names, *numbers, excess_losses, losses_after)
        self._count(self._uncounted, report)

    # ---- State ----

    def state_dict(self) -> dict[str, Any]:
        """Gives the whole state as data that JSON can hold; the batch that was given last counts as done.

        Returns:
            The state. It is the same on every rank, and fits any number of ranks.
        """
        self._count_last()
        return self.mixing.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes up a saved state: the next batch is the one after the last that was given.

        Args:
            state: What `state_dict` gave.

        Raises:
            ValueError: If it is of other data, another seed, policy or batch size; the difference is named.
        """
        self._uncounted = None
        try:
            self.mixing.load_state_dict(state)
        except (KeyError, TypeError) as error:
            raise ValueError(f"load_state_dict: the state lacks {error}.") from None
        except ValueError as error:
            raise ValueError(f"load_state_dict: {error}.") from None

    # ---- The batches ----

    def _plans(self) -> Iterator[Plan]:
        """Plans what is left of the present epoch, each batch when it is asked for."""
        clock = self.mixing.clock
        self._count_last()
        epoch = clock.num_epochs_done
        while clock.num_epochs_done == epoch and clock.progress < 1.0:
            plan = self.mixing.next_plan()
            if plan is None:
                return
            self.plan = self._uncounted = plan
            yield plan
            self._count_last()

    def _loss_scale(self, num_own: int) -> float:
        if self.plan is None:
            raise RuntimeError("loss_scale: it is that of the batch that was given last, and none was given yet.")
        return num_own * self.world_size / self.plan.total

    def _count_last(self) -> None:
        if self._uncounted is not None:
            self._count(self._uncounted, make_reported(self.mixing.names))

    def _count(self, plan: Plan, report: StepReport) -> None:
        mixing = self.mixing
        try:
            mixing.check_tokens(plan, report.tokens)
        except ValueError as error:
            raise ValueError(f"{error} Report them after each batch: observe(tokens=...).") from None
        is_due = [not plan.step % rule.interval_steps for rule in (mixing.policy, mixing.schedule)]
        lacking = report.lacking(mixing.policy.needs, mixing.schedule.needs, *is_due)
        if lacking and not self._has_warned:
            self._has_warned = True
            logger.warning("Nobody reported %s, which the mixture goes by: call observe(...).", lacking)
        self._uncounted = None
        for follow in self._followers:
            follow(plan)
        mixing.observe(
            plan,
            report.losses,
            report.tokens,
            report.loss,
            report.gradient_norm,
            lambda position: report.learning_rate,
            gradients=report.gradients,
            update_norm=report.update_norm,
            excess_losses=report.excess_losses,
            losses_after=report.losses_after,
        )
