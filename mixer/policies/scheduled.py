"""Shares that follow a curriculum over the run, and phases with a policy each."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np

from mixer.policies.contract import (
    Decision,
    Mixture,
    Observation,
    Policy,
    PolicyWithOptions,
    Weights,
    Wrapped,
    weights_array,
)
from mixer.policies.fixed import Fixed
from mixer.policies.registry import as_policy
from mixer.utils.arrays import BoolArray, FloatArray
from mixer.utils.errors import wrong_value
from mixer.utils.validation import whole_number


@dataclass(eq=False, repr=False)
class Scheduled(PolicyWithOptions):
    """Interpolates weights between points of the run, or holds phases: weights or a policy each, until the next.

    A policy of a phase starts when the phase does, from your weights, and sees the steps of its phase.

    Args:
        points: Pairs of a progress in [0, 1], ascending, and the weights there (by name or in order); or phases, the
            same as a mapping, `{"0": "auto", "decay": {"best": 1}}`. `"decay"` is the moment at which the learning rate
            begins to fall. The first weights apply before the first point, the last ones after the last. A phase may
            have a policy or the name of one.
        interpolation: `"linear"` moves from point to point, `"step"` holds each point's weights until the next; `None`
            is the first for pairs of weights, the second for phases.
        unit: Whether the weights are shares of samples or of tokens.

    Raises:
        ValueError: If there is no point, a progress is outside [0, 1] or they do not ascend, or a policy has another
            unit; at the start of the run if weights do not fit the streams, or the learning rate never begins to fall.

    Example:
        >>> policy = Scheduled([(0.0, {"web": 1, "code": 0}), (1.0, {"web": 1, "code": 1})])
        >>> phases = Scheduled({"0": {"web": 3, "code": 1}, "decay": {"web": 1, "code": 1}})
    """

    remembered: ClassVar[tuple[str, ...]] = ("_phase", "_active")

    points: Sequence[tuple[float | str, Weights]] | Mapping[str, Policy | str | Weights]
    interpolation: Literal["linear", "step", None] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        pairs = _pairs(self.points)
        self._moments, self._values = [at for at, _ in pairs], [value for _, value in pairs]
        has_policies = not all(_are_weights(value) for value in self._values)
        are_phases = isinstance(self.points, Mapping) or has_policies
        self._is_linear = (self.interpolation or ("step" if are_phases else "linear")) == "linear"
        if self._is_linear and has_policies:
            raise wrong_value(
                "interpolation", "='linear' needs weights at all points, and points has a policy: use 'step'."
            )
        self._policies = [] if self._is_linear else [self._policy(value) for value in self._values]
        self.needs = tuple(dict.fromkeys(need for policy in self._policies for need in policy.needs))
        self.min_samples = max((policy.min_samples for policy in self._policies), default=0)
        for name in ("compares_losses", "holds_bounds"):
            setattr(self, name, any(getattr(policy, name) for policy in self._policies))

    def _policy(self, value: Any) -> Policy:
        policy = Fixed(value, unit=self.unit) if _are_weights(value) else as_policy(value)
        if policy.unit != self.unit:
            raise wrong_value(
                "unit", f"must be that of all phases: {self.unit!r} here, {policy.unit!r} of {policy.name}."
            )
        return policy

    def start(self, mixture: Mixture) -> Decision:
        """Reads the points for these streams and returns the decision at progress 0; see `Policy.start`."""
        self._progresses = np.array([mixture.decay_begins() if at == "decay" else float(at) for at in self._moments])
        _check_ascending(self._progresses.tolist())
        named = [(f"Scheduled at {at}", value) for at, value in zip(self._moments, self._values, strict=True)]
        rows = [weights_array(value, mixture.names, where) for where, value in named if _are_weights(value)]
        self._table: FloatArray = np.array([row / row.sum() for row in rows])
        self._mixture, self._phase, self._active = mixture, 0, None if self._is_linear else self._policies[0]
        return Decision(self._interpolated(0.0)) if self._active is None else self._enter(0, mixture.active)

    def update(self, observation: Observation) -> Decision:
        """Returns the decision at the present progress; see `Policy.update`."""
        if self._active is None:
            return Decision(self._interpolated(observation.progress))
        phase = max(int(np.searchsorted(self._progresses, observation.progress, side="right")) - 1, 0)
        if phase != self._phase:
            return self._enter(phase, observation.active)
        if not self._active.is_static:
            self._decision = self._active.update(observation)
        return self._decision

    def hold(self) -> None:
        """Lets each policy that measures keep its first decision; see `Policy.hold`."""
        self._policies = [copy.copy(policy) for policy in self._policies]
        for policy in self._policies:
            if policy.needs:
                policy.hold()
        self._active = self._policies[self._phase]

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Loads a saved state into the policy of its phase; see `Policy`."""
        phase = whole_number(state.get("phase"), "the phase in the state of Scheduled", 0, len(self._moments) - 1)
        if self._active is not None:
            self._enter(phase, self._mixture.active)
        super().load_state_dict(state)

    def wrapped(self) -> Wrapped | None:
        """Gives the policy of the present phase; see `Policy.wrapped`."""
        return None if self._active is None else Wrapped(self._active, self._decision)

    def _enter(self, phase: int, active: BoolArray | None) -> Decision:
        self._phase, self._active = phase, self._policies[phase]
        self._decision = self._active.start(replace(self._mixture, active=active))
        return self._decision

    def _interpolated(self, progress: float) -> FloatArray:
        return np.array([np.interp(progress, self._progresses, column) for column in self._table.T])


def _are_weights(value: Any) -> bool:
    return not isinstance(value, Policy | str) and not callable(value)


def _pairs(points: Any) -> list[tuple[float | str, Any]]:
    try:
        given = points.items() if isinstance(points, Mapping) else points
        pairs = [("decay" if at == "decay" else float(at), value) for at, value in given]
    except (TypeError, ValueError):
        raise wrong_value(
            "points", f"must be [(0.0, first), (1.0, last)] or {{'0': first, 'decay': last}}, got {points!r}."
        ) from None
    if not pairs:
        raise wrong_value("points", "must have a progress and weights, at least once, got none.")
    _check_ascending([at for at, _ in pairs if not isinstance(at, str)])
    return pairs


def _check_ascending(progresses: Sequence[float]) -> None:
    if progresses != sorted(set(progresses)) or not all(0.0 <= at <= 1.0 for at in progresses):
        raise wrong_value("points", f"must have ascending progresses in [0, 1], got {progresses}.")
