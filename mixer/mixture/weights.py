"""The first control of a run: the weights of the streams."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mixer.mixture.state import arrays_of, check_form, is_known
from mixer.policies.contract import Decision, Mixture, Observation, Policy, Weights, check_weights, weights_array
from mixer.utils.arrays import BoolArray, FloatArray, Int64Array
from mixer.utils.validation import DAMAGE, finite_numbers


class MixtureWeights:
    """The weights of the streams: those that a policy decides, or those set by hand.

    Args:
        policy: The policy.
        mixture: The streams, as the policy sees them.
        active: bool `[num_streams]`: streams that are active in the first step; `None` for all.

    Raises:
        ValueError: If the policy's first decision does not fit the streams.
    """

    def __init__(self, policy: Policy, mixture: Mixture, active: BoolArray | None = None):
        self.policy, self._mixture, self._names = policy, mixture, mixture.names
        self.manual: FloatArray | None = None
        self.start(active)

    def start(self, active: BoolArray | None = None) -> None:
        """Begins a new run; weights set by hand stay.

        Args:
            active: bool `[num_streams]`: streams that are active in the first step; `None` for all.
        """
        self._evaluation_losses: FloatArray | None = None
        self._decide(self.policy.start(replace(self._mixture, active=active)), 0)

    @property
    def value(self) -> FloatArray:
        """`[num_streams]`: the weights of the next step; they sum to 1."""
        return self._scheduled if self.manual is None else self.manual

    @property
    def decision(self) -> Decision:
        """The policy's last decision, also while weights set by hand rule."""
        return self._decision

    @property
    def loss_weights(self) -> FloatArray | None:
        """`[num_streams]`: factors on the streams' losses, or `None`."""
        return self._decision.loss_weights

    @property
    def additional(self) -> FloatArray | None:
        """`[num_streams]`: samples on top of the batch size, as multiples of it; `None` by hand, or without."""
        return self._decision.additional if self.manual is None else None

    def staleness(self, step: int) -> int:
        """Counts the steps after the policy's last decision, of `step` steps done."""
        return step - self._num_observed

    def set(self, weights: Weights | None) -> None:
        """Sets the weights by hand from the next step on.

        Args:
            weights: One weight a stream, by name or in order; `None` returns control to the policy.

        Raises:
            ValueError: If the weights do not fit the streams.
        """
        if weights is None:
            self.manual = None
        else:
            given = weights_array(weights, self._names, "set_weights")
            self.manual = given / given.sum()

    def update(self, observe: Callable[[FloatArray | None], Observation], step: int) -> None:
        """Lets the policy decide for the next step, unless it is static.

        Args:
            observe: Makes the observation of the last step of the evaluation losses since the one before.
            step: Number of steps done.

        Raises:
            ValueError: If the decision does not fit the streams.
        """
        if self.policy.is_static:
            self._num_observed = step
            return
        observation = observe(self._evaluation_losses)
        self._evaluation_losses = None
        with self._naming_policy(step):
            decision = self.policy.update(observation)
        self._decide(decision, step)

    def in_samples(self, seen: Int64Array, num_tokens: Int64Array) -> FloatArray:
        """Turns shares of tokens into shares of samples by the tokens per sample so far.

        Args:
            seen: int64 `[num_streams]`: samples so far.
            num_tokens: int64 `[num_streams]`: tokens so far.

        Returns:
            `[num_streams]`: weights of samples.
        """
        lengths = self.tokens_per_sample(seen, num_tokens)
        return self.value if lengths is None else self.value / lengths

    def tokens_per_sample(self, seen: Int64Array, num_tokens: Int64Array) -> FloatArray | None:
        """Gives the tokens per sample of each stream so far, if the policy's unit is tokens.

        Args:
            seen: int64 `[num_streams]`: samples so far.
            num_tokens: int64 `[num_streams]`: tokens so far.

        Returns:
            `[num_streams]`, the mean of the others for a stream without tokens yet; `None` if all are without, or the
            unit is samples.
        """
        return None if self.policy.unit == "samples" else mean_tokens(seen, num_tokens)

    def observe_evaluation(self, losses: Mapping[str, float]) -> None:
        """Keeps the losses of an evaluation for the policy's next decision.

        Args:
            losses: Evaluation losses by stream; others are left out.
        """
        values = np.array([losses.get(name, np.nan) for name in self._names], dtype=np.float64)
        values[~np.isfinite(values)] = np.nan
        if self._evaluation_losses is not None:
            values = np.where(np.isnan(values), self._evaluation_losses, values)
        self._evaluation_losses = values

    def state_dict(self) -> dict[str, Any]:
        """Gives the state as plain data."""
        evaluation = self._evaluation_losses
        return {
            "policy": {"name": self.policy.name, "state": self.policy.state_dict()},
            "decision": self._decision.state_dict(),
            "manual": None if self.manual is None else self.manual.tolist(),
            "evaluation_losses": None
            if evaluation is None
            else [None if np.isnan(v) else v for v in evaluation.tolist()],
        }

    def check_policy(self, state: Mapping[str, Any]) -> None:
        """Refuses the state of another policy.

        Args:
            state: What `state_dict` gave.

        Raises:
            ValueError: If it is of another policy; both are named.
        """
        if state["policy"]["name"] != self.policy.name:
            raise ValueError(f"the policy was {state['policy']['name']} and is {self.policy.name} now")

    def load_state_dict(self, state: Mapping[str, Any], step: int, allow_inexact: bool = False) -> None:
        """Restores a saved state of the same policy on the same streams.

        Args:
            state: A state from `state_dict`.
            step: Number of steps done.
            allow_inexact: Keeps the present weights of a static policy if others were saved, and starts a policy anew
                that does not fit the saved state.

        Raises:
            ValueError: If the state does not fit the policy, or a static policy had other weights.
        """
        arrays = arrays_of(self.policy, len(self._names)) if is_known(self.policy) else {}
        try:
            before = self.policy.state_dict()
            self.policy.load_state_dict(state["policy"]["state"])
            if is_known(self.policy):
                check_form(state["policy"]["state"], before, self.policy.name)
            if not arrays.items() <= arrays_of(self.policy, len(self._names)).items():
                raise ValueError(f"{self.policy.name} remembers {len(self._names)} streams, and others were saved")
        except (ValueError, *DAMAGE) as error:
            if not allow_inexact:
                found = f"the saved state of policy {self.policy.name} cannot be taken up ({error})"
                raise ValueError(found) from error
            self.start()  # of the same name, but it remembers other things: it starts anew
            self.skip_to(step)
            return
        manual = _array(state["manual"], self._names)
        if manual is not None:
            check_weights(manual, self._names, "the weights set by hand")
        self.manual = manual
        losses = state["evaluation_losses"]
        gaps = None if losses is None else [0.0 if loss is None else loss for loss in losses]
        self._evaluation_losses = _array(gaps, self._names)
        if self._evaluation_losses is not None:
            self._evaluation_losses[[loss is None for loss in losses]] = np.nan
        decision, own = Decision.from_state(state["decision"]), self._decision.weights
        if self.policy.is_static and not np.array_equal(decision.weights, own):
            if allow_inexact:
                return
            raise ValueError(
                f"the weights were {decision.weights.tolist()} and are {own.tolist()} now (to change a mixture on the "
                "way, call trainer.mixing.set_weights before train)"
            )
        self._decide(decision, step)

    def skip_to(self, step: int) -> None:
        """Goes on after `step` steps of which the policy knows nothing."""
        self._num_observed = step

    @contextlib.contextmanager
    def _naming_policy(self, step: int) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if f"at step {step}" not in str(error):
                error.add_note(f"Raised by the policy {self.policy.name} at step {step}.")
            raise

    def _decide(self, decision: Decision, step: int) -> None:
        where = f"{type(self.policy).__name__} at step {step}"
        if not isinstance(decision, Decision):
            raise TypeError(f"{where}: a policy decides by a Decision, such as Decision(weights), got {decision!r}.")
        if not _is_array(decision.weights) or not (decision.loss_weights is None or _is_array(decision.loss_weights)):
            # Of a policy of the user's own; a mapping's names are looked at, too.
            loss_weights = decision.loss_weights
            decision = replace(
                decision,
                weights=weights_array(decision.weights, self._names, where),
                loss_weights=None if loss_weights is None else weights_array(loss_weights, self._names, where),
            )
        for values in (decision.weights, decision.loss_weights):
            if values is None:
                continue
            if np.shape(values) != (len(self._names),):
                raise ValueError(
                    f"{where}: expected {len(self._names)} weights, one for each of {list(self._names)}, "
                    f"got shape {list(np.shape(values))}: {values.tolist()}."
                )
            check_weights(values, self._names, where)
        if decision.additional is not None:
            self._check_additional(decision.additional, decision.weights, where)
        self._decision = decision
        self._num_observed = step
        self._scheduled = decision.weights / np.sum(decision.weights)

    def _check_additional(self, additional: FloatArray, weights: FloatArray, where: str) -> None:
        if np.shape(additional) != (len(self._names),) or not (np.isfinite(additional) & (additional >= 0)).all():
            raise ValueError(
                f"{where}: additional must be {len(self._names)} finite numbers of 0 or more, got {additional!r}."
            )
        if (additional * weights).any():
            raise ValueError(
                f"{where}: a stream has samples on top of the batch size (additional) or a share of it (weights), not "
                f"both; got additional {additional.tolist()}, weights {weights.tolist()}."
            )


def _is_array(values: object) -> bool:
    return isinstance(values, np.ndarray) and values.dtype.kind in "fiu"


def mean_tokens(seen: Int64Array, num_tokens: Int64Array) -> FloatArray | None:
    """Gives the tokens per sample of each stream so far.

    Args:
        seen: int64 `[num_streams]`: samples so far.
        num_tokens: int64 `[num_streams]`: tokens so far.

    Returns:
        `[num_streams]`: the mean of the others for a stream without tokens yet; `None` if all are without.
    """
    known = num_tokens > 0
    if not known.any():
        return None
    lengths = np.divide(num_tokens, seen, out=np.ones(len(known)), where=known)
    return np.where(known, lengths, lengths[known].mean())


def _array(values: Any, names: Sequence[str]) -> FloatArray | None:
    return None if values is None else finite_numbers(values, "the values of the streams", len(names))
