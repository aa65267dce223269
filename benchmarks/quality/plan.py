"""Which runs `benchmarks.quality` consists of, how they are run, and what there is of their results."""

import multiprocessing
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import rotated
from benchmarks.quality.cache import Run, results
from benchmarks.quality.grid import few, grid
from benchmarks.quality.policies import (
    HALF_TARGET,
    REPLAY_BOUND,
    TARGET_ONLY,
    UNIFORM,
    Entry,
    bounded_streams,
    competitors,
    settings_of,
    similar_shares,
)
from benchmarks.quality.report import CLOCK, GRID, NEAR, Judge, Results
from benchmarks.quality.runs import run_once
from benchmarks.quality.scenarios import Scenario

ALL_OF_GRID = "grid"
# The best of a grid is a lucky one on the seeds that it was chosen on: these are none that are reported.
_GRID_SEEDS, FIRST_SEED = (1, 2), 11
_NUM_MIXTURES = {"small": 16, "llama": 12, "gpu": 12, "smollm2": 16}
_NUM_FEW = {"minilm": 4}  # in place of a grid: all of them are run on the seeds that are reported
_NUM_QUICK, _NUM_BEST = 4, 3
_NEAR, _NUM_NEAR = 0.02, 3  # how far weights of nearly the same mixture differ, and how many of them are run


def planned(scenario: Scenario, names: Sequence[str], seeds: Sequence[int], data_dir: Path | None) -> list[Run]:
    """Lists the runs of a scenario, but for those that depend on how others end.

    Args:
        scenario: The scenario.
        names: Competitors; `"grid"` stands for fixed mixtures: the grid on its own seeds, and those near uniform on the
            first seed. Those that do not compete on the scenario's model are left out.
        seeds: The seeds.
        data_dir: Folder of the data.

    Returns:
        The runs, those of a seed together, in rotated order.
    """
    entries, runs = {name: entry for name, entry in competitors(scenario.size).items() if name in names}, []
    if not bounded_streams(scenario):
        entries.pop(REPLAY_BOUND, None)
    if len({*scenario.importance}) == 1 and any(scenario.importance):
        entries = {name: own for name, own in entries.items() if name not in (TARGET_ONLY, HALF_TARGET)}  # as uniform
    for seed in seeds if entries else ():
        order = rotated([*entries], seed - FIRST_SEED)
        runs += [_run(scenario, name, entries[name], seed) for name in order]
    if ALL_OF_GRID in names:
        for number in range(1, _NUM_NEAR + 1):
            weights = 1.0 + np.random.default_rng(number).uniform(-_NEAR, _NEAR, len(scenario.streams))
            runs.append(_fixed(scenario, f"{NEAR}{number}", weights / weights.sum(), seeds[0]))
        for weights in _mixtures(scenario, data_dir):
            name = GRID + " ".join(f"{weight:.2f}" for weight in weights)
            grid_seeds = seeds if scenario.size in _NUM_FEW else _grid_seeds(scenario)
            runs += [_fixed(scenario, name, weights, seed) for seed in grid_seeds]
    return runs


def _grid_seeds(scenario: Scenario) -> Sequence[int]:
    return _GRID_SEEDS[:1] if scenario.is_quick else _GRID_SEEDS


def _mixtures(scenario: Scenario, data_dir: Path | None) -> Iterable[Any]:
    parts, streams = scenario.read(data_dir), scenario.streams
    if scenario.size in _NUM_FEW:
        return few(similar_shares(scenario, parts, takes_targets=True), _NUM_FEW[scenario.size])
    sizes = np.array([len(parts[name]["train"]) for name in streams])  # type: ignore[arg-type]
    count = _NUM_QUICK if scenario.is_quick else _NUM_MIXTURES[scenario.size]
    points = grid(sizes, scenario.importance, count)
    return points[:: len(points) // count] if scenario.is_quick else points


def _run(scenario: Scenario, name: str, entry: Entry, seed: int) -> Run:
    return Run(scenario, name, entry.class_name, settings_of(entry, scenario), seed)


def _fixed(scenario: Scenario, name: str, weights: Iterable[float], seed: int) -> Run:
    return Run(scenario, name, "Fixed", {"weights": [round(float(weight), 6) for weight in weights]}, seed)


def clocks(runs: Sequence[Run], folder: Path, session: str) -> list[Run]:
    """Lists runs of uniform mixing that only give the time, for a session that has others to run but not these.

    Args:
        runs: What was planned.
        folder: Where results are kept.
        session: When the benchmark was called.

    Returns:
        One for each such scenario.
    """
    waiting = [run for run in runs if run.class_name != "Fixed" and run.result(folder) is None]
    timed = {run.scenario for run in waiting if run.name == UNIFORM}
    first = {run.scenario: run for run in waiting if run.scenario not in timed}
    return [replace(run, name=CLOCK + session, class_name="Uniform", settings={}) for run in first.values()]


def followers(scenario: Scenario, seeds: Sequence[int], folder: Path) -> list[Run]:
    """Lists the runs of the grid's best mixtures on the seeds that policies are compared on.

    Args:
        scenario: The scenario.
        seeds: The seeds.
        folder: Where results are kept.

    Returns:
        The runs; none before the grid was run.
    """
    found = collect(scenario, folder)
    names = Judge(scenario.objective).best(found, _grid_seeds(scenario), _NUM_BEST)
    weights = {name: next(iter(found[name].values()))["settings"]["weights"] for name in names}
    return [_fixed(scenario, name, weights[name], seed) for seed in seeds for name in names]


def run_all(runs: Sequence[Run], folder: Path, data_dir: Path | None, parallel: int, session: str = "") -> list[str]:
    """Runs what was not run before; a run that fails does not keep the others from theirs.

    Args:
        runs: What to run.
        folder: Where results are kept.
        data_dir: Folder of the data.
        parallel: Number of processes.
        session: When the benchmark was called.

    Returns:
        What failed, in words.
    """
    failed, context = [], multiprocessing.get_context("spawn")
    with ThreadPoolExecutor(1) if parallel == 1 else ProcessPoolExecutor(parallel, context) as pool:
        waiting = [run for run in runs if run.result(folder) is None]
        futures = {pool.submit(run_once, run, folder, data_dir, session): run for run in waiting}
        for number, future in enumerate(as_completed(futures), start=1):
            run, error = futures[future], future.exception()
            called = f"{run.scenario.size}, {run.scenario.name}, {run.name}, seed {run.seed}"
            print(f"{number} of {len(futures)}: {called}", flush=True)
            if error is not None:
                failed.append(f"{called}: {type(error).__name__}: {error}")
                print(f"  failed: {error}", flush=True)
    return failed


def collect(scenario: Scenario, folder: Path) -> Results:
    """Reads the results that there are, of policies as they are set now; the data is not needed.

    Args:
        scenario: The scenario.
        folder: Where results are kept.

    Returns:
        Results by competitor and seed.
    """
    entries, found = competitors(scenario.size), dict[str, dict[int, Mapping[str, Any]]]()
    for result in results(scenario, folder):
        name, seed = result["name"], result["seed"]
        if name.startswith((GRID, NEAR, CLOCK)):
            run = Run(scenario, name, result["class_name"], result["settings"], seed)
        elif name in entries:
            run = _run(scenario, name, entries[name], seed)
        else:
            continue
        if result["digest"] == run.digest:
            found.setdefault(name, {})[seed] = result
    return found
