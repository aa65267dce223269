"""What the results of `benchmarks.quality` come to: comparisons with uniform mixing and the best fixed mixture."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.quality.policies import UNIFORM
from mixer import Objective
from mixer.utils.statistics import paired_bound

Result = Mapping[str, Any]
Results = Mapping[str, Mapping[int, Result]]  # by competitor and seed

# What names of fixed mixtures begin with: those of the grid, those near uniform; and runs that only give the time.
GRID, NEAR, CLOCK = "grid ", "near uniform ", "clock "
BEST = "best fixed mixture"
LEAST_HEADROOM = 3.0  # per cent of uniform mixing's objective; below it a share of the headroom says nothing


def paired(own: Mapping[int, float], base: Mapping[int, float] | None) -> dict[str, Any]:
    """Compares two competitors on the seeds that both were run on.

    Args:
        own: Figures by seed.
        base: Those to compare with; `None` if the figures are differences.

    Returns:
        `mean` of the differences, `half_width` of its 95 % interval by Student's t (infinite for one seed) and
        `num_seeds`; the mean is NaN without a common seed.
    """
    base = dict.fromkeys(own, 0.0) if base is None else base
    differences = np.array([own[seed] - base[seed] for seed in sorted(own.keys() & base.keys())])
    mean = float(differences.mean()) if len(differences) else float("nan")
    return {"mean": mean, "half_width": _half_width(differences), "num_seeds": len(differences)}


def _half_width(values: Any) -> float:
    return paired_bound(values) if len(values) > 1 else float("inf")


def headroom_share(
    uniform: Mapping[int, float], own: Mapping[int, float], best: Mapping[int, float]
) -> dict[str, float]:
    """Computes the share of the headroom that a policy captures: (uniform - policy) / (uniform - best fixed mixture).

    Args:
        uniform: Uniform mixing's objective by seed.
        own: The policy's.
        best: The best fixed mixture's.

    Returns:
        `mean`, the ratio of the mean differences by seed, and `half_width` of its 95 % interval, by the deviation of
        the policy's gain from that share of the headroom on the same seed.
    """
    seeds = sorted(uniform.keys() & own.keys() & best.keys())
    gain = np.array([uniform[seed] - own[seed] for seed in seeds])
    headroom = np.array([uniform[seed] - best[seed] for seed in seeds])
    share = float(gain.sum() / headroom.sum())
    return {"mean": share, "half_width": _half_width(gain - share * headroom) / abs(float(headroom.mean()))}


def share_to_reach(places: Sequence[float], values: Sequence[float], goal: float) -> float:
    """Says after what share of a run a value is reached for the first time.

    Args:
        places: Shares of the run, rising.
        values: Values at these places, lower is better.
        goal: The value to reach.

    Returns:
        The share, between two places by a straight line; infinite if the value is not reached.
    """
    for number, (place, value) in enumerate(zip(places, values, strict=True)):
        if value <= goal:
            if number == 0 or values[number - 1] == value:
                return place
            way = (values[number - 1] - goal) / (values[number - 1] - value)
            return places[number - 1] + way * (place - places[number - 1])
    return float("inf")


class Judge:
    """Judges runs by an objective; lower is better, whatever the metric.

    Args:
        objective: The objective, with its targets by name.
    """

    def __init__(self, objective: Objective):
        self._objective, self._sign = objective, -1.0 if objective.greater_is_better else 1.0

    def value(self, result: Result, part: str = "test") -> float:
        """Computes the objective of a run, with its sign turned if greater is better."""
        metric = self._objective.metric
        own = {name: metrics[metric] for name, metrics in result[part].items()}
        return float(self._sign * self._objective.value(own))

    def worst(self, result: Result) -> float:
        """Finds the largest loss of a target."""
        return max(float(result["test"][name]["loss"]) for name in self._objective.importance)

    def accuracy(self, result: Result) -> float:
        """Averages the targets' accuracies in per cent; NaN for text."""
        own = [result["test"][name].get("accuracy", float("nan")) for name in self._objective.importance]
        return 100.0 * float(np.mean(own))

    def excess(self, result: Result, part: str = "test") -> float:
        """Says by how many per cent of its first loss a set is above its bound; 0 if all are kept."""
        found = 0.0
        for name, bound in self._objective.bounds.items():
            ratio = result[part][name]["loss"] / result["first"][part][name]["loss"]
            found = max(found, 100.0 * (ratio - bound))
        return found

    def share_to_reach(self, result: Result, goal: Result) -> float:
        """Says after what share of its samples a run is where another one ends."""
        places, values = result["course"]
        return share_to_reach(places, [self._sign * v for v in values], self._sign * goal["course"][1][-1])

    def best(self, results: Results, seeds: Sequence[int], count: int) -> list[str]:
        """Chooses fixed mixtures of the grid by validation parts, which no figure of the report is made of.

        Args:
            results: Results of a scenario.
            seeds: Seeds to go by; mixtures that were not run on all of them do not count.
            count: How many to choose.

        Returns:
            Their names, the best first: those that keep the bounds before the others.
        """
        order = {}
        for name, own in results.items():
            if name.startswith(GRID) and all(seed in own for seed in seeds):
                excess = float(np.mean([self.excess(own[seed], "validation") for seed in seeds]))
                order[name] = (excess, float(np.mean([self.value(own[seed], "validation") for seed in seeds])))
        return sorted(order, key=lambda name: order[name])[:count]


