"""Fixed mixtures of `benchmarks.quality` that come of other runs: the grid's best, a fit to it, a proxy's."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.quality.cache import Run
from benchmarks.quality.policies import FIT, PROXY, PROXY_FIXED
from benchmarks.quality.report import GRID, Results, best_of_grid
from mixer.analysis.fit import fit_mixture

_NUM_BEST = 3


def followers(runs: Sequence[Run], seeds: Sequence[int], folder: Path) -> list[Run]:
    """Lists the runs that depend on how others ended.

    Args:
        runs: The runs of a mixture that were planned.
        seeds: All seeds.
        folder: Where results are kept.

    Returns:
        The grid's best mixtures by validation losses, on the other seeds; the mixture that `mixer fit` makes of the
        grid's validation losses, on all; and for each seed that the proxy of DoReMi was run on, the weights that it had
        on average. None of the grid's before the whole grid was run.
    """
    results = [(run, run.result(folder)) for run in runs]
    done = [(run, result) for run, result in results if result is not None]
    grid = [(run, result) for run, result in done if run.name.startswith(GRID)]
    found = []
    if grid and len(grid) == sum(run.name.startswith(GRID) for run in runs):
        names = {run.name: run for run, _ in grid}
        best = best_of_grid({run.name: {run.seed: result} for run, result in grid}, _NUM_BEST, seeds[0])
        found += [replace(names[name], seed=seed) for seed in seeds[1:] for name in best]
        weights = _fit([run.settings["weights"] for run, _ in grid], [result for _, result in grid])
        found += [replace(grid[0][0], name=FIT, settings={"weights": weights}, seed=seed) for seed in seeds]
    for run, result in done:
        if run.name == PROXY:
            settings = {"weights": _averaged(result)}
            found.append(replace(run, name=PROXY_FIXED, class_name="Fixed", settings=settings))
    return found


def is_of_these(result: Mapping[str, Any], results: Results) -> bool:
    """Says whether a fixed mixture came of runs that there are, and not of others, with other code or settings.

    Args:
        result: Its result, with its key.
        results: Results of a mixture by competitor and seed, with their keys.

    Returns:
        Whether its weights are those of the proxy with its seed, or of a fit to the grid.
    """
    weights, seed = result["key"]["settings"]["weights"], result["key"]["seed"]
    if result["name"] == PROXY_FIXED:
        proxy = results.get(PROXY, {}).get(seed)
        return proxy is not None and weights == _averaged(proxy)
    grid = [next(iter(own.values())) for name, own in results.items() if name.startswith(GRID)]
    return bool(grid) and weights == _fit([one["key"]["settings"]["weights"] for one in grid], grid)


def _averaged(result: Mapping[str, Any]) -> list[float]:
    return [round(weight, 6) for weight in result["averaged_weights"].values()]


def _fit(mixtures: Sequence[Sequence[float]], results: Sequence[Mapping[str, Any]]) -> list[float]:
    losses = tuple(tuple(result["validation_losses"].values()) for result in results)
    return list(_fit_once(tuple(map(tuple, mixtures)), losses))


@cache
def _fit_once(mixtures: tuple[tuple[float, ...], ...], losses: tuple[tuple[float, ...], ...]) -> tuple[float, ...]:
    return tuple(round(float(share), 6) for share in fit_mixture(mixtures, losses).shares)
