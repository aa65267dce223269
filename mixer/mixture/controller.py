"""Mixture controller: owns weights, batch size, planner and clock, and their state."""

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

import mixer.measurements as measurements
from mixer.mixture.batch_size import BatchSize
from mixer.mixture.clock import Clock
from mixer.mixture.loss_units import LossUnits
from mixer.mixture.planner import Planner
from mixer.mixture.step_plan import StepPlan
from mixer.mixture.streams import describe
from mixer.mixture.weights import MixtureWeights, mean_tokens
from mixer.policies.contract import Decision, Observation, Policy, Weights
from mixer.policies.objective import Objective
from mixer.schedules.base import BatchObservation, Schedule
from mixer.schedules.constant import Constant
from mixer.utils.arrays import FloatArray, Int64Array
from mixer.utils.errors import InvalidValueError, wrong_value
from mixer.utils.files import other_version
from mixer.utils.validation import MOST_COUNT, refusing_damage, whole_number

FORMAT_VERSION = 2
_LOADED = {"num_tokens": "tokens", "num_labels": "labels", "skipped": "skipped samples"}


class Mixing:
    """Decides every step of a run, identically on every rank; available as `trainer.mixing`.

    Args:
        planner: Planner over the streams.
        policy: Mixing policy.
        clock: Clock of the run.
        size: Batch-size control; `None` keeps the clock's batch size.
        objective: What the run is to lower, for the policy; `None` if the user declared nothing.
        loss_units: Units in which the policy sees losses; `None` shows them as they are.

    Raises:
        ValueError: If the policy's first decision does not match the streams.
    """

    def __init__(
        self,
        planner: Planner,
        policy: Policy,
        clock: Clock,
        size: BatchSize | None = None,
        objective: Objective | None = None,
        loss_units: LossUnits | None = None,
    ):
        self.policy, self.loss_units = policy, loss_units
        self.has_warned_of_labels = False  # that a stream has had none so far
        self.clock = clock
        self._mixture = replace(describe(planner.streams), objective=objective, decay_begins=self._decay_begins)
        self.names = self._mixture.names
        self._weights = MixtureWeights(policy, self._mixture, planner.active(0.0))
        self.size = BatchSize(Constant(), clock.batch_size) if size is None else size  # the batch size, as a control
        self._begin(planner)

    def _decay_begins(self) -> float:
        """Of the present clock; a method, as that is copied and pickled with its owner."""
        return self.clock.decay_begins()

    def restart(self, planner: Planner, clock: Clock, size: BatchSize) -> None:
        """Starts a new run on the same streams; manually set weights and batch size remain.

        Args:
            planner: Planner over the streams.
            clock: Clock of the run.
            size: Batch-size control.

        Raises:
            ValueError: If the policy's first decision does not match the streams.
        """
        self.clock = clock
        self._weights.start(planner.active(0.0))
        size.manual, self.size = self.size.manual, size
        self._begin(planner)

    def _begin(self, planner: Planner) -> None:
        self.planner = planner
        planner.check_additional(self._weights.additional)
        planner.match_lengths(self._weights.value)
        if self.loss_units is not None:
            self.loss_units.start()
        # `[3, num_streams]`: what is known of the streams' samples once they are loaded; the names show the rows.
        self._loaded: Int64Array = np.zeros((3, len(self.names)), dtype=np.int64)
        self.num_tokens, self.num_labels, self.skipped = self._loaded
        self.clock.resize(self.size.value)
        if self.is_exhausted:
            raise wrong_value("weights", "No stream that is active at the start of the run has a positive weight.")

    # ---- Progress ----

    @property
    def seen(self) -> Int64Array:
        """int64 `[num_streams]`: samples of each stream so far."""
        return self.planner.seen

    @property
    def amounts(self) -> Int64Array:
        """int64 `[num_streams]`: labels of each stream so far if the policy's unit is labels, else tokens."""
        amounts: Int64Array = self.num_labels if self.policy.unit == "labels" else self.num_tokens
        return amounts

    @property
    def coverage(self) -> dict[str, float]:
        """Fraction of each stream's samples seen, by name: `min(1, seen / n)`; NaN if `n` is unknown."""
        return dict(zip(self.names, np.minimum(1.0, self.stream_epochs).tolist(), strict=True))

    @property
    def stream_epochs(self) -> FloatArray:
        """`[num_streams]`: epochs of each stream so far, `seen / n`; NaN if `n` is unknown."""
        sizes = self._mixture.num_samples
        epochs: FloatArray = self.seen / np.where(sizes > 0, sizes, np.nan)
        return epochs

    @property
    def unique(self) -> Int64Array:
        """int64 `[num_streams]`: distinct samples seen so far (a lower bound if ends of epochs are dropped)."""
        unique = self.planner.unique
        return np.minimum(unique, self._mixture.num_samples - self._dropped) if self._dropped else unique

    @property
    def _dropped(self) -> int:
        return self.clock.dropped_samples if len(self.names) == 1 else 0

    # ---- Controls ----

    @property
    def weights(self) -> dict[str, float]:
        """Weights of the next step, by name; they sum to 1."""
        return dict(zip(self.names, self._weights.value.tolist(), strict=True))

    @property
    def decision(self) -> Decision:
        """The policy's last decision, which rules the next step unless weights are set by hand."""
        return self._weights.decision

    @property
    def weighs_losses(self) -> bool:
        """Whether the policy or the streams weight losses in the next step."""
        return self.planner.weigh_losses(self._weights.loss_weights) is not None

    @property
    def manual_weights(self) -> dict[str, float] | None:
        """Manually set weights, by name, or `None`."""
        manual = self._weights.manual
        return None if manual is None else dict(zip(self.names, manual.tolist(), strict=True))

    def set_weights(self, weights: Weights | None) -> None:
        """Sets the mixture weights by hand from the next step on, until called again.

        The policy keeps observing. All ranks must make the same call, as callbacks do.

        Args:
            weights: One weight per stream, by name or in order; `None` returns control to the policy.

        Raises:
            ValueError: If the weights do not match the streams.

        Example:
            >>> trainer.mixing.set_weights({"math": 3, "code": 1})  # doctest: +SKIP
        """
        self._weights.set(weights)

    @property
    def batch_size(self) -> int:
        """Samples of the next step over all ranks, unless epoch or budget have fewer left."""
        return self.size.value

    @property
    def manual_batch_size(self) -> int | None:
        """Manually set batch size, or `None`."""
        return self.size.manual

    @property
    def initial_batch_size(self) -> int:
        """Initial batch size, for which the learning rate was chosen."""
        return self.size.initial

    @property
    def schedule(self) -> Schedule:
        """Batch-size schedule."""
        return self.size.schedule

    @property
    def learning_rate_factor(self) -> float:
        """Factor on the learning rate in the next step, for its batch size."""
        return self.size.learning_rate_factor

    def set_batch_size(self, batch_size: int | None) -> None:
        """Sets the batch size by hand from the next step on, until called again.

        The schedule keeps observing. All ranks must make the same call, as callbacks do.

        Args:
            batch_size: Samples over all ranks; `None` returns control to the schedule.

        Raises:
            ValueError: If there are fewer samples than ranks.
            TypeError: If it is not an integer.

        Example:
            >>> trainer.mixing.set_batch_size(256)  # doctest: +SKIP
        """
        self.size.set(batch_size)
        self.clock.resize(self.size.value)

    # ---- Planning ----

    def next_plan(self) -> StepPlan | None:
        """Plans the next step and advances the streams.

        Returns:
            The plan; `None` if the streams are exhausted, or if the rest of the epoch was dropped just now because the
            batch size has grown.
        """
        if self.drop_rest():
            return None
        shares, available = self._shares()
        if not np.count_nonzero(shares):
            return None
        clock, weights, additional = self.clock, self._weights, self._weights.additional
        counts, starts = self.planner.draw(shares, available, self._next_total, clock.step, additional)
        return StepPlan(
            step=clock.step + 1,
            counts=counts,
            starts=starts,
            weights=shares,
            policy_weights=weights.value,
            loss_weights=self.planner.weigh_losses(weights.loss_weights),
            batch_size=clock.batch_size,
            staleness=clock.step - weights.num_observed,
            are_additional=None if additional is None else additional > 0,
        )

    @property
    def left_in_pass(self) -> int | None:
        """Rows left of a pass that is an epoch, or `None`: no pass is one, or its end is not known yet."""
        if not self.clock.has_passes:
            return None
        return next((cursor.left_in_pass for cursor in self.planner.row_drawers.values()), None)

    @property
    def _next_total(self) -> int:
        """Samples of the next step; no step has rows of two passes that are epochs."""
        total = self.clock.next_total()
        return min(total, self.left_in_pass or total) if self.clock.has_passes else total

    @property
    def most_of_a_stream(self) -> int:
        """Maximum samples of one stream in the next step: the batch size, or its additional samples if larger."""
        total, additional = self._next_total, self._weights.additional
        return total if additional is None else max(total, math.ceil(total * float(additional.max())) + 1)

    def forecast(self) -> Iterator[StepPlan]:
        """Plans the coming steps at constant weights and batch size, without side effects.

        Call it between a step's plan and its observation.

        Yields:
            Plans of the steps after the last planned one, until the run ends.
        """
        ahead = self._ahead()
        ahead.end_step()
        ahead.drop_rest()
        while ahead.clock.progress < 1.0 and (plan := ahead.next_plan()) is not None:
            yield plan
            ahead.count_untrained(plan)

    def preview_copy(self) -> "Mixing":
        """Returns a copy that plans an epoch at the current weights and batch size, without effect on this one.

        Its steps are not observed: `count_untrained` must end each.
        """
        copied = copy.copy(self)
        copied.planner, copied.clock = self.planner.lookahead_copy(), self.clock.zeroed_copy()
        return copied

    def count_untrained(self, plan: StepPlan) -> None:
        """Counts a step that is planned but not trained."""
        self.end_step(plan.clocked(plan.counts))
        self.drop_rest()

    def pass_over(self, num_steps: int) -> None:
        """Moves on by steps that were made elsewhere, with the present weights; policy and schedule begin after them.

        Args:
            num_steps: Their number; fewer if the streams are exhausted before.
        """
        while self.clock.step < num_steps and not self.is_exhausted:
            if (plan := self.next_plan()) is not None:  # else the rest of an epoch was dropped
                self.count_untrained(plan)
        self._weights.num_observed = self.clock.step

    @property
    def is_exhausted(self) -> bool:
        """Whether no stream with a positive weight has samples left."""
        return not self._shares()[0].any()

    def _shares(self) -> tuple[FloatArray, FloatArray]:
        lengths, weights = self._tokens_per_sample(), self._weights.value
        return self.planner.shares(weights if lengths is None else weights / lengths, self.clock.progress)

    def _tokens_per_sample(self) -> FloatArray | None:
        """`[num_streams]`: tokens, or labels, a sample if the policy decides in these; see `mean_tokens`."""
        return None if self.policy.unit == "samples" else mean_tokens(self.seen, self.amounts)

    # ---- Observing ----

    def observe(
        self,
        plan: StepPlan,
        tokens: Int64Array,
        measured: measurements.Results | None = None,
        skipped: Int64Array | None = None,
        labels: Int64Array | None = None,
    ) -> None:
        """Counts a step and lets policy and batch-size schedule decide on the next one.

        Args:
            plan: Plan of the step.
            tokens: int64 `[num_streams]`: its tokens.
            measured: What was measured, by the class of its request, for policies and schedules that need it.
            skipped: int64 `[num_streams]`: samples skipped because they could not be loaded; `None` for none.
            labels: int64 `[num_streams]`: labels that the loss learns; `None` for none.
        """
        is_static, measured = self.policy.is_static, measured or {}
        if not (is_static and self.size.is_constant):
            measured = measurements.with_shown(measured, (*self.policy.needs, *self.schedule.needs))
        self._count(plan, tokens, labels)
        for total, own in ((self.num_tokens, tokens), (self.num_labels, labels), (self.skipped, skipped)):
            if own is not None:
                total += own
        self.planner.count_amounts(self._loaded[:2])
        if not self.size.is_constant:
            self._update_batch_size(plan, measured)
        self.drop_rest()
        if is_static:
            self._weights.num_observed = self.clock.step
            return
        amounts = labels if self.policy.unit == "labels" else tokens
        self._update_weights(plan, np.zeros_like(tokens) if amounts is None else amounts.copy(), measured)

    def _count(self, plan: StepPlan, tokens: Int64Array, labels: Int64Array | None) -> None:
        num_labels = 0 if labels is None else plan.clocked(labels)
        self.end_step(plan.clocked(plan.counts), plan.clocked(tokens), num_labels)
        if self.schedule.unit == "epochs":
            self.drop_rest()

    def schedule_positions(
        self, plan: StepPlan, tokens: Int64Array, labels: Int64Array | None = None
    ) -> tuple[float, float]:
        """Returns the positions of the next step and of a planned one in the learning-rate schedule.

        Args:
            plan: The planned step, before it is observed.
            tokens: int64 `[num_streams]`: its tokens.
            labels: int64 `[num_streams]`: its labels; `None` for none.
        """
        ahead = self._ahead()
        ahead._count(plan, tokens, labels)  # noqa: SLF001 a copy of this
        return ahead.clock.schedule_position, self.clock.schedule_position

    def _ahead(self) -> "Mixing":
        """Returns a copy that can go ahead without effect on this one."""
        ahead = copy.copy(self)
        ahead.planner, ahead.clock = self.planner.lookahead_copy(), copy.copy(self.clock)
        return ahead

    def _update_batch_size(self, plan: StepPlan, measured: measurements.Results) -> None:
        clock = self.clock
        seen = BatchObservation(
            step=clock.step,
            progress=clock.progress,
            num_epochs_done=clock.num_epochs_done,
            num_samples=clock.num_samples,
            num_tokens=clock.num_tokens,
            num_labels=clock.num_labels,
            batch_size=plan.batch_size,
            measured=measured,
        )
        self.size.update(seen)
        clock.resize(self.size.value)

    def _update_weights(self, plan: StepPlan, tokens: Int64Array, measured: measurements.Results) -> None:
        lengths = self._tokens_per_sample()
        if self.loss_units is not None:
            measured = self.loss_units.in_units(measured)
        observation = Observation(
            step=self.clock.step,
            progress=self.clock.progress,
            weights=plan.policy_weights,
            counts=plan.counts,
            tokens=tokens,
            seen=self.seen.copy(),
            shares=plan.shares(lengths),
            batch_size=plan.batch_size,
            active=self.planner.active(self.clock.progress),
            tokens_per_sample=lengths,
            measured=measured,
        )
        self._weights.update(observation, self.clock.step)

    def observe_evaluation(self, losses: Mapping[str, float]) -> None:
        """Stores evaluation losses for the policy; see `MixtureWeights.observe_evaluation`."""
        self._weights.observe_evaluation(losses)

    def take_evaluation_losses(self) -> FloatArray | None:
        """Returns the losses of the evaluations since the last call, `[num_streams]`, or `None`."""
        return self._weights.take_evaluation_losses()

    def take_set_losses(self) -> Mapping[str, float] | None:
        """Returns those of sets that are no streams, by name, or `None`."""
        return self._weights.take_set_losses()

    def end_step(self, num_samples: int | None = None, num_tokens: int = 0, num_labels: int = 0) -> None:
        """Counts a step on the clock; see `Clock.tick`."""
        self.clock.tick(num_samples, num_tokens, num_labels)
        if self.clock.is_step_based and self._dropped and self.clock.at_epoch_end:
            self.planner.skip(self._dropped)

    def drop_rest(self) -> bool:
        """Ends an epoch after its pass, or if its rest is to be dropped and skipped. Returns whether it did."""
        if self.clock.has_passes and self.left_in_pass == 0 and self.clock.step_in_epoch:
            self.clock.end_epoch()
            return True
        rest = self.clock.drop_rest()
        if rest and len(self.names) == 1:
            self.planner.skip(rest)
        return rest > 0

    # ---- State ----

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of the mixture as plain data."""
        return {
            "format": FORMAT_VERSION,
            "clock": self.clock.state_dict(),
            "batch_size": self.size.state_dict(),
            "planner": self.planner.state_dict(),
            "weights": self._weights.state_dict(),
            **dict(zip(_LOADED, self._loaded.tolist(), strict=True)),
            **({} if self.loss_units is None else {"loss_units": self.loss_units.state_dict()}),
        }

    def load_state_dict(self, state: Mapping[str, Any], allow_inexact: bool = False, new_policy: bool = False) -> None:
        """Restores a saved state.

        Args:
            state: Result of `state_dict`.
            new_policy: Whether the policy begins here, in place of the saved one; all else is restored.
            allow_inexact: Whether to resume approximately after changes: streams are matched by name, new ones start,
                missing ones are forgotten; a policy of another kind or over other streams starts anew, and so does a
                batch size with another initial value.

        Raises:
            ValueError: If format, streams, policy or batch size differ; the message names the difference.
        """
        check_format(state)
        with refusing_damage("the saved mixture"):
            self._restore(state, allow_inexact, new_policy)

    def _restore(self, state: Mapping[str, Any], allow_inexact: bool, new_policy: bool) -> None:
        weights, streams = state["weights"], list(state["planner"]["streams"])
        policy = weights["policy"]["name"]
        if policy != self.policy.name and not (allow_inexact or new_policy):
            raise wrong_value("mixing", f"was {policy} when the run was saved and is {self.policy.name} now")
        self.planner.load_state_dict(state["planner"], allow_inexact)
        self.clock.load_state_dict(state["clock"], allow_inexact)
        if state["clock"]["initial_batch_size"] == self.clock.initial:  # else start with the size configured now
            self.size.load_state_dict(state["batch_size"], allow_inexact)
        self.clock.resize(self.size.value)
        for own, (name, called) in zip(self._loaded, _LOADED.items(), strict=True):
            own[:] = self._counts(state[name], streams, f"the {called} of a stream")
        self.planner.count_amounts(self._loaded[:2])
        self._weights.num_observed = self.clock.step
        if self.loss_units is not None and "loss_units" in state and streams == list(self.names):
            self.loss_units.load_state_dict(state["loss_units"])
        if policy == self.policy.name and streams == list(self.names) and not new_policy:
            self._weights.load_state_dict(weights, self.clock.step, allow_inexact)

    def _counts(self, saved: Sequence[Any], streams: Sequence[str], name: str) -> list[int]:
        """Returns saved counts in the order of the current streams, 0 for new ones."""
        counts = [whole_number(count, name, most=MOST_COUNT) for count in saved]
        by_name = dict(zip(streams, counts, strict=True))
        return [by_name.get(name, 0) for name in self.names]


def check_format(state: Mapping[str, Any]) -> None:
    """Raises a `ValueError` if the state has an unsupported format version."""
    version = state.get("format")
    if version != FORMAT_VERSION:
        raise InvalidValueError(other_version("it", version, FORMAT_VERSION), option="format", found=version)
