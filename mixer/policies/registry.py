"""Policies by name, with the cost of their observations."""

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint
from typing import Any

import numpy as np

from mixer.measurements import at_interval
from mixer.policies.contract import Policy
from mixer.policies.fixed import Fixed
from mixer.policies.function import Function
from mixer.policies.marginal_value import MarginalValue
from mixer.policies.safeguard import Safeguard
from mixer.schedules.base import Schedule
from mixer.utils.entry_points import load_plug_ins
from mixer.utils.registry import choose, refuse_class

AUTO = "auto"
PLUG_IN_GROUP = "adaptive_mixer.policies"
# In the order of the listing.
_NAMES = (
    "Uniform Proportional Temperature UniMax Fixed Scheduled LossChange ODM ADO GroupDRO DoReMi TargetLoss PiKE "
    "BalancedPiKE CoBa DWA FAMO SkillIt Aioli DoGE GRAPE RegularizedBalance GradNorm DGA "
    "OPMix MarginalValue Function Floor Smoothed WarmUp Hold TrustRegion Safeguard OverfitGuard"
)


def cost_of(rule: type[Policy] | type[Schedule]) -> str:
    """Describes the cost of a policy or schedule with its default arguments."""
    needs = at_interval(rule.needs, rule)
    costs = [*(need.cost() for need in needs), getattr(rule, "own_cost", "")]
    return ", ".join(cost for cost in costs if cost) or "nothing"


def built_in_policies() -> dict[str, type[Policy]]:
    """Returns the policies and wrappers of this package, by name."""
    package = import_module("mixer.policies")
    return {name: getattr(package, name) for name in _NAMES.split()}


def policy_classes() -> dict[str, type[Policy]]:
    """Returns all policies and wrappers by name, including those of other packages.

    A package adds its own by entry points of the group `adaptive_mixer.policies`, one per class: `Name =
    "package.module:Name"`. Plug-ins that cannot be loaded are left out with a warning.
    """
    return {**built_in_policies(), **_plugged_in()}


@cache
def _plugged_in() -> dict[str, type[Policy]]:
    """Loads the plug-ins once: importing them takes time, and one warning is enough."""
    return load_plug_ins(PLUG_IN_GROUP, "policy", _load, built_in_policies(), stacklevel=3)


def _load(entry: EntryPoint, taken: Collection[str]) -> tuple[str, type[Policy]]:
    policy = entry.load()
    if not (inspect.isclass(policy) and issubclass(policy, Policy)):
        raise TypeError(f"{entry.value} is no class of policies; derive it from mixer.Policy")
    if policy.__name__ in taken:
        raise ValueError(f"there already is a policy {policy.__name__}; give the class another name")
    return policy.__name__, policy


def as_policy(mixing: Policy | str | Mapping[str, float] | Sequence[float] | Callable[..., Any]) -> Policy:
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
        return Safeguard(MarginalValue()) if mixing == AUTO else choose(mixing, policy_classes(), "mixing", "policy")
    if isinstance(mixing, Mapping | np.ndarray) or (isinstance(mixing, Sequence) and not isinstance(mixing, bytes)):
        return Fixed(mixing)  # type: ignore[arg-type]  # an array is a sequence of weights here
    refuse_class(mixing, Policy, "mixing")
    if callable(mixing):
        function: Callable[..., Any] = mixing
        return Function(function)
    raise TypeError(
        "mixing must be a policy, its name, weights by name or in order, or a function f(step, weights), "
        f"got {type(mixing).__name__}."
    )
