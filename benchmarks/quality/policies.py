"""The competitors of `benchmarks.quality`: plain mixtures, a grid of fixed ones, and every adaptive policy.

No policy is tuned: each has its defaults, but for `UniMax`, which two passes are allowed (one is less than a budget),
and for what goes by the length of the run, which one rule sets for all by the parameter's name. With `N` steps and
`M` observations (24 evaluations, for a policy that follows these; else `N`):

- an interval (`interval_steps`) is `N/24` steps;
- so is the time to the next fit (`refit_steps`) and that of losses averaged (`window_steps`);
- the time left out of fits (`num_ignored_steps`) is `N/40`;
- a warm-up is `N/20` steps, or `M/20` observations, 2 or more, where it is of observations or evaluations;
- another window or history is `M/5`, 3 or more;
- probes (`probe_steps`) take `N/120` steps each, two at least, and training between them (`training_steps`) `N/12`;
- `fast_decay` and `slow_decay` have horizons of `M/24` and `5M/24`.

At 240 steps these are the decays of `LossChange`. Evaluations come at the same interval.
"""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mixer.gradients.conflict import NAMES as CONFLICTS
from mixer.policies import Policy
from mixer.policies.registry import built_in_policies

UNIFORM, PROPORTIONAL, TEMPERATURE = "Uniform", "Proportional", "Temperature"
# The proxy of DoReMi, and fixed mixtures that come of other runs: of that, and of the grid.
PROXY, PROXY_FIXED, FIT = "DoReMi", "DoReMi, then fixed", "fit of the grid"
# In settings, replaced when a policy is made: validation losses by stream, and samples of the run.
REFERENCE_LOSSES, NUM_SAMPLES = "the reference's validation losses", "the run's samples"
NUM_DECISIONS = 24
NO_COMPETITORS = {
    "Fixed": "is the grid",
    "Scheduled": "is given by its user",
    "Function": "is given by its user",
    "Floor": "is a wrapper",
    "Smoothed": "is a wrapper",
    "WarmUp": "is a wrapper",
    "Hold": "is a wrapper",
    "TrustRegion": "is a wrapper",
}


@dataclass(frozen=True)
class Entry:
    """A competitor.

    Args:
        class_name: Its class, among the built-in policies.
        settings: Arguments that differ from what the rule gives.
        options: Options of the trainer.
    """

    class_name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


ENTRIES: dict[str, Entry] = {
    UNIFORM: Entry("Uniform"),
    PROPORTIONAL: Entry("Proportional"),
    TEMPERATURE: Entry("Temperature"),
    "UniMax": Entry("UniMax", {"budget": NUM_SAMPLES, "max_epochs": 2}),  # classification's budget is over one pass
    "LossChange": Entry("LossChange"),
    "LossChange, evaluation": Entry("LossChange", {"loss": "evaluation"}),
    "ODM": Entry("ODM"),
    "ADO": Entry("ADO"),
    "GroupDRO": Entry("GroupDRO"),
    "GroupDRO, sampling": Entry("GroupDRO", {"acts_on": "sampling"}),
    PROXY: Entry("DoReMi"),
    "TargetLoss": Entry("TargetLoss", {"target_losses": REFERENCE_LOSSES}),
    "CoBa": Entry("CoBa"),
    "DWA": Entry("DWA"),
    "FAMO": Entry("FAMO"),
    "SkillIt": Entry("SkillIt", {"window": 3}),
    "Aioli": Entry("Aioli"),
    "PiKE": Entry("PiKE"),
    "PiKE, conceptual": Entry("PiKE", {"mode": "conceptual"}),
    "BalancedPiKE": Entry("BalancedPiKE"),
    "DoGE": Entry("DoGE"),
    "GRAPE": Entry("GRAPE"),
    "RegularizedBalance": Entry("RegularizedBalance"),
    "GradNorm": Entry("GradNorm"),
    "ObjectiveDescent": Entry("ObjectiveDescent"),
    "ObjectiveDescent, worst": Entry("ObjectiveDescent", {"objective": "worst"}),
    "ObjectiveDescent, worst, evaluation": Entry("ObjectiveDescent", {"objective": "worst", "loss": "evaluation"}),
    **{f"Uniform, {name}": Entry("Uniform", options={"conflict": name}) for name in CONFLICTS},
}
# PiKE in its forms, for the mixture `demo`, which has no other competitors.
PIKES: dict[str, Entry] = {
    UNIFORM: ENTRIES[UNIFORM],
    PROPORTIONAL: ENTRIES[PROPORTIONAL],
    "PiKE": ENTRIES["PiKE"],
    "PiKE, no noise term": Entry("PiKE", {"noise_rate": 0.0}),
    "PiKE, conceptual": ENTRIES["PiKE, conceptual"],
    **{f"BalancedPiKE, tau {tau:g}": Entry("BalancedPiKE", {"tau": tau}) for tau in (1.0, 3.0, 5.0)},
}


