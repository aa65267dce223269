"""Mixtures in your own training loop: the base class of the batch sampler and the data loader."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, SupportsFloat

import numpy as np
from transformers.utils import logging

import mixer.loading.standalone_options as options
from mixer.loading.batch_report import StreamValues, as_numbers, find_missing, make_report
from mixer.loading.build import resolve_policy
from mixer.measurements import BY_NAME, Results
from mixer.mixture.batch_size import BatchSize
from mixer.mixture.clock import Budget, Clock
from mixer.mixture.controller import Mixing
from mixer.mixture.counted_units import check_counted
from mixer.mixture.planner import Planner
from mixer.mixture.resolve import amounts_of, check_amounts, check_samples, resolve_epoch_size
from mixer.mixture.step_plan import StepPlan
from mixer.mixture.stream import Stream
from mixer.mixture.streams import combine, total_samples
from mixer.policies.contract import Policy, Weights
from mixer.utils.arrays import Int64Array
from mixer.utils.data_set import DataSet
from mixer.utils.errors import InvalidValueError, wrong_type, wrong_value
from mixer.utils.recorded_arguments import as_data, check_keywords, names_arguments

logger = logging.get_logger(__name__)
_ENDLESS = Budget(epochs=1e12)
_ARGUMENTS = "policy_arguments"  # entry of a state
_MOST_UNEVALUATED = 1000  # batches without an evaluation, or an epoch, until the log misses it


@names_arguments
class Standalone:
    """Plans each batch when it is requested and counts it when the next one is.

    Args:
        data: Number of samples, dataset, mapping of names to datasets, or list of `Stream`.
        batch_size: Samples per batch over all ranks: a number, a schedule, its name, or `f(step, batch_size)`. A
            function starts from one sample per rank at step 0 (`Function(f, initial=...)` for another number).
        mixing: Mixing policy, as for `MixingTrainer`.
        shuffle: Whether to shuffle each stream anew in every epoch.
        seed: Shuffling seed.
        drop_last: Whether to drop the incomplete last batch of an epoch. An epoch smaller than a batch still yields one
            batch.
        epoch_size: Samples per epoch; `None` uses the total of all streams.
        budget: Length of the run, after which no more batches come; required by schedules and policies that depend on
            progress. `None` means no end.
        rank: Rank of this process; `None` uses `torch.distributed`, or 0.
        world_size: Number of ranks; `None` uses `torch.distributed`, or 1.

    Raises:
        ValueError: If sizes, ranks and streams are inconsistent.
        TypeError: If an argument has the wrong type.
    """

    _supported: Collection[str] = ()  # stream fields on training (collator, head, ...) that the class supports
    _is_whole = True  # whether a batch may have several streams, so that none has a factor on its loss

    def __init__(
        self,
        data: int | DataSet | Mapping[str, DataSet] | Sequence[Stream],
        batch_size: options.BatchSizeLike,
        *,
        mixing: options.MixingLike | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        epoch_size: int | None = None,
        budget: Budget | None = None,
        rank: int | None = None,
        world_size: int | None = None,
    ):
        self.rank, self.world_size = options.resolve_ranks(rank, world_size)
        streams = options.resolve_streams(data, self._supported)
        self.dataset = combine(streams, [stream.dataset for stream in streams])
        self.streams = streams if shuffle else [replace(stream, shuffle=False) for stream in streams]
        self._drop_last = drop_last
        size = options.resolve_size(batch_size, self.world_size)
        policy = resolve_policy(mixing, self.streams)
        options.check_needs(policy)
        check_samples(policy, len(self.streams), size.value)
        clock = self._new_clock(size, policy, budget, epoch_size)
        self.mixing = Mixing(Planner(self.streams, seed), policy, clock, size)
        self._followers = [
            stream.dataset.follow(stream.name, self.streams, lambda: self.mixing.planner)
            for stream in self.streams
            if stream.is_memory
        ]
        self.plan: StepPlan | None = None
        self.stream_ids: Int64Array = np.empty(0, dtype=np.int64)
        self.is_padding = False
        self._uncounted: StepPlan | None = None
        self._has_warned = False
        self._runs_ahead = self._has_warned_ahead = False  # whether batches are requested before they are trained
        self._num_unevaluated = 0  # batches since the last report of an evaluation
        self._check_streams()
        self._check_loss_weights()

    def _new_clock(self, size: BatchSize, policy: Policy, budget: Budget | None, epoch_size: int | None) -> Clock:
        """Returns a clock that counts samples from the start: even a constant size may be set by hand at any time."""
        if budget is not None and not isinstance(budget, Budget):
            raise wrong_type("budget", f"must be a Budget, such as Budget(epochs=3), got {budget!r}.")
        max_samples, amounts = total_samples(self.streams), amounts_of(self.streams)
        if budget is None and amounts is not None:
            budget = amounts.budget
        elif budget is None:
            budget = _ENDLESS
            if max_samples is None:
                options.check_no_progress(self.streams, size.schedule, policy)
        check_amounts(self.streams, budget, None)
        num_samples = resolve_epoch_size(budget, self.streams, epoch_size)
        assert num_samples is not None, "no stream is iterable"  # noqa: S101
        self._check_epoch(num_samples, size.value)
        return Clock(size.value, num_samples, budget, int(self._drop_last), max_samples, is_constant=False)

    def _check_epoch(self, num_samples: int, batch_size: int) -> None:
        """Refuses an epoch that has too few samples for a batch to drop the rest of, or for the ranks."""
        if self._drop_last and num_samples < batch_size:
            raise wrong_value(
                "drop_last", f"=True leaves nothing of {num_samples} samples in batches of {batch_size}. Reduce it."
            )
        if num_samples < self.world_size:
            raise wrong_value(
                "data", f": an epoch has {num_samples} samples, fewer than {self.world_size} ranks. Set epoch_size."
            )

    def _check_streams(self) -> None:
        """Refuses streams that the class does not support."""

    def _check_loss_weights(self) -> None:
        if self._is_whole and self.mixing.weighs_losses:
            raise wrong_value(
                "mixing",
                f": {self.mixing.policy.name}, or a stream's loss_weight, weights losses by stream, which a mixed batch"
                " cannot do. Set acts_on='sampling' if the policy has it, remove loss_weight, or use MixingDataLoader "
                "with micro_batch_size, for micro-batches of one stream each.",
            )

    def __len__(self) -> int:
        size, epoch_size = self.mixing.batch_size, self.mixing.clock.epoch_size
        return max(1, epoch_size // size) if self._drop_last else -(-epoch_size // size)

    # ---- Progress ----

    @property
    def epoch(self) -> int:
        """Index of the current epoch; an epoch ends when a batch beyond its last one is requested."""
        return self.mixing.clock.num_epochs_done

    @property
    def coverage(self) -> float:
        """Fraction of the current epoch that was returned, in [0, 1]; `mixing.coverage` holds that of each stream."""
        if self._uncounted is None:
            return self.mixing.clock.epoch_coverage
        uncounted = self._uncounted.clocked(self._uncounted.counts)
        clock = self.mixing.clock
        return min(1.0, (clock.samples_in_epoch + uncounted) / clock.whole_epoch)

    @property
    def is_finished(self) -> bool:
        """Whether the budget or all streams are used up, so that no batch follows."""
        return self.mixing.clock.progress >= 1.0 or self.mixing.is_exhausted

    @property
    def loss_scale(self) -> float:
        """Factor for the mean loss of this rank's batch.

        With it, the mean of the gradients over ranks, as computed by DistributedDataParallel, is the gradient of the
        mean loss of the whole batch, even if ranks have unequal shares of it. A padding sample counts 0.
        """
        return self._loss_scale(0 if self.is_padding else len(self.stream_ids))

    # ---- Controls and observations ----

    def set_batch_size(self, batch_size: int | None) -> None:
        """Sets the batch size by hand from the next batch on; see `Mixing.set_batch_size`."""
        self.mixing.set_batch_size(batch_size)

    def set_weights(self, weights: Weights | None) -> None:
        """Sets the mixture weights by hand from the next batch on; see `Mixing.set_weights`."""
        self.mixing.set_weights(weights)

    def observe(
        self,
        losses: StreamValues | None = None,
        *,
        loss: SupportsFloat = math.nan,
        tokens: StreamValues | None = None,
        labels: StreamValues | None = None,
        measured: Results | None = None,
        **named: Any,
    ) -> None:
        """Reports measurements of the last batch, for adaptive policies and schedules.

        Optional: without a report a batch is counted when the next one is requested. All ranks must report the same
        values, those of the whole batch.

        Args:
            losses: Mean loss of each stream, by name or in order, or one number for a single stream; NaN or no entry if
                not measured.
            loss: Mean loss over all streams; for a single stream either of the two is enough.
            tokens: Tokens of each stream in the batch, likewise.
            labels: Tokens of each stream in the batch that the loss learns, likewise.
            measured: What else was measured, by the class of the measurement, with numbers of streams by name or in
                order; for measurements of your own.
            **named: The same by the name of a class in `mixer.measurements`: `gradient_norm=1.5` (before clipping),
                `learning_rate=0.5` (the factor of the schedule for the next batch, 1 at its peak),
                `gradients=probe.finish()` (of a `GradientProbe`), `evaluation_loss={"math": 1.5}`; `None` if it was not
                measured.

        Raises:
            RuntimeError: If no batch waits for a report.
            ValueError: If the values do not match the streams, or required tokens or labels are missing.
            TypeError: If the gradients have the wrong type, or something is measured that is no measurement.
        """
        self._warn_if_ahead("observe")
        if self._uncounted is None:
            raise RuntimeError(
                "observe: no batch waits for a report: report each once, before the next batch or state_dict()."
            )
        check_keywords(named, [*BY_NAME, "losses", "tokens", "labels", "measured"], "observe")
        names = self.mixing.names
        results = {BY_NAME[name]: result for name, result in named.items()}
        report = make_report(names, losses, loss, {**results, **(measured or {})})
        counted = as_numbers("tokens", tokens, names).astype(np.int64)
        learned = None if labels is None else as_numbers("labels", labels, names).astype(np.int64)
        self._count(self._uncounted, counted, learned, report)

    # ---- State ----

    def state_dict(self) -> dict[str, Any]:
        """Returns the state as JSON-compatible data, identical on all ranks; the last batch counts as done."""
        self._warn_if_ahead("state_dict")
        self._count_last()
        return {**self.mixing.state_dict(), _ARGUMENTS: as_data(self.mixing.policy)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores a saved state, with any number of ranks: the next batch follows the last one returned.

        Args:
            state: Result of `state_dict`.

        Raises:
            ValueError: If data, seed, policy or batch size differ; the message names the difference.
        """
        self._uncounted = None
        try:
            self.mixing.load_state_dict(state)
        except (KeyError, TypeError) as error:
            raise wrong_value("load_state_dict", f": the state lacks {error}.") from None
        except ValueError as error:
            raise wrong_value("load_state_dict", f": {error}.") from None
        saved, now = state.get(_ARGUMENTS), as_data(self.mixing.policy)
        if saved not in (None, now):  # as in a trainer that resumes
            logger.warning("The policy continues with other arguments: %s when it was saved, %s now.", saved, now)

    # ---- Batches ----

    def _plans(self) -> Iterator[StepPlan]:
        """Plans the rest of the current epoch, each batch when it is requested."""
        clock = self.mixing.clock
        self._count_last()
        epoch = clock.num_epochs_done
        while clock.num_epochs_done == epoch and clock.progress < 1.0:
            self._check_loss_weights()
            plan = self.mixing.next_plan()
            if plan is None:
                return
            self.plan = self._uncounted = plan
            yield plan
            self._count_last()

    def _loss_scale(self, num_own: int) -> float:
        if self.plan is None:
            raise RuntimeError("loss_scale refers to the last batch, and there has been none yet.")
        return num_own * self.world_size / self.plan.total

    def _count_last(self) -> None:
        if self._uncounted is not None:
            names = self.mixing.names
            nothing = np.zeros(len(names), dtype=np.int64)
            self._count(self._uncounted, nothing, None, make_report(names, None, math.nan, {}))

    def _warn_if_ahead(self, called: str) -> None:
        if self._runs_ahead and not self._has_warned_ahead:
            self._has_warned_ahead = True
            text = (
                "%s refers to the last batch that the DataLoader's workers have requested, not to the one in training: "
            )
            logger.warning(text + "a resumed run skips those between. With workers, use MixingDataLoader.", called)

    def _count(self, plan: StepPlan, tokens: Int64Array, labels: Int64Array | None, report: Results) -> None:
        mixing = self.mixing
        try:
            check_counted(mixing, plan, tokens, labels=labels)
        except InvalidValueError as error:
            raise InvalidValueError(
                f"{error} Report them after each batch: observe(tokens=...), observe(labels=...).", option=error.option
            ) from None
        is_evaluated = any("evaluations" in kind.requires for kind in report)
        self._num_unevaluated = 0 if is_evaluated else self._num_unevaluated + 1
        is_due = self._num_unevaluated > min(len(self), _MOST_UNEVALUATED)
        missing = find_missing(report, plan.step, mixing.policy, mixing.schedule, is_due)
        if missing and not self._has_warned:
            self._has_warned = True
            text = "The mixture depends on %s, and batch %d was counted without: report them by observe(...)."
            logger.warning(text, missing, plan.step)
        self._uncounted = None
        for follow in self._followers:
            follow(plan)
        mixing.observe(plan, tokens, report, labels=labels)
