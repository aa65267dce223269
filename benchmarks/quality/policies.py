"""The competitors of `benchmarks.quality`: plain mixtures and every policy of the project.

No policy is tuned: each has its defaults, but for `UniMax`, which two passes are allowed (one is less than a budget),
for targets, which are those of the objective where they are streams, and for what goes by the length of the run, which
one rule sets for all by the parameter's name. With `N` steps and `M` observations (24 evaluations, for a policy that
follows these; else `N`):

- an interval (`interval_steps`) is `N/24` steps, unless it is 0 by default, which chooses it;
- so is the time to the next fit (`refit_steps`) and that of losses averaged (`window_steps`);
- the time left out of fits (`num_ignored_steps`) is `N/40`;
- a warm-up is `N/20` steps, or `M/20` observations, 2 or more, where it is of observations or evaluations;
- another window or history is `M/5`, 3 or more;
- `fast_decay` and `slow_decay` have horizons of `M/24` and `5M/24`.

Evaluations come at the same interval.

*most similar source* is what a practitioner tries first: constant shares, the whole batch for the stream whose text is
most like the target's validation rows, by the cosine of the logarithms of counts of pairs of neighbouring tokens, or of
the mean outputs of an encoder's frozen layers.
Several targets have equal parts of the batch. Where that stream is not there, or used up, all others take its place.

Models with scenarios of their own have few competitors, some of them only there: *target only* is the same, but for
targets that are streams, which are their own source; *half for the target*, of SmolLM2, has half of the batch so, and
all streams equal parts of the other half; *concatenation by TRL* is `trl.SFTTrainer` on all rows
(`benchmarks.quality.concatenation`). `ReplayBound` takes part where a stream has a bound.
"""

import inspect
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from torch.utils.data import Dataset

from benchmarks.quality.data import Splits
from benchmarks.quality.scenarios import WITH_OWN, Scenario, Size
from mixer.measurements import EvaluationLoss, Needs, asked
from mixer.policies import Policy
from mixer.policies.registry import as_policy, built_in_policies
from replay import ReplayBound

UNIFORM, AUTO, MOST_SIMILAR = "Uniform", "auto", "most similar source"
TARGET_ONLY, HALF_TARGET, CONCATENATION = "target only", "half for the target", "concatenation by TRL"
SFT, REPLAY_BOUND = "SFTTrainer", "ReplayBound"  # the first is no policy: the class of concatenation
# In settings, replaced when a policy is made: validation losses by stream, samples of the run, and shares by text.
REFERENCE_LOSSES, NUM_SAMPLES, BY_SIMILARITY = "the reference's validation losses", "the run's samples", "by similarity"
BY_TARGET, HALF_BY_TARGET = "by target", "half by target"
_KNOWN_IN_A_RUN = {REFERENCE_LOSSES, NUM_SAMPLES, BY_SIMILARITY, BY_TARGET, HALF_BY_TARGET}
_REST = 1e-9  # weight of a stream that gets samples only where no other is there
# The grid stands for `Fixed`, users write `Scheduled` and `Function`, the others are wrappers.
_WRAPPERS = {"Floor", "Smoothed", "WarmUp", "Hold", "TrustRegion", "Safeguard", "OverfitGuard"}
_NO_COMPETITORS = {"Fixed", "Scheduled", "Function", REPLAY_BOUND} | _WRAPPERS
_WITH_OWN_ROWS = {"DoGE", "GRAPE"}  # targets may be others than streams, as published
_OF_LLAMA = (UNIFORM, MOST_SIMILAR, "Proportional", AUTO, "MarginalValue", "DGA", "DoGE", "GRAPE")


class Entry(NamedTuple):
    """A competitor: a built-in policy or `"auto"`, with arguments that differ from what the rule gives."""

    class_name: str
    settings: Mapping[str, Any] = {}


