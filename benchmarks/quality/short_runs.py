"""What `mixer headroom` says of scenarios by its short runs, to be held against what the grid found with whole ones."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.quality.cache import KEPT, write_whole
from benchmarks.quality.policies import AUTO
from benchmarks.quality.scenarios import Scenario, with_folder
from benchmarks.quality.tables import Summaries, headroom, interval, table

_FILE, _LINES = "verdict.json", KEPT / "headroom.jsonl"
_LEAST = 0.5  # per cent: below it there is nothing to gain, as `mixer headroom` has it
_SAYS_THERE_IS = {"gain": True, "nothing to gain": False, "not confirmed": False}  # other verdicts leave it open


def ask_all(scenarios: Sequence[Scenario], folder: Path, data_dir: Path | None, parallel: int) -> list[str]:
    """Runs the command on scenarios that it was not run on before.

    Args:
        scenarios: The scenarios.
        folder: Working folder, which keeps the short runs too.
        data_dir: Folder of the data, for scenarios that need one.
        parallel: Number of processes.

    Returns:
        What failed, in words.
    """
    waiting = [own for own in scenarios if own.name not in verdicts(folder)]
    with ThreadPoolExecutor(parallel) as pool:
        return [failed for failed in pool.map(lambda own: _ask(own, folder, data_dir), waiting) if failed]


def _ask(scenario: Scenario, folder: Path, data_dir: Path | None) -> str:
    own = folder / "headroom" / scenario.name
    recipe = own / "recipe.yaml"
    write_whole(recipe, json.dumps(with_folder(scenario.content, data_dir)).encode())
    command = [sys.executable, "-m", "mixer", "headroom", str(recipe), "--training.output_dir", str(own), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return f"headroom of {scenario.name}: {done.stderr.strip().splitlines()[-1:]}"
    document = json.loads(done.stdout)
    kept = ("steps", "verdict", "gain", "noise", "learned", "is_explained", "confirmed_gain", "weights", "runs")
    found = {"scenario": scenario.name, **{name: document[name] for name in kept}}
    write_whole(own / _FILE, json.dumps(found).encode())
    return ""


def verdicts(folder: Path) -> dict[str, Mapping[str, Any]]:
    """Reads what the command said: results of the working folder, then those of the repository.

    Args:
        folder: The working folder.

    Returns:
        Its document by scenario.
    """
    lines = _LINES.read_text().splitlines() if _LINES.is_file() else []
    lines += [path.read_text() for path in folder.glob(f"headroom/*/{_FILE}")]
    return {own["scenario"]: own for own in map(json.loads, lines)}


def keep_verdicts(folder: Path) -> None:
    """Puts what the command said into the repository.

    Args:
        folder: The working folder.
    """
    lines = [json.dumps(own) for _, own in sorted(verdicts(folder).items())]
    write_whole(_LINES, "".join(f"{line}\n" for line in lines).encode())


def judged(verdict: str, there: float) -> str:
    """Judges what short runs said.

    Args:
        verdict: The verdict.
        there: What the grid found, in per cent; NaN if it was not run.

    Returns:
        `"right"` or `"wrong"`, or `"open"` for a verdict that leaves the question open.
    """
    if verdict not in _SAYS_THERE_IS or not np.isfinite(there):
        return "open"
    return "right" if _SAYS_THERE_IS[verdict] == (there >= _LEAST) else "wrong"


def beside_grid(found: Mapping[str, Mapping[str, Any]], summaries: Summaries) -> str:
    """Writes a table of what is said and what there is.

    Args:
        found: What the command said, by scenario.
        summaries: By scenario, what `summarise` gave.

    Returns:
        Markdown.
    """
    rows = []
    for name, said in ((name, found[name]) for name in summaries if name in found):
        policies, there = summaries[name]["policies"], headroom(summaries[name])
        auto = interval(policies[AUTO]["over_uniform"], "+.1f") if AUTO in policies else ""
        gains = [said["gain"], said["noise"], said["confirmed_gain"]]
        cells = ["" if own is None else f"{100.0 * own:+.1f}" for own in gains]
        cells += [said["verdict"], f"{there:.1f}" if np.isfinite(there) else "", auto, judged(said["verdict"], there)]
        rows.append([name, *cells])
    counts = Counter(row[-1] for row in rows)
    totals = ", ".join(f"{counts[word]} {word}" for word in ("right", "wrong", "open"))
    heads = ["scenario", "gain %", "noise %", "confirmed %", "verdict", "the grid's headroom %", f"`{AUTO}` %", "so"]
    return table(f"`mixer headroom` ({totals})", heads, rows)
