"""What a report of continual runs says first: which is best, what was lost, held and replayed, and the cost."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mixer.tools.records.run import Run
from mixer.utils.files import read_json
from mixer.utils.statistics import Measured, over_seeds
from mixer.utils.text import duration, first_of, listed, short_number
from tasks.metrics.seed_scores import SeedScores, cell, runs_in
from tasks.task_folders import METRICS_FILE
from tasks.tools.report.plots import forgotten

_END = "average_accuracy"


def verdict(scores: Mapping[str, SeedScores]) -> list[str]:
    """Says which run ended best, and how far the others lie from it; nothing of a single run."""
    known = {name: run for name, run in scores.items() if run.last_task and run.metrics()[_END].num_runs}
    if len(known) < 2:
        return []
    first = next(iter(known.values())).mean
    best, *others = sorted(known, key=lambda name: known[name].metrics()[_END].mean, reverse=first.higher_is_better)
    apart = [f"{known[name].against(known[best])[_END].text()} in {name}" for name in others]
    end = cell(known[best].metrics()[_END], known[best])
    alike = len({run.last_task for run in known.values()}) == 1
    remark = "" if alike else " They are not equally far: what follows is of different numbers of tasks."
    return [f"{best} ended best, with an average {first.metric} of {end}: {listed(first_of(apart))}.{remark}"]


def lost(scores: Mapping[str, SeedScores]) -> list[str]:
    """Says what each run ended with, and what of its earlier tasks it lost."""
    return [_lost(name, run) for name, run in scores.items() if run.last_task]


def _lost(name: str, scores: SeedScores) -> str:
    metrics, matrix, last = scores.metrics(), scores.mean, scores.last_task
    begins = f"{name}: after {last} of {matrix.num_tasks} tasks the {matrix.metric} is {cell(metrics[_END], scores)}"
    drops = dict(zip(matrix.task_names, forgotten(matrix)[last, : last - 1].tolist(), strict=False))
    drops = {task: drop for task, drop in drops.items() if np.isfinite(drop)}
    if not drops:
        return f"{begins} on average."
    worst = max(drops, key=drops.__getitem__)
    most = f", most on {worst} ({drops[worst]:.3f})" if drops[worst] > 0.0 else ""
    return f"{begins} on average; lost on earlier tasks since their best: {cell(metrics['forgetting'], scores)}{most}."


def held(runs: Mapping[str, Sequence[Run]]) -> list[str]:
    """Says how many samples and bytes each memory holds at the end, and how often they were replayed.

    Args:
        runs: The joined runs of all seeds, by name.
    """
    return [
        _held(name, memory, [run for run in by_seed if memory in run.memories])
        for name, by_seed in runs.items()
        for memory in dict.fromkeys(memory for run in by_seed for memory in run.memories)
    ]


def _held(name: str, memory: str, by_seed: Sequence[Run]) -> str:
    rows = [run.memories[memory] for run in by_seed]
    last = [table[table["step"] == table["step"].max()].drop_duplicates("source", keep="last") for table in rows]
    entries = [float(table["entries"].sum()) for table in last]
    replayed = [float(run.streams[memory]["count"].sum()) if memory in run.streams else 0.0 for run in by_seed]
    each = over_seeds([count / number if number else np.nan for count, number in zip(replayed, entries, strict=True)])
    sizes = [_bytes(run.folder, memory) for run in by_seed]
    stored = f" ({short_number(round(over_seeds(sizes).mean))}B on disk)" if all(sizes) else ""
    counts, numbers = (over_seeds(values).text("{:,.0f}") for values in (replayed, entries))
    often = f", {each.text('{:.1f}')} for each that it holds" if each.num_runs else ""
    return f"{name}: {memory} holds {numbers} samples{stored}; {counts} were replayed{often}."


def _bytes(folder: Path, memory: str) -> float:
    """Sums the files of a memory at the end of the last task; 0 if there are none."""
    ends = sorted(folder.glob(f"[0-9]*-*/end/{memory}"))
    return float(sum(path.stat().st_size for path in ends[-1].rglob("*") if path.is_file())) if ends else 0.0


def costs(paces: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    """Says how long each run took, by task; see `paces_in`."""
    return [_cost(name, found) for name, found in paces.items() if found and all(found)]


def _cost(name: str, paces: Sequence[Mapping[str, Any]]) -> str:
    total = over_seeds([sum(task["seconds"] for task in pace.values()) for pace in paces])
    by_task = {task: over_seeds([pace[task]["seconds"] for pace in paces if task in pace]) for task in paces[0]}
    texts = [f"{task} {time_of(seconds)}" for task, seconds in by_task.items()]
    return f"{name}: loading and training took {time_of(total)}: {listed(first_of(texts, 6))}."


def paces_in(folder: Path) -> list[dict[str, Any]]:
    """Reads what each task of a run took, for each seed; see `read_pace`."""
    paths = [run / METRICS_FILE for run in runs_in(folder).values()]
    return [dict(read_json(path)["pace"]) if path.exists() else {} for path in paths]


def time_of(seconds: Measured) -> str:
    """Formats a time, with its spread between seeds."""
    return duration(seconds.mean) + ("" if np.isnan(seconds.spread) else f" ± {duration(seconds.spread)}")
