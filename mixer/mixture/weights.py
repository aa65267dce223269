"""The first control of a run: the weights of the streams."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

import mixer.policies.contract as contract
from mixer.measurements import evaluated_sets
from mixer.utils.arrays import BoolArray, FloatArray, Int64Array
from mixer.utils.errors import InvalidValueError, require, wrong_type, wrong_value
from mixer.utils.saved_state import arrays_of, check_form, is_known, to_plain
from mixer.utils.text import naming_rule
from mixer.utils.validation import DAMAGE, finite_or_missing


class MixtureWeights:
    """The weights of the streams: those that a policy decides, or those set by hand.

    Args:
        policy: The policy.
        mixture: The streams, as the policy sees them.
        active: bool `[num_streams]`: streams that are active in the first step; `None` for all.

    Attributes:
        decision: The policy's last decision, also while weights set by hand rule.
        manual: `[num_streams]`: the weights set by hand, or `None`.
        num_observed: Number of steps done at the policy's last decision.

    Raises:
        ValueError: If the policy's first decision does not fit the streams.
    """

    def __init__(self, policy: contract.Policy, mixture: contract.Mixture, active: BoolArray | None = None):
        self.policy, self._mixture, self._names = policy, mixture, mixture.names
        self._sets = evaluated_sets(policy.needs)
        self.manual: FloatArray | None = None
        self.start(active)

    def start(self, active: BoolArray | None = None) -> None:
        """Begins a new run; weights set by hand stay.

        Args:
            active: bool `[num_streams]`: streams that are active in the first step; `None` for all.
        """
        self._evaluation_losses: FloatArray | None = None
        self._set_losses: dict[str, float] = {}
        self._decide(self.policy.start(replace(self._mixture, active=active)), 0)
        self.policy.check_remembered()

    @property
    def value(self) -> FloatArray:
        """`[num_streams]`: the weights of the next step; they sum to 1."""
        return self._scheduled if self.manual is None else self.manual

    @property
    def loss_weights(self) -> FloatArray | None:
        """`[num_streams]`: factors on the streams' losses, or `None`."""
        return self.decision.loss_weights

    @property
    def additional(self) -> FloatArray | None:
        """`[num_streams]`: samples on top of the batch size, as multiples of it; `None` by hand, or without."""
        return self.decision.additional if self.manual is None else None

    def set(self, weights: contract.Weights | None) -> None:
        """Sets the weights by hand from the next step on.

        Args:
            weights: One weight a stream, by name or in order; `None` returns control to the policy.

        Raises:
            ValueError: If the weights do not fit the streams.
        """
        manual = None if weights is None else contract.weights_array(weights, self._names, "set_weights")
        self.manual = None if manual is None else manual / manual.sum()

    def update(self, observation: contract.Observation, step: int) -> None:
        """Lets the policy decide for the next step.

        Args:
            observation: The observation of the last step.
            step: Number of steps done.

        Raises:
            ValueError: If the decision does not fit the streams.
        """
        with naming_rule(f"policy {self.policy.name}", step):
            decision = self.policy.update(observation)
        self._decide(decision, step)

    def take_evaluation_losses(self) -> FloatArray | None:
        """Returns the losses of the evaluations since the last call, `[num_streams]`, or `None`."""
        losses, self._evaluation_losses = self._evaluation_losses, None
        return losses

    def take_set_losses(self) -> Mapping[str, float] | None:
        """Returns the losses of evaluation sets that are no streams since the last call, by name, or `None`."""
        losses, self._set_losses = self._set_losses, {}
        return losses or None

    def observe_evaluation(self, losses: Mapping[str, float]) -> None:
        """Keeps the losses of an evaluation for the policy's next decision.

        Args:
            losses: Losses by evaluation set, among them those of streams.
        """
        self._set_losses |= {name: losses[name] for name in self._sets if math.isfinite(losses.get(name, math.nan))}
        values = np.array([losses.get(name, np.nan) for name in self._names], dtype=np.float64)
        values[~np.isfinite(values)] = np.nan
        if self._evaluation_losses is not None:
            values = np.where(np.isnan(values), self._evaluation_losses, values)
        self._evaluation_losses = values

    def state_dict(self) -> dict[str, Any]:
        """Gives the state as plain data."""
        losses = self._evaluation_losses
        return {
            "policy": {"name": self.policy.name, "state": self.policy.state_dict()},
            "decision": self.decision.state_dict(),
            "manual": None if self.manual is None else self.manual.tolist(),
            "evaluation_losses": None if losses is None else to_plain(losses),
            "set_losses": dict(self._set_losses),
        }

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
                raise InvalidValueError(
                    f"the saved state of policy {self.policy.name} cannot be taken up ({error})", option="mixing"
                ) from error
            self.start()  # of the same name, but it remembers other things: it starts anew
            self.num_observed = step
            return
        manual, losses = (
            None if saved is None else finite_or_missing(saved, "the values of the streams", len(self._names))
            for saved in (state["manual"], state["evaluation_losses"])
        )
        if manual is not None:
            contract.check_weights(manual, self._names, "the weights set by hand")
        self.manual, self._evaluation_losses = manual, losses
        sets = state.get("set_losses", {})  # earlier checkpoints have none
        values = finite_or_missing([*sets.values()], "the values of evaluation sets", len(sets))
        self._set_losses = dict(zip(sets, values.tolist(), strict=True))
        decision, own = contract.Decision.from_state(state["decision"]), self.decision.weights
        if self.policy.is_static and not np.array_equal(decision.weights, own):
            if allow_inexact:
                return
            was, now = decision.weights.tolist(), own.tolist()
            raise wrong_value("weights", f"were {was} and are {now} now; keep those, and change them by set_weights")
        self._decide(decision, step)

    def _decide(self, decision: contract.Decision, step: int) -> None:
        where = f"{type(self.policy).__name__} at step {step}"
        if not isinstance(decision, contract.Decision):
            raise wrong_type("mixing", f"{where} must decide by a Decision(weights), got {decision!r}.")
        weights, loss_weights, names = decision.weights, decision.loss_weights, self._names
        weights = contract.weights_array(weights, names, where)
        loss_weights = None if loss_weights is None else contract.weights_array(loss_weights, names, where)
        if decision.additional is not None:
            additional = np.asarray(contract.without_graph(decision.additional))
            decision = replace(decision, additional=additional)
            self._check_additional(additional, weights, where)
        self.decision = replace(decision, weights=weights, loss_weights=loss_weights)
        self.num_observed = step
        self._scheduled = weights / weights.sum()

    def _check_additional(self, additional: FloatArray, weights: FloatArray, where: str) -> None:
        is_valid = np.shape(additional) == weights.shape and (np.isfinite(additional) & (additional >= 0)).all()
        require(bool(is_valid), "additional", f"{len(weights)} finite numbers of 0 or more", additional, f"By {where}.")
        is_on_top = not (additional * weights).any()
        require(is_on_top, "additional", f"0 for streams with a weight ({weights})", additional, f"By {where}.")


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