# Beside every policy by the rule alone.
_ENTRIES: dict[str, Entry] = {
    UNIFORM: Entry("Uniform"),
    MOST_SIMILAR: Entry("Fixed", {"weights": BY_SIMILARITY}),
    "UniMax": Entry("UniMax", {"budget": NUM_SAMPLES, "max_epochs": 2}),
    "GroupDRO, sampling": Entry("GroupDRO", {"acts_on": "sampling"}),
    "TargetLoss": Entry("TargetLoss", {"target_losses": REFERENCE_LOSSES}),
    "SkillIt": Entry("SkillIt", {"window": 3}),
    "DoGE, scale-free": Entry("DoGE", {"scale_free": True}),
}

# Beside these, of a model with scenarios of its own.
_OF_OWN = (UNIFORM, "Proportional", "Temperature", AUTO)
_ONLY_OF_OWN: dict[str, Entry] = {TARGET_ONLY: Entry("Fixed", {"weights": BY_TARGET})}
_ONLY_OF_CHATS: dict[str, Entry] = {
    CONCATENATION: Entry(SFT),
    REPLAY_BOUND: Entry(REPLAY_BOUND),
    HALF_TARGET: Entry("Fixed", {"weights": HALF_BY_TARGET}),
}


@cache
def classes() -> dict[str, type[Policy]]:
    """Lists the built-in policies by name, with that of `mixing="auto"` if there is one.

    Returns:
        The classes.
    """
    found: dict[str, type[Policy]] = {**built_in_policies(), REPLAY_BOUND: ReplayBound}
    with suppress(ValueError):
        found[AUTO] = type(as_policy(AUTO))
    return found


def competitors(size: Size = "small") -> dict[str, Entry]:
    """Lists the competitors that there are.

    Args:
        size: The model, of which a large one has few.

    Returns:
        Entries by name.
    """
    found = {name: Entry(name) for name in classes() if name not in _NO_COMPETITORS} | _ENTRIES
    if size not in WITH_OWN:
        return {name: entry for name, entry in found.items() if size == "small" or name in _OF_LLAMA}
    of_chats = _ONLY_OF_CHATS if size == "smollm2" else {}
    return of_chats | {name: found[name] for name in _OF_OWN if name in found} | _ONLY_OF_OWN


def settings_of(entry: Entry, scenario: Scenario) -> dict[str, Any]:
    """Gives all arguments of a competitor that are not defaults.

    Args:
        entry: The competitor.
        scenario: The scenario, whose length and targets matter.

    Returns:
        Arguments by name.
    """
    if entry.class_name in (AUTO, SFT):
        return {}
    if entry.class_name == REPLAY_BOUND:
        bounds = bounded_streams(scenario)
        return {"max_rise": round(min(bounds.values(), default=1.0) - 1.0, 6), "old": [*bounds]}
    policy_class = classes()[entry.class_name]
    follows_evaluations = bool(asked(_needs(policy_class, entry.settings), EvaluationLoss))
    num_observations = Scenario.num_decisions if follows_evaluations else scenario.num_steps
    parameters = _parameters_of(policy_class)
    by_rule = {
        name: _by_rule(name, scenario, num_observations)
        for name, parameter in parameters.items()
        if not ("interval" in name and parameter.default == 0)
    }
    found = {name: value for name, value in by_rule.items() if value is not None}
    return found | _by_objective(entry.class_name, parameters, scenario) | dict(entry.settings)


def bounded_streams(scenario: Scenario) -> dict[str, float]:
    """Gives the bounds on streams, by name."""
    return {name: bound for name, bound in scenario.objective.bounds.items() if name in scenario.streams}


def _by_objective(class_name: str, parameters: Mapping[str, inspect.Parameter], scenario: Scenario) -> dict[str, Any]:
    """Targets, where they differ from an average of all streams and a policy can be told of them."""
    objective = scenario.objective
    importance = scenario.importance
    found: dict[str, Any] = {}
    differs = not any(importance) or len(set(importance)) > 1
    if class_name in _WITH_OWN_ROWS and differs:
        found["targets"] = "objective"
    elif "targets" in parameters and any(importance) and differs:
        found["targets"] = objective.importance
    return found


