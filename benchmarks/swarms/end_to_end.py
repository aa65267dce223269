"""Searches on scenarios of `benchmarks.quality`, against the best of its sixteen fixed mixtures and `"auto"`."""

import io
import json
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.quality.cache import Run
from benchmarks.quality.plan import FIRST_SEED, collect, planned, run_all
from benchmarks.quality.policies import AUTO, UNIFORM
from benchmarks.quality.report import Judge
from benchmarks.quality.scenarios import Scenario
from mixer.cli.entry import main as run_mixer

# Those with a mixture to find, of text that comes with Python, with most to gain in the table of `benchmarks quality`.
SCENARIOS = ("junk", "near_duplicates", "easy_and_hard")
_GRID_SEED, _NUM_FIXED = 1, 16
_RECIPES = Path(__file__).parents[2] / "recipes" / "quality"
_SEARCHES = {"search, a tenth each": ["--share", "0.1"], "search, whole runs": ["--share", "1"]}


def end_to_end(name: str, num_seeds: int, folder: Path, runs: int) -> list[dict[str, Any]]:
    """Searches, and trains on what was found with other seeds.

    Args:
        name: The scenario.
        num_seeds: Seeds to judge by; the grid and the search have others.
        folder: Working folder, where finished runs are kept.
        runs: Runs of a search, with the two that check.

    Returns:
        A row a competitor: samples of all runs in lengths of a run, and the objective on test rows, in per cent over
        that of uniform mixing with the same seed.
    """
    scenario, seeds = Scenario(name), range(FIRST_SEED, FIRST_SEED + num_seeds)
    judge, kept = Judge(scenario.objective), collect(scenario, folder)
    own = {run.name: (run, 1.0) for run in planned(scenario, [UNIFORM, AUTO], seeds[:1], None)}
    grid = judge.best(kept, [_GRID_SEED], 1)[0]
    found = {f"best of {_NUM_FIXED} fixed": (kept[grid][_GRID_SEED]["settings"]["weights"], float(_NUM_FIXED))}
    found |= {kind: _searched(scenario, words, folder / name, runs) for kind, words in _SEARCHES.items()}
    for kind, (weights, cost) in found.items():
        own[kind] = (Run(scenario, kind, "Fixed", {"weights": weights}, FIRST_SEED), 1.0 + cost)
    failed = run_all([replace(run, seed=seed) for run, _ in own.values() for seed in seeds], folder, None, 1)
    if failed:
        raise SystemExit("\n".join(failed))
    values = {
        kind: np.array([judge.value(replace(run, seed=seed).result(folder) or {}) for seed in seeds])
        for kind, (run, _) in own.items()
    }
    over = {kind: 100.0 * (own / values[UNIFORM] - 1.0) for kind, own in values.items()}
    return [
        {"scenario": name, "kind": kind, "cost": cost, "over uniform": float(over[kind].mean())}
        for kind, (_, cost) in own.items()
    ]


def _searched(scenario: Scenario, words: Sequence[str], folder: Path, runs: int) -> tuple[list[float], float]:
    """Gives the weights that `mixer search` finds, and the samples of its runs in lengths of one."""
    printed, output = io.StringIO(), ["--training.output_dir", str(folder)]
    with redirect_stdout(printed):
        recipe = str(_RECIPES / f"{scenario.name}.yaml")
        run_mixer(["search", recipe, *words, "--runs", str(runs - 2), "--worth", "0", *output, "--json"])
    document = json.loads(printed.getvalue())
    cost = document["steps"] * len(document["runs"]) / scenario.num_steps
    return [document["weights"][stream] for stream in scenario.streams], cost
