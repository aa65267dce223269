"""Objectives: the losses that a run is to lower."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from mixer.policies.shared.shares import shares
from mixer.utils.arrays import FloatArray
from mixer.utils.data_set import DataSet
from mixer.utils.errors import InvalidValueError, require, wrong_type, wrong_value
from mixer.utils.recorded_arguments import names_arguments
from mixer.utils.text import did_you_mean, first_of, listed, safe_names

_LEAST_BOUND = 0.5  # of the first loss: less is no bound but a mistake, such as 0.05 for 5 %
Kind = Literal["average", "worst"]


@names_arguments
@dataclass(frozen=True)
class Objective:
    """What a run is to lower: the losses of targets.

    Targets are named evaluation sets, which need not be streams. A policy follows development rows, and test rows
    say what came of it: a loss that a policy has followed is lower than that of rows it has never seen.

    Args:
        targets: Names of evaluation sets, or their importance by name; `None` for all sets alike.
        kind: `"average"` or `"worst"` of the targets' losses.
        bounds: Largest loss of an evaluation set, as a multiple of its loss when the run begins: `{"old": 1.05}` lets
            it rise by 5 %.
        metric: What is reported as the objective: `"loss"`, or a metric that `compute_metrics` returns. Policies follow
            losses, which have gradients.
        greater_is_better: Whether a greater metric is better; a loss is better if it is lower.
        development_share: Share of each target's evaluation set that is set aside as development rows; evaluations
            use the rest, the test rows. `None` is a quarter if the policy reads targets, else nothing. A number is set
            aside whatever the policy: runs of several policies are then evaluated on the same rows.
        development_sets: Data sets of development rows, by name of their target, in place of a part of its evaluation
            set.

    Raises:
        ValueError: If a value is outside its range.
        TypeError: If `development_sets` is no mapping.

    Example:
        >>> Objective(["math", "code"]).value({"math": 2.0, "code": 3.0, "chat": 9.0})
        2.5
    """

    targets: Sequence[str] | Mapping[str, float] | None = None
    kind: Kind = "average"
    bounds: Mapping[str, float] = field(default_factory=dict)
    metric: str = "loss"
    greater_is_better: bool = False
    development_share: float | None = None
    development_sets: Mapping[str, DataSet] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        require(self.kind in ("average", "worst"), "objective.kind", "'average' or 'worst'", self.kind)
        for name in ("targets", "bounds", "development_sets"):
            object.__setattr__(self, name, safe_names(getattr(self, name), f"objective: {name}"))
        _check_targets(self.targets)
        share = self.development_share
        if share is not None and not (isinstance(share, int | float) and 0.0 <= share < 1.0):
            raise wrong_value(
                "objective.development_share", f"must be 0 or more and below 1, got {share!r}; 0.25 is usual."
            )
        _check_development_sets(self.development_sets)
        require(isinstance(self.metric, str), "objective.metric", "a name", self.metric)
        if self.metric == "loss" and self.greater_is_better:
            raise wrong_value(
                "objective.greater_is_better", "=True, but less is better of the metric, a loss: set another metric."
            )
        _check_bounds(self.bounds)

    @property
    def importance(self) -> dict[str, float]:
        """Importance of each target by name, with a sum of 1; empty if the targets are all sets."""
        targets = self.targets if isinstance(self.targets, Mapping) else dict.fromkeys(self.targets or (), 1.0)
        total = sum(targets.values())
        return {name: value / total for name, value in targets.items()}

    @property
    def names(self) -> tuple[str, ...]:
        """The targets, then the sets that only have a bound."""
        importance = self.importance
        return (*importance, *(name for name in self.bounds if name not in importance))

    def of_sets(self, sets: Sequence[str]) -> "Objective":
        """Returns the objective with its targets by name.

        Args:
            sets: Names of the evaluation sets.

        Raises:
            ValueError: If a target or a bound names no evaluation set.
        """
        found = replace(self, targets=list(sets)) if self.targets is None else self
        unknown = [name for name in found.names if name not in sets]
        if unknown:
            raise InvalidValueError(
                f"objective: targets and bounds must name evaluation sets; {unknown} are none of {list(sets)}."
                f"{did_you_mean(unknown[0], sets)} Name one of these, or add them to eval_dataset, data sets by name.",
                option="objective.targets",
            )
        return replace(found, targets=found.importance)

    def value(self, results: Mapping[str, float]) -> float:
        """Computes the objective: the mean by importance, or the worst.

        Args:
            results: The loss (or metric) of each target by name; others are ignored.

        Returns:
            The value; NaN if a target has no result.
        """
        importance = self.importance or dict.fromkeys(results, 1.0 / max(len(results), 1))
        values = {name: results.get(name, math.nan) for name, weight in importance.items() if weight > 0.0}
        if not values or any(math.isnan(value) for value in values.values()):
            return math.nan
        if self.kind == "worst":
            return min(values.values()) if self.greater_is_better else max(values.values())
        return sum(importance[name] * value for name, value in values.items())

    def evaluated(self, losses: Mapping[str, float], metrics: Mapping[str, Mapping[str, float]]) -> float:
        """Computes the objective of an evaluation.

        Args:
            losses: Losses by evaluation set.
            metrics: Results of `compute_metrics` by evaluation set and name.

        Returns:
            The value; NaN if a target is missing.
        """
        if self.metric == "loss":
            return self.value(losses)
        return self.value({name: own[self.metric] for name, own in metrics.items() if self.metric in own})

    @property
    def in_words(self) -> str:
        """The objective in a few words."""
        names = [name for name, weight in self.importance.items() if weight > 0.0]
        metric = self.metric.replace("_", " ")
        if len(names) == 1:
            found = f"{metric} of {names[0]}"
        else:
            kind = "average" if self.kind == "average" else f"{'least' if self.greater_is_better else 'largest'}"
            found = f"{kind} {metric} of {listed(first_of(names))}"
        bounds = [f"{name} at most {bound:g} times its first loss" for name, bound in self.bounds.items()]
        return f"{found}, {listed(bounds)}" if bounds else found

    def weights(self, losses: FloatArray, sharpness: float) -> FloatArray:
        """Returns the weight of each target's loss in the objective's gradient.

        For the worst it is the smooth maximum's, `a_j ∝ a⁰_j exp(τ L_j)`, the gradient of `(1/τ) log Σ_j a⁰_j exp(τ
        L_j)`.

        Args:
            losses: `[num_targets]`: losses in the order of `names`.
            sharpness: `τ`, per unit of loss.

        Returns:
            `[num_targets]` with a sum of 1; 0 for sets that only have a bound.
        """
        importance = np.array([self.importance.get(name, 0.0) for name in self.names])
        known = np.isfinite(losses) & (importance > 0.0)
        if self.kind == "average" or not known.any():
            return importance
        raised = np.where(known, losses, -np.inf)
        return shares(importance * np.exp(sharpness * (raised - raised.max())))

    def describe(self) -> dict[str, Any]:
        """Describes the objective as plain data, for the ledger."""
        content = {"targets": self.importance or None, "kind": self.kind, "metric": self.metric}
        return {**content, "bounds": dict(self.bounds), "greater_is_better": self.greater_is_better}


def _check_targets(targets: Any) -> None:
    if isinstance(targets, str):
        raise wrong_value("objective.targets", f"must be a list of names, got a text: write [{targets!r}].")
    if targets is not None and not (
        isinstance(targets, Sequence | Mapping) and all(isinstance(t, str) for t in targets)
    ):
        raise wrong_value("objective.targets", f"must be names of evaluation sets, got {targets!r:.100}.")
    if targets is not None and not targets:
        raise wrong_value("objective.targets", "must name at least one evaluation set; None is for all sets.")
    if isinstance(targets, Mapping):
        _check_importance(targets)
    elif targets is not None and len(set(targets)) < len(targets):
        raise wrong_value(
            "objective.targets", f"must name each set once, got {list(targets)}. Use {{'name': 2}} for twice as much."
        )


def _check_development_sets(sets: Any) -> None:
    if not isinstance(sets, Mapping):
        kind = type(sets).__name__
        raise TypeError(f"objective: development_sets must be a mapping of names to data sets, got a {kind}.")


def _check_bounds(bounds: Any) -> None:
    if not isinstance(bounds, Mapping):
        raise wrong_value(
            "objective.bounds", f"must be multiples of first losses by evaluation set, got {bounds!r:.100}."
        )
    for name, bound in bounds.items():
        is_number = isinstance(bound, int | float) and not isinstance(bound, bool)
        if not (is_number and _LEAST_BOUND <= bound < math.inf):
            raise wrong_value(
                "objective.bounds", f"[{name!r}] must be {_LEAST_BOUND} or more times the first loss, got {bound!r}."
            )


def _check_importance(targets: Mapping[str, float]) -> None:
    for name, value in targets.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not (is_number and value >= 0.0 and math.isfinite(value)):
            raise wrong_value("objective", f": the importance of {name!r} must be a number, 0 or more, got {value!r}.")
    if not sum(targets.values()) > 0.0:
        raise wrong_value("objective", ": the importance of all targets is 0; at least one must be positive.")


def as_objective(value: Any) -> Objective | None:
    """Converts the option `objective` of a trainer.

    Args:
        value: An `Objective`; `"average"` or `"worst"` of all evaluation sets; the name of a set, several names, or
            their importance by name; or `None`.

    Raises:
        ValueError: If names or importance are wrong.
        TypeError: If it is none of these.
    """
    if value is None or isinstance(value, Objective):
        return value
    if isinstance(value, str):
        return Objective(kind=value) if value in ("average", "worst") else Objective([value])  # type: ignore[arg-type]
    if isinstance(value, Mapping | Sequence):
        return Objective(value)
    raise wrong_type("objective", f"must be an Objective, 'average', 'worst' or names, got a {type(value).__name__}.")
