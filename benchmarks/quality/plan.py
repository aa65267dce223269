"""Which runs `benchmarks.quality` consists of, how they are run, and what there is of their results."""

import json
import multiprocessing
from collections.abc import Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import rotated
from benchmarks.quality.cache import Run
from benchmarks.quality.followers import is_of_these
from benchmarks.quality.grid import grid
from benchmarks.quality.mixtures import Mixture
from benchmarks.quality.policies import FIT, PROXY_FIXED, Entry, settings_of
from benchmarks.quality.report import GRID
from benchmarks.quality.runs import run_once

ALL_OF_GRID = "grid"


def planned(mixture: Mixture, names: Sequence[str], seeds: Sequence[int], data_dir: Path | None) -> list[Run]:
    """Lists the runs of a mixture, but for those that depend on how others end.

    Args:
        mixture: The mixture.
        names: Competitors; `"grid"` stands for the grid, which is run on the first seed alone. Those that are none of
            the mixture's are left out.
        seeds: The seeds.
        data_dir: Folder of the data.

    Returns:
        The runs, those of a seed together, in rotated order.
    """
    entries, runs = {name: entry for name, entry in mixture.competitors().items() if name in names}, []
    for seed in seeds if entries else ():
        order = rotated([*entries], seed - 1)
        runs += [_run(mixture, name, entries[name], seed) for name in order]
    if ALL_OF_GRID in names and mixture.entries is None:
        runs += [_run(mixture, name, entry, seeds[0]) for name, entry in _grid(mixture, data_dir).items()]
    return runs


def _run(mixture: Mixture, name: str, entry: Entry, seed: int) -> Run:
    return Run(mixture, name, entry.class_name, settings_of(entry, mixture.num_steps), seed, entry.options)


def _grid(mixture: Mixture, data_dir: Path | None) -> dict[str, Entry]:
    sizes = [len(parts["train"]) for parts in mixture.read(data_dir).values()]  # type: ignore[arg-type]
    points = grid(np.array(sizes))
    return {
        f"{GRID}{number}": Entry("Fixed", {"weights": [round(float(weight), 6) for weight in point]})
        for number, point in enumerate(points, start=1)
    }


def run_all(runs: Sequence[Run], folder: Path, data_dir: Path | None, parallel: int) -> list[str]:
    """Runs what was not run before; a run that fails does not keep the others from theirs.

    Args:
        runs: What to run.
        folder: Where results are kept.
        data_dir: Folder of the data.
        parallel: Number of processes.

    Returns:
        What failed, in words.
    """
    failed = []
    with _pool(parallel) as pool:
        waiting = [run for run in runs if run.result(folder) is None]
        futures = {pool.submit(run_once, run, folder, data_dir): run for run in waiting}
        for number, future in enumerate(as_completed(futures), start=1):
            run, error = futures[future], future.exception()
            print(f"{number} of {len(futures)}: {run.mixture.name}, {run.name}, seed {run.seed}", flush=True)
            if error is not None:
                failed.append(f"{run.mixture.name}, {run.name}, seed {run.seed}: {type(error).__name__}: {error}")
                print(f"  failed: {error}", flush=True)
    return failed


def _pool(parallel: int) -> Executor:
    if parallel == 1:
        return ThreadPoolExecutor(1)
    return ProcessPoolExecutor(parallel, multiprocessing.get_context("spawn"))


def collect(mixture: Mixture, folder: Path) -> dict[str, dict[int, dict[str, Any]]]:
    """Reads the results that there are, of policies as they are set now; the data is not needed.

    Args:
        mixture: The mixture.
        folder: Where results are kept.

    Returns:
        Results by competitor and seed.
    """
    entries, found = mixture.competitors(), dict[str, dict[int, dict[str, Any]]]()
    results = [json.loads(path.read_text()) for path in sorted((folder / mixture.name).glob("*.json"))]
    for result in sorted(results, key=lambda result: result["name"] in (FIT, PROXY_FIXED)):  # what they come of first
        name, key = result["name"], result["key"]
        if name.startswith(GRID) or name in (FIT, PROXY_FIXED):
            entry = Entry(key["class_name"], key["settings"])
        elif name in entries:
            entry = entries[name]
        else:
            continue
        is_wanted = name not in (FIT, PROXY_FIXED) or is_of_these(result, found)
        if is_wanted and key == _run(mixture, name, entry, key["seed"]).key():
            found.setdefault(name, {})[key["seed"]] = result
    return found
