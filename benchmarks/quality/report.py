"""What the results of `benchmarks.quality` come to: comparisons with uniform mixing, by seed."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from benchmarks.quality.policies import FIT, PROXY, PROXY_FIXED, UNIFORM

Result = Mapping[str, Any]
Results = Mapping[str, Mapping[int, Result]]  # by competitor and seed

GRID = "grid "  # what the names of the grid's mixtures begin with
# Two-sided 95 % points of Student's t, by degrees of freedom from 1 on.
_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
_NORMAL = 1.959964


def student(degrees: int) -> float:
    """Gives the 97.5 % point of Student's t.

    Args:
        degrees: Degrees of freedom, from 1 on.

    Returns:
        The point; above ten degrees by the first two terms of its expansion about the normal, good to 1e-3.
    """
    if degrees <= len(_STUDENT):
        return _STUDENT[degrees - 1]
    z = _NORMAL
    return z + (z**3 + z) / (4 * degrees) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)


def quality(result: Result, part: str = "test") -> dict[str, float]:
    """Sums a run up.

    Args:
        result: The run's result.
        part: On which part of the data.

    Returns:
        `average` and `worst` loss of the streams, and `accuracy`, the average, where there is one.
    """
    losses = list(result[f"{part}_losses"].values())
    found = {"average": float(np.mean(losses)), "worst": float(np.max(losses))}
    if f"{part}_accuracies" in result:
        found["accuracy"] = float(np.mean(list(result[f"{part}_accuracies"].values())))
    return found


def paired(own: Mapping[int, float], base: Mapping[int, float]) -> dict[str, Any]:
    """Compares two competitors on the seeds that both were run on.

    Args:
        own: Figures by seed.
        base: Those to compare with.

    Returns:
        `mean` of the differences, `half_width` of its 95 % interval by Student's t (infinite for one seed) and
        `num_seeds`; the mean is NaN without a common seed.
    """
    differences = np.array([own[seed] - base[seed] for seed in sorted(own.keys() & base.keys())])
    count = len(differences)
    if count == 0:
        return {"mean": float("nan"), "half_width": float("inf"), "num_seeds": 0}
    error = float(differences.std(ddof=1)) / count**0.5 if count > 1 else float("inf")
    return {
        "mean": float(differences.mean()),
        "half_width": student(count - 1) * error if count > 1 else error,
        "num_seeds": count,
    }


def best_of_grid(results: Results, count: int, seed: int = 1) -> list[str]:
    """Chooses mixtures of the grid by their validation losses, which no figure of the report is made of.

    Args:
        results: The results of a mixture.
        count: How many to choose.
        seed: The seed of the grid.

    Returns:
        Their names, the best first.
    """
    averages = {
        name: quality(own[seed], "validation")["average"]
        for name, own in results.items()
        if name.startswith(GRID) and seed in own
    }
    return sorted(averages, key=lambda name: averages[name])[:count]


def summarise(results: Results) -> dict[str, dict[str, Any]]:
    """Compares the competitors of a mixture with uniform mixing.

    Args:
        results: Its results; uniform mixing among them.

    Returns:
        By competitor: `average`, `worst` and `accuracy` as lists over the seeds, each with `..._over_uniform`
        (see `paired`); `time_over_uniform`, processor seconds over those of uniform mixing, with evaluations and the
        runs that it takes before, as a median over the seeds; `probe_share` of the time; `shares` of the streams,
        means.
    """
    uniform = {seed: quality(result) for seed, result in results[UNIFORM].items()}
    figures = {}
    for name, runs in results.items():
        own = {seed: quality(result) for seed, result in runs.items()}
        row: dict[str, Any] = {"seeds": sorted(runs)}
        for kind in next(iter(own.values())):
            row[kind] = [own[seed][kind] for seed in row["seeds"]]
            by_seed = [{seed: one[kind] for seed, one in which.items()} for which in (own, uniform)]
            row[f"{kind}_over_uniform"] = paired(*by_seed)
        ratios = [
            (_seconds(run) + _before(name, seed, results)) / results[UNIFORM][seed]["cpu_seconds"]
            for seed, run in runs.items()
            if seed in results[UNIFORM]
        ]
        row["time_over_uniform"] = float(np.median(ratios)) if ratios else float("nan")
        row["probe_share"] = float(np.mean([run["probe_seconds"] / run["seconds"] for run in runs.values()]))
        streams = next(iter(runs.values()))["shares"]
        row["shares"] = {stream: float(np.mean([run["shares"][stream] for run in runs.values()])) for stream in streams}
        figures[name] = row
    return figures


def _seconds(result: Result) -> float:
    return float(result["cpu_seconds"] + result["reference_seconds"])


def _before(name: str, seed: int, results: Results) -> float:
    """Processor seconds of the runs that a fixed mixture comes of."""
    if name == PROXY_FIXED:
        return _seconds(results[PROXY][seed])
    if name == FIT or name.startswith(GRID):
        # All of the grid, once; what was run again on other seeds is a repetition, as is the run itself.
        return sum(
            _seconds(own[min(own)]) for other, own in results.items() if other.startswith(GRID) and other != name
        )
    return 0.0


def spread_over_noise(results: Results) -> dict[str, float]:
    """Says whether mixing matters: how far the grid's average losses differ, and how far those of seeds do.

    Args:
        results: The results of a mixture.

    Returns:
        `range` and `deviation` of the grid's average losses on one seed; `noise`, the deviation of uniform mixing's
        over seeds; `ratio` of the deviations, NaN where one is not known.
    """
    grid = [quality(own[1])["average"] for name, own in results.items() if name.startswith(GRID) and 1 in own]
    uniform = [quality(result)["average"] for result in results.get(UNIFORM, {}).values()]
    deviation = float(np.std(grid, ddof=1)) if len(grid) > 1 else float("nan")
    noise = float(np.std(uniform, ddof=1)) if len(uniform) > 1 else float("nan")
    width = float(np.ptp(grid)) if grid else float("nan")
    return {"range": width, "deviation": deviation, "noise": noise, "ratio": deviation / noise}
