"""The controller of a mixture: it owns the policy, the planner and the clock, and all of their state."""

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mixer.batch_size import BatchSize
from mixer.clock import Clock
from mixer.plan import Plan
from mixer.planner import Planner
from mixer.policies.base import Decision, Observation, Policy, Weights, check_weights, weights_array
from mixer.schedules import BatchObservation, Constant, Schedule
from mixer.streams import describe

FloatArray = NDArray[np.float64]
Int64Array = NDArray[np.int64]

FORMAT_VERSION = 2


class Mixing:
    """Decides every update of a run, on every rank alike; `trainer.mixing` is one.

    Args:
        planner: The streams and what they draw next.
        policy: What decides the weights.
        clock: How far the run is.
        size: What decides the batch size; `None` keeps that of the clock.

    Raises:
        ValueError: If the policy's first decision does not fit the streams.
    """

    def __init__(self, planner: Planner, policy: Policy, clock: Clock, size: BatchSize | None = None):
        self.policy = policy
        self._mixture = describe(planner.streams)
        self.names = self._mixture.names
        self._manual: FloatArray | None = None
        self._size = BatchSize(Constant(), clock.batch_size) if size is None else size
        self.restart(planner, clock, self._size)

    def restart(self, planner: Planner, clock: Clock, size: BatchSize) -> None:
        """Begins a new run of the same streams; weights and a batch size set by hand stay.

        Args:
            planner: The streams and what they draw next.
            clock: How far the run is.
            size: What decides the batch size.

        Raises:
            ValueError: If the policy's first decision does not fit the streams.
        """
        self.planner = planner
        self.clock = clock
        size.manual, self._size = self._size.manual, size
        clock.resize(size.value)
        self.num_tokens: Int64Array = np.zeros(len(self.names), dtype=np.int64)
        self._evaluation_losses: FloatArray | None = None
        self._decide(self.policy.start(self._mixture))
        if self.is_exhausted:
            raise ValueError("No stream that is there at the start of the run has a positive weight.")
        evaluation_weights = self.policy.evaluation_weights()
        self._evaluation_weights = self._policy_weights if evaluation_weights is None else evaluation_weights

    @property
    def seen(self) -> Int64Array:
        """int64 `[num_streams]`: samples of each stream so far."""
        return self.planner.seen

    @property
    def weights(self) -> dict[str, float]:
        """The weights that rule the next update, by name; they sum to 1."""
        return dict(zip(self.names, self._weights().tolist(), strict=True))

    @property
    def manual_weights(self) -> dict[str, float] | None:
        """The weights set by hand, by name, or `None`."""
        return None if self._manual is None else dict(zip(self.names, self._manual.tolist(), strict=True))

    @property
    def coverage(self) -> dict[str, float]:
        """Share of each stream's samples that was seen, by name: `min(1, seen / n)`; NaN where `n` is not known."""
        return dict(zip(self.names, np.minimum(1.0, self.stream_epochs).tolist(), strict=True))

    @property
    def stream_epochs(self) -> FloatArray:
        """`[num_streams]`: passes over each stream so far, `seen / n`; NaN where `n` is not known."""
        sizes = self._mixture.num_samples
        if sizes.all():
            epochs: FloatArray = self.seen / sizes
        else:
            epochs = np.divide(self.seen, sizes, out=np.full(len(sizes), np.nan), where=sizes > 0)
        return epochs

    @property
    def unique(self) -> Int64Array:
        """int64 `[num_streams]`: different samples seen so far (a lower bound where ends of epochs are dropped)."""
        unique = self.planner.unique
        return np.minimum(unique, self._mixture.num_samples - self._dropped) if self._dropped else unique

    @property
    def _dropped(self) -> int:
        return self.clock.dropped_samples if len(self.names) == 1 else 0

    @property
    def batch_size(self) -> int:
        """Samples of the next update over all ranks, if the epoch and the budget have as many left."""
        return self._size.value

    @property
    def manual_batch_size(self) -> int | None:
        """The batch size set by hand, or `None`."""
        return self._size.manual

    @property
    def schedule(self) -> Schedule:
        """The batch-size schedule."""
        return self._size.schedule

    @property
    def learning_rate_factor(self) -> float:
        """What the run's learning rate is multiplied by in the next update, for its batch size."""
        return self._size.learning_rate_factor

    def set_batch_size(self, batch_size: int | None) -> None:
        """Rules the batch size by hand from the next update on, until called again.

        The schedule goes on observing. On several ranks every rank has to make the same call, as callbacks do.

        Args:
            batch_size: Samples over all ranks; `None` gives the size back to the schedule.

        Raises:
            ValueError: If there are fewer samples than ranks.
            TypeError: If it is no whole number.

        Example:
            >>> trainer.mixing.set_batch_size(256)  # doctest: +SKIP
        """
        self._size.set(batch_size)
        self.clock.resize(self._size.value)

    def set_weights(self, weights: Weights | None) -> None:
        """Rules the mixture by hand from the next update on, until called again.

        The policy goes on observing. On several ranks every rank has to make the same call, as callbacks do.

        Args:
            weights: One weight a stream, by name or in order; `None` gives the mixture back to the policy.

        Raises:
            ValueError: If the weights do not fit the streams.

        Example:
            >>> trainer.mixing.set_weights({"math": 3, "code": 1})  # doctest: +SKIP
        """
        if weights is None:
            self._manual = None
        else:
            given = weights_array(weights, self.names, "set_weights")
            self._manual = given / given.sum()

    def next_plan(self) -> Plan | None:
        """Plans the next update and moves the streams on.

        Returns:
            The plan, or `None` if the streams have nothing left to give, or the rest of the epoch was dropped just
            now because the batch size has grown since the last update.
        """
        if self._drop_rest():
            return None
        weights = self._weights()
        shares, available = self.planner.shares(self._sample_weights(weights), self.clock.progress)
        if not shares.any():
            return None
        counts, starts = self.planner.draw(shares, available, self.clock.next_total(), self.clock.step)
        return Plan(
            step=self.clock.step,
            counts=counts,
            starts=starts,
            weights=shares,
            policy_weights=weights,
            loss_weights=self._decision.loss_weights,
            batch_size=self.clock.batch_size,
            staleness=self.clock.step - self._num_observed,
        )

    def forecast(self) -> Iterator[Plan]:
        """Plans the coming updates as if the weights stayed, and moves nothing.

        To be asked between an update's plan and its observation.

        Yields:
            The plans of the updates after the one that was planned last, up to the end of the run.
        """
        ahead = copy.copy(self)
        ahead.planner, ahead.clock = self.planner.ahead(), copy.copy(self.clock)
        total: int | None = None
        while True:
            ahead._end_update(total)
            ahead._drop_rest()
            plan = ahead.next_plan() if ahead.clock.progress < 1.0 else None
            if plan is None:
                return
            total = plan.total
            yield plan

    @property
    def is_exhausted(self) -> bool:
        """Whether no stream with a positive weight has a sample left."""
        shares, _ = self.planner.shares(self._sample_weights(self._weights()), self.clock.progress)
        return not shares.any()

    def observe(
        self,
        plan: Plan,
        losses: FloatArray,
        tokens: Int64Array,
        loss: float = math.nan,
        gradient_norm: float = math.nan,
        learning_rate: Callable[[float], float] | None = None,
    ) -> None:
        """Counts an update and lets the policy and the batch-size schedule decide for the next one.

        Args:
            plan: The update's plan.
            losses: `[num_streams]`: mean loss per item, NaN where there is none.
            tokens: int64 `[num_streams]`: tokens of the update.
            loss: Mean loss per item over all streams, for a schedule that needs it.
            gradient_norm: Norm of the gradient before clipping, likewise.
            learning_rate: Gives the factor of the run's learning-rate schedule at a step, likewise.
        """
        self._end_update(plan.total, int(tokens.sum()))
        self.num_tokens += tokens
        if not self._size.is_constant:
            clock = self.clock
            self._size.update(
                BatchObservation(
                    step=clock.step,
                    progress=clock.progress,
                    num_epochs_done=clock.num_epochs_done,
                    num_samples=clock.num_samples,
                    num_tokens=clock.num_tokens,
                    batch_size=plan.batch_size,
                    loss=loss,
                    gradient_norm=gradient_norm,
                    learning_rate=math.nan if learning_rate is None else learning_rate(clock.schedule_position),
                )
            )
            clock.resize(self._size.value)
        self._drop_rest()
        self._observe_by_policy(plan, losses, tokens)

    def _observe_by_policy(self, plan: Plan, losses: FloatArray, tokens: Int64Array) -> None:
        if self.policy.is_static:
            self._num_observed = self.clock.step
            return
        observation = Observation(
            step=self.clock.step,
            progress=self.clock.progress,
            weights=plan.policy_weights,
            counts=plan.counts,
            tokens=tokens,
            seen=self.seen.copy(),
            losses=losses,
            evaluation_losses=self._evaluation_losses,
        )
        self._evaluation_losses = None
        self._decide(self.policy.update(observation))

    def check_tokens(self, plan: Plan, tokens: Int64Array) -> None:
        """Refuses samples without tokens where something is counted in tokens.

        Args:
            plan: The plan of an update.
            tokens: int64 `[num_streams]`: its tokens.

        Raises:
            ValueError: If a stream has samples in it but no tokens; the streams are named.
        """
        if tokens[plan.counts > 0].all():
            return
        users = {
            "unit='tokens'": self.policy.unit == "tokens",
            "A budget in tokens": self.clock.budget.tokens is not None,
            f"batch_size={self.schedule.name}": "tokens" in self.schedule.needs,
        }
        who = [user for user, counts_tokens in users.items() if counts_tokens]
        if who:
            names = [name for name, bad in zip(self.names, (plan.counts > 0) & (tokens == 0), strict=True) if bad]
            raise ValueError(f"{who[0]} needs token counts, but samples of {names} have no tokens and no mask.")

    def observe_evaluation(self, losses: Mapping[str, float]) -> None:
        """Keeps the losses of an evaluation for the policy's next decision.

        Args:
            losses: Evaluation losses by stream; others are left out.
        """
        values = np.array([losses.get(name, np.nan) for name in self.names], dtype=np.float64)
        values[~np.isfinite(values)] = np.nan
        if self._evaluation_losses is not None:
            values = np.where(np.isnan(values), self._evaluation_losses, values)
        self._evaluation_losses = values

    def average_evaluation(self, losses: Mapping[str, float]) -> float:
        """Averages evaluation losses by the mixture that the run was started with.

        Args:
            losses: Evaluation losses by name.

        Returns:
            The weighted mean; the plain one if the names are not those of streams, or the mixture has none of them.
        """
        values = np.array(list(losses.values()))
        by_name = dict(zip(self.names, self._evaluation_weights.tolist(), strict=True))
        weights = np.array([by_name.get(name, 0.0) for name in losses])
        if not set(losses) <= set(by_name) or weights.sum() <= 0:
            weights = np.ones(len(values))
        # A stream of weight 0 must not turn the mean into NaN: it does not count, whatever its loss.
        return float((values * weights)[weights > 0].sum() / weights.sum())

    def state_dict(self) -> dict[str, Any]:
        """Gives the whole state of the mixture as plain data."""
        evaluation = self._evaluation_losses
        return {
            "format": FORMAT_VERSION,
            "clock": self.clock.state_dict(),
            "batch_size": self._size.state_dict(),
            "planner": self.planner.state_dict(),
            "policy": {"name": self.policy.name, "state": self.policy.state_dict()},
            "decision": {
                "weights": self._decision.weights.tolist(),
                "loss_weights": None if self._decision.loss_weights is None else self._decision.loss_weights.tolist(),
            },
            "manual_weights": None if self._manual is None else self._manual.tolist(),
            "num_tokens": self.num_tokens.tolist(),
            "evaluation_losses": None
            if evaluation is None
            else [None if np.isnan(v) else v for v in evaluation.tolist()],
        }

    def load_state_dict(self, state: Mapping[str, Any], allow_inexact: bool = False) -> None:
        """Takes up a saved state.

        Args:
            state: What `state_dict` gave.
            allow_inexact: Goes on as near as can be where something is not what it was: streams are known by name, new
                ones begin, those that are gone are forgotten; a policy of another kind or of other streams starts anew.

        Raises:
            ValueError: If it is of another format, other streams, another policy or another batch size; the
                difference is named.
        """
        check_format(state)
        policy = state["policy"]
        is_same = policy["name"] == self.policy.name and list(state["planner"]["streams"]) == list(self.names)
        if policy["name"] != self.policy.name and not allow_inexact:
            raise ValueError(f"the policy was {policy['name']} and is {self.policy.name} now")
        self.planner.load_state_dict(state["planner"], allow_inexact)
        self.clock.load_state_dict(state["clock"], allow_inexact)
        self._size.load_state_dict(state["batch_size"], allow_inexact)
        self.clock.resize(self._size.value)
        self._num_observed = self.clock.step
        tokens = dict(zip(state["planner"]["streams"], state["num_tokens"], strict=True))
        self.num_tokens = np.array([tokens.get(name, 0) for name in self.names], dtype=np.int64)
        if is_same:
            self.policy.load_state_dict(policy["state"])
            self._load_decision(state["decision"], allow_inexact)
            self._manual = _array(state["manual_weights"])
            self._evaluation_losses = _array(state["evaluation_losses"])

    def _load_decision(self, saved: Mapping[str, Any], allow_inexact: bool) -> None:
        weights, own = np.array(saved["weights"], dtype=np.float64), self._decision.weights
        if self.policy.is_static and not np.array_equal(weights, own):
            if allow_inexact:
                return
            raise ValueError(
                f"the weights were {weights.tolist()} and are {own.tolist()} now (to change a mixture on the way, "
                "call trainer.mixing.set_weights before train)"
            )
        self._decide(Decision(weights, _array(saved["loss_weights"])))

    def _end_update(self, num_samples: int | None = None, num_tokens: int = 0) -> None:
        self.clock.tick(num_samples, num_tokens)
        if self.clock.counts_steps and self._dropped and self.clock.at_epoch_end:
            self.planner.skip(self._dropped)

    def _drop_rest(self) -> bool:
        """Ends an epoch whose rest is to be dropped; the samples of a single stream are passed over."""
        rest = self.clock.drop_rest()
        if rest and len(self.names) == 1:
            self.planner.skip(rest)
        return rest > 0

    def _decide(self, decision: Decision) -> None:
        where = f"{type(self.policy).__name__} at step {self.clock.step}"
        for values in (decision.weights, decision.loss_weights):
            if values is None:
                continue
            if np.shape(values) != (len(self.names),):
                raise ValueError(
                    f"{where}: expected {len(self.names)} weights, one for each of {list(self.names)}, "
                    f"got shape {list(np.shape(values))}."
                )
            check_weights(values, self.names, where)
        self._decision = decision
        self._num_observed = self.clock.step
        self._policy_weights = decision.weights / np.sum(decision.weights)

    def _weights(self) -> FloatArray:
        return self._policy_weights if self._manual is None else self._manual

    def _sample_weights(self, weights: FloatArray) -> FloatArray:
        """Turns shares of tokens into shares of samples by what a sample of each stream has had so far."""
        if self.policy.unit == "samples":
            return weights
        known = self.num_tokens > 0
        if not known.any():
            return weights
        lengths = np.divide(self.num_tokens, self.seen, out=np.ones(len(weights)), where=known)
        return weights / np.where(known, lengths, lengths[known].mean())


def check_format(state: Mapping[str, Any]) -> None:
    """Refuses a state of another version.

    Args:
        state: What `Mixing.state_dict` gave.

    Raises:
        ValueError: If it has another format.
    """
    if state.get("format") != FORMAT_VERSION:
        raise ValueError(f"it has format {state.get('format')}, this version reads format {FORMAT_VERSION}")


def _array(values: Sequence[float | None] | None) -> FloatArray | None:
    return None if values is None else np.array(values, dtype=np.float64)