def competitors() -> dict[str, Entry]:
    """Lists the competitors that there are: those of the table, and every other built-in policy by the rule alone.

    Returns:
        Entries by name; those of classes that are not there are left out.
    """
    classes = built_in_policies()
    found = {name: entry for name, entry in ENTRIES.items() if entry.class_name in classes}
    known = {entry.class_name for entry in found.values()} | set(NO_COMPETITORS)
    return found | {name: Entry(name) for name in classes if name not in known}


def settings_of(entry: Entry, num_steps: int) -> dict[str, Any]:
    """Gives all arguments of a competitor that are not defaults.

    Args:
        entry: The competitor.
        num_steps: Steps of the run.

    Returns:
        Arguments by name.

    Raises:
        TypeError: If the class takes other arguments than the entry gives.
    """
    policy_class = built_in_policies()[entry.class_name]
    follows_evaluations = "evaluation_loss" in _needs(policy_class, entry.settings)
    num_observations = NUM_DECISIONS if follows_evaluations else num_steps
    settings = {}
    for name in parameters_of(policy_class):
        value = _by_rule(name, num_steps, num_observations)
        if value is not None:
            settings[name] = value
    return settings | dict(entry.settings)


def interval_of(num_steps: int) -> int:
    """Gives the steps from one decision, measurement or evaluation to the next.

    Args:
        num_steps: Steps of the run.

    Returns:
        The interval, 1 or more.
    """
    return max(1, round(num_steps / NUM_DECISIONS))


def make(
    class_name: str,
    settings: Mapping[str, Any],
    num_samples: int,
    reference_losses: Mapping[str, float] | None = None,
) -> Policy:
    """Makes a policy.

    Args:
        class_name: Its class, among the built-in policies.
        settings: Its arguments.
        num_samples: Samples of the run, for settings that name them.
        reference_losses: Validation losses of the reference, by stream, for settings that name them.

    Returns:
        The policy.
    """
    known: dict[str, Any] = {REFERENCE_LOSSES: reference_losses, NUM_SAMPLES: num_samples}
    given = {name: known.get(value, value) if isinstance(value, str) else value for name, value in settings.items()}
    return built_in_policies()[class_name](**given)


def _by_rule(name: str, num_steps: int, num_observations: int) -> int | float | None:
    if "interval" in name or name in ("refit_steps", "window_steps"):
        return interval_of(num_steps)
    if "warm" in name:
        if name.endswith(("observations", "evaluations")):
            return max(2, round(num_observations / 20))
        return max(1, round(num_steps / 20))
    if "window" in name or "history" in name:
        return max(3, round(num_observations / 5))
    parts = {"num_ignored_steps": 40, "probe_steps": 120, "training_steps": 12}
    if name in parts:
        return max(2 if name == "probe_steps" else 1, round(num_steps / parts[name]))  # a slope needs two losses
    if name in ("fast_decay", "slow_decay"):
        return max(0.0, 1.0 - (24 if name == "fast_decay" else 4.8) / num_observations)
    return None


def parameters_of(policy_class: type[Policy]) -> dict[str, inspect.Parameter]:
    """Gives the parameters of a class that have defaults, and of those above it where it passes arguments on.

    Args:
        policy_class: The class.

    Returns:
        Parameters by name.
    """
    found: dict[str, inspect.Parameter] = {}
    for owner in (owner for owner in policy_class.__mro__ if issubclass(owner, Policy) and owner is not Policy):
        parameters = inspect.signature(owner).parameters
        for name, parameter in parameters.items():
            if parameter.default is not inspect.Parameter.empty:
                found.setdefault(name, parameter)
        if all(parameter.kind is not inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
            break
    return found


def _needs(policy_class: type[Policy], settings: Mapping[str, Any]) -> frozenset[str]:
    """What a policy observes; a setting may change it, but for one that is only known in a run."""
    if {REFERENCE_LOSSES, NUM_SAMPLES} & {value for value in settings.values() if isinstance(value, str)}:
        return policy_class.needs
    return policy_class(**settings).needs
