"""Policies by name, with the cost of their observations."""

from collections.abc import Mapping, Sequence

import numpy as np

from mixer.measurements import at_interval
from mixer.policies.contract import Policy
from mixer.policies.fixed import Fixed
from mixer.policies.function import Function, WeightFunction
from mixer.policies.marginal_value import MarginalValue
from mixer.policies.wrappers.safeguard import Safeguard
from mixer.schedules.base import Schedule
from mixer.utils.errors import wrong_type
from mixer.utils.registry import built_in_rules, choose, known_rules, refuse_class

AUTO = "auto"


def cost_of(rule: type[Policy] | type[Schedule]) -> str:
    """Describes the cost of a policy or schedule with its default arguments."""
    needs = at_interval(rule.needs, rule)
    costs = [*(need.cost() for need in needs), getattr(rule, "own_cost", "")]
    return ", ".join(cost for cost in costs if cost) or "nothing"


def built_in_policies() -> dict[str, type[Policy]]:
    """Returns the policies and wrappers of this package, by name."""
    return built_in_rules("mixer.policies", Policy)


def policy_classes() -> dict[str, type[Policy]]:
    """Returns all policies and wrappers by name, including those of other packages; see `known_rules`."""
    return known_rules("mixer.policies", Policy, "policies")


def _auto() -> Policy:
    return Safeguard(MarginalValue())


def as_policy(mixing: Policy | str | Mapping[str, float] | Sequence[float] | WeightFunction) -> Policy:
    """Converts the option `mixing` to a policy.

    Args:
        mixing: A policy, the name of one that needs no arguments, `"auto"` (what we recommend for a declared objective:
            `Safeguard(MarginalValue())`), weights by name or in order, or `f(step, weights) -> weights`.

    Raises:
        ValueError: If there is no policy of that name, or it needs arguments.
        TypeError: If it is none of these.
    """
    if isinstance(mixing, Policy):
        return mixing
    if isinstance(mixing, str):
        return choose(mixing, {AUTO: _auto, **policy_classes()}, "mixing", "policy")  # type: ignore[arg-type]
    if isinstance(mixing, Mapping | np.ndarray) or (isinstance(mixing, Sequence) and not isinstance(mixing, bytes)):
        return Fixed(mixing)  # type: ignore[arg-type]  # an array is a sequence of weights here
    refuse_class(mixing, Policy, "mixing")
    if callable(mixing):
        return Function(mixing)
    raise wrong_type(
        "mixing", f"must be a policy or its name, weights, or f(step, weights), got {type(mixing).__name__}."
    )
