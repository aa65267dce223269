"""Searches on scenarios of `benchmarks.quality`, against the best of its sixteen fixed mixtures and `"auto"`."""

import io
import json
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.quality.cache import Run
from benchmarks.quality.plan import FIRST_SEED, collect, planned, run_all
from benchmarks.quality.policies import AUTO, UNIFORM
from benchmarks.quality.report import Judge, Results
from benchmarks.quality.scenarios import Scenario
from mixer.tools.cli.entry import main as run_mixer

# Those with a mixture to find, of text that comes with Python, with most to gain in the table of `benchmarks quality`.
SCENARIOS = ("junk", "near_duplicates", "easy_and_hard")
_GRID_SEED, _NUM_FIXED = 1, 16
_RECIPES = Path(__file__).parents[2] / "recipes" / "quality"


def end_to_end(name: str, num_seeds: int, folder: Path, share: float) -> list[dict[str, Any]]:
    """Searches, and trains on what was found with other seeds.

    Args:
        name: The scenario.
        num_seeds: Seeds to judge by; the grid and the search have others.
        folder: Working folder, where finished runs are kept.
        share: Length of the search's runs, of which there are as many as fixed mixtures.

    Returns:
        A row a competitor: samples of all runs in lengths of a run, and the objective on test rows, in per cent over
        that of uniform mixing with the same seed.
    """
    scenario, seeds = Scenario(name), range(FIRST_SEED, FIRST_SEED + num_seeds)
    judge, kept = Judge(scenario.objective), collect(scenario, folder)
    own = {run.name: (run, 1.0) for run in planned(scenario, [UNIFORM, AUTO], seeds[:1], None)}
    grid = judge.best(kept, [_GRID_SEED], 1)[0]
    own[f"best of {_NUM_FIXED} fixed"] = (replace(own[UNIFORM][0], **_fixed(grid, kept)), 1.0 + _NUM_FIXED)
    weights, cost = _searched(scenario, share, folder / name)
    own["search"] = (Run(scenario, "search", "Fixed", {"weights": weights}, FIRST_SEED), 1.0 + cost)
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


def _fixed(grid: str, kept: Results) -> dict[str, Any]:
    return {"name": grid, "class_name": "Fixed", "settings": kept[grid][_GRID_SEED]["settings"]}


def _searched(scenario: Scenario, share: float, folder: Path) -> tuple[list[float], float]:
    """Gives the weights that `mixer search` finds, and the samples of its runs in lengths of one."""
    recipe, runs = str(_RECIPES / f"{scenario.name}.yaml"), str(_NUM_FIXED - 2)  # and two that check
    words = ["--share", str(share), "--runs", runs, "--worth", "0", "--training.output_dir", str(folder), "--json"]
    printed = io.StringIO()
    with redirect_stdout(printed):
        run_mixer(["search", recipe, *words])
    document = json.loads(printed.getvalue())
    cost = sum(run["steps"] for run in document["runs"]) / scenario.num_steps
    return [document["weights"][stream] for stream in scenario.streams], cost