def known_shares(setting: str, scenario: Scenario, parts: Mapping[str, Splits]) -> list[float]:
    """Finds the shares that a setting stands for.

    Args:
        setting: One of `BY_SIMILARITY`, `BY_TARGET` and `HALF_BY_TARGET`; see the module.
        scenario: The scenario.
        parts: What `Scenario.read` gave.

    Returns:
        A weight for each stream.
    """
    shares = np.asarray(similar_shares(scenario, parts, setting != BY_SIMILARITY))
    if setting == HALF_BY_TARGET:
        shares = shares / shares.sum() + 1.0 / len(shares)
    return [float(share) for share in shares]


def similar_shares(scenario: Scenario, parts: Mapping[str, Splits], takes_targets: bool = False) -> list[float]:
    """Finds the stream that is most like each target, by the text that it is trained on; see the module.

    Args:
        scenario: The scenario.
        parts: What `Scenario.read` gave.
        takes_targets: Whether a target that is a stream is its own source.

    Returns:
        A weight for each stream.
    """
    weights = pd.Series(_REST, scenario.streams)
    for target in scenario.objective.importance:
        if takes_targets and target in weights.index:
            weights[target] += 1.0
            continue
        wanted = _pairs(parts[target]["validation"])
        cosines = {}
        for name in scenario.streams:
            own = _pairs(parts[name]["train"])
            cosines[name] = (own * wanted).sum() / np.sqrt(np.square(own).sum())
        weights[pd.Series(cosines).idxmax()] += 1.0
    return [float(weight) for weight in weights]


def _pairs(dataset: Dataset[Any]) -> "pd.Series[float]":
    """Gives log(1 + count) of pairs of neighbouring tokens, bytes or words; 0 is padding."""
    assert hasattr(dataset, "read_columns")
    columns = dataset.read_columns(np.arange(len(dataset)))
    if "hidden" in columns:  # of an encoder, whose mean feature stands for the pairs
        features = columns["hidden"].float() * columns["attention_mask"][..., None]
        return pd.Series(features.flatten(0, -2).mean(dim=0).numpy())
    ids = columns["input_ids"].numpy()
    return np.log1p(pd.Series((ids[:, :-1] * 2**20 + ids[:, 1:])[ids[:, 1:] > 0]).value_counts())


def make(class_name: str, settings: Mapping[str, Any], known: Mapping[str, Any]) -> Policy:
    """Makes a policy.

    Args:
        class_name: Its class, among the built-in policies, or `"auto"`.
        settings: Its arguments.
        known: What stands in the place of settings that are only known in a run.

    Returns:
        The policy.
    """
    if class_name == AUTO:
        return as_policy(AUTO)
    given = {name: known.get(value, value) if isinstance(value, str) else value for name, value in settings.items()}
    return classes()[class_name](**given)


def _by_rule(name: str, scenario: Scenario, num_observations: int) -> int | float | None:
    num_steps = scenario.num_steps
    if "interval" in name or name in ("refit_steps", "window_steps"):
        return scenario.interval_steps
    if "warm" in name:
        if name.endswith(("observations", "evaluations")):
            return max(2, round(num_observations / 20))
        return max(1, round(num_steps / 20))
    if "window" in name or "history" in name:
        return max(3, round(num_observations / 5))
    if name == "num_ignored_steps":
        return max(1, round(num_steps / 40))
    if name in ("fast_decay", "slow_decay"):
        return max(0.0, 1.0 - (24 if name == "fast_decay" else 4.8) / num_observations)
    return None


def _parameters_of(policy_class: type[Policy]) -> dict[str, inspect.Parameter]:
    """Parameters of a class that have defaults, and of those above it where it passes arguments on."""
    found: dict[str, inspect.Parameter] = {}
    for owner in (owner for owner in policy_class.__mro__ if issubclass(owner, Policy) and owner is not Policy):
        parameters = inspect.signature(owner).parameters
        for name, parameter in parameters.items():
            if parameter.default is not inspect.Parameter.empty:
                found.setdefault(name, parameter)
        if all(parameter.kind is not inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
            break
    return found


def _needs(policy_class: type[Policy], settings: Mapping[str, Any]) -> Needs:
    """What a policy observes; a setting may change it, but for one that is only known in a run."""
    if _KNOWN_IN_A_RUN & {value for value in settings.values() if isinstance(value, str)}:
        return policy_class.needs
    return policy_class(**settings).needs