def summarise(results: Results, objective: Objective, seeds: Sequence[int]) -> dict[str, Any]:
    """Compares the competitors of a scenario with uniform mixing and the best fixed mixture.

    Args:
        results: Its results; uniform mixing among them.
        objective: The objective.
        seeds: The seeds that policies are compared on.

    Returns:
        `spread`: deviation of runs of nearly the same mixture, in per cent of the objective; `best_fixed`: the name of
        the best fixed mixture, or `None`; `policies`: the figures of each by name, see `_figures`.
    """
    judge = Judge(objective)
    there = [seed for seed in seeds if seed in results[UNIFORM]]
    names = judge.best(results, there, 1)
    near = [judge.value(run) for name, own in results.items() if name.startswith(NEAR) for run in own.values()]
    policies = {name: own for name, own in results.items() if not name.startswith((GRID, NEAR, CLOCK))}
    compared = {name: own for name, own in policies.items() if set(there) & own.keys()}
    if names:
        compared[BEST] = results[names[0]]
    by_session = _seconds_by_session(results)
    figures = {name: _figures(own, compared, judge, there, by_session) for name, own in compared.items()}
    spread = 100.0 * float(np.std(near, ddof=1)) / abs(float(np.mean(near))) if len(near) > 1 else float("nan")
    return {"spread": spread, "best_fixed": names[0] if names else None, "policies": figures}


def _figures(
    own: Mapping[int, Result], compared: Results, judge: Judge, seeds: Sequence[int], by_session: Mapping[str, float]
) -> dict[str, Any]:
    """Compares a competitor with uniform mixing.

    Returns:
        `objective` by seed; `over_uniform`, in per cent, and `worst`, that of the worst target; `accuracy`, in points
        over uniform's; `share` of the headroom, `None` without enough of it; `samples` to uniform's result; `excess`
        over a bound; `time` over uniform's; `shares` of the streams; `exact`, the share of right answers by target,
        and `tokens` and processor `minutes` of a run, `None` where they were not measured.
    """
    uniform, runs = compared[UNIFORM], {seed: own[seed] for seed in seeds if seed in own}
    values, base = ({seed: judge.value(run) for seed, run in which.items()} for which in (runs, uniform))
    samples = [judge.share_to_reach(run, uniform[seed]) for seed, run in runs.items()]
    shares = [run["shares"] for run in runs.values()]
    found: dict[str, Any] = {
        "objective": values,
        "over_uniform": _relative(values, base),
        "worst": _relative(*({seed: judge.worst(run) for seed, run in which.items()} for which in (runs, uniform))),
        "accuracy": paired(*({s: judge.accuracy(run) for s, run in which.items()} for which in (runs, uniform))),
        "samples": float(np.median(samples)),
        "excess": float(np.mean([judge.excess(run) for run in runs.values()])),
        "time": _time(runs, by_session),
        "shares": {name: float(np.mean([share[name] for share in shares])) for name in shares[0]},
        **_counted([*runs.values()]),
    }
    if BEST in compared:
        best = {seed: judge.value(run) for seed, run in compared[BEST].items()}
        is_wide = -_relative(best, base)["mean"] >= LEAST_HEADROOM
        found["share"] = headroom_share(base, values, best) if is_wide else None
    return found


def _counted(runs: Sequence[Result]) -> dict[str, Any]:
    """What is counted in runs of some models alone, as means over the seeds."""
    if any("tokens" not in run for run in runs):
        return {"exact": None, "tokens": None, "minutes": None}
    targets = runs[0].get("exact", {})
    return {
        "exact": {name: float(np.mean([run["exact"][name] for run in runs])) for name in targets} or None,
        "tokens": float(np.mean([run["tokens"] for run in runs])),
        "minutes": float(np.mean([run["cpu_seconds"] for run in runs])) / 60.0,
    }


def _relative(own: Mapping[int, float], base: Mapping[int, float]) -> dict[str, Any]:
    """Compares in per cent of the base, seed by seed."""
    return paired({seed: 100.0 * (own[seed] - base[seed]) / abs(base[seed]) for seed in own.keys() & base.keys()}, None)


def _seconds_by_session(results: Results) -> dict[str, float]:
    """Processor seconds of uniform mixing in each session: the machine is not as fast every day."""
    found: dict[str, list[float]] = {}
    for name, own in results.items():
        if name == UNIFORM or name.startswith(CLOCK):
            for run in own.values():
                found.setdefault(run["session"], []).append(run["cpu_seconds"])
    return {session: float(np.median(seconds)) for session, seconds in found.items()}


def _time(runs: Mapping[int, Result], by_session: Mapping[str, float]) -> float:
    """Processor time over that of uniform mixing, with the run of a reference model, as a median over the seeds."""
    ratios = [
        (run["cpu_seconds"] + run["reference_seconds"]) / by_session[run["session"]]
        for run in runs.values()
        if run["session"] in by_session
    ]
    return float(np.median(ratios)) if ratios else float("nan")
