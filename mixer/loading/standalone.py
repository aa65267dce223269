"""A mixture in a loop of one's own: what the batch sampler and the data loader have in common."""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, SupportsFloat

import numpy as np
from transformers.utils import logging

from mixer.loading.build import resolve_policy
from mixer.loading.reported import ByStream, StepReport, make_reported
from mixer.loading.standalone_options import (
    BatchSizeLike,
    check_progress,
    resolve_clock,
    resolve_ranks,
    resolve_size,
    resolve_streams,
)
from mixer.mixture.budget import Budget
from mixer.mixture.controller import Mixing
from mixer.mixture.plan import Plan
from mixer.mixture.planner import Planner
from mixer.mixture.streams import combine, total_max_samples
from mixer.policies import Policy
from mixer.policies.base import Weights
from mixer.policies.gradient_statistics import GradientStatistics
from mixer.utils.arrays import Int64Array

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
