"""What a report of continual runs says first: which is best, what was lost, held and replayed, and the cost."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mixer.analysis.report.judging import Measured, over_seeds
from mixer.analysis.report.run import Run
from mixer.utils.files import read_json
from mixer.utils.text import duration, first_of, listed, short_number
from tasks.report.plots import forgotten
from tasks.report.seeds import SeedScores, cell, runs_in
from tasks.task_folders import METRICS_FILE

_END = "average_accuracy"


def verdict(scores: Mapping[str, SeedScores]) -> list[str]:
    """Says which run ended best, and how far the others lie from it; nothing of a single run."""
    known = {name: one for name, one in scores.items() if one.last_task and one.metrics()[_END].num_runs}
    if len(known) < 2:
        return []
    first = next(iter(known.values())).mean
    best, *others = sorted(known, key=lambda name: known[name].metrics()[_END].mean, reverse=first.higher_is_better)
    apart = [f"{known[name].against(known[best])[_END].text()} in {name}" for name in others]
    end = cell(known[best].metrics()[_END], known[best])
    alike = len({one.last_task for one in known.values()}) == 1
    remark = "" if alike else " They are not equally far: what follows is of different numbers of tasks."
    return [f"{best} ended best, with an average {first.metric} of {end}: {listed(first_of(apart))}.{remark}"]


def lost(scores: Mapping[str, SeedScores]) -> list[str]:
    """Says what each run ended with, and what of its earlier tasks it lost."""
    return [_lost(name, one) for name, one in scores.items() if one.last_task]


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


def held(runs: Sequence[Run]) -> list[str]:
    """Says how many samples and bytes each memory holds at the end, and how often they were replayed."""
    return [_held(run, name) for run in runs for name in run.memories]


def _held(run: Run, memory: str) -> str:
    rows = run.memories[memory]
    entries = int(rows.loc[rows["step"] == rows["step"].max()].drop_duplicates("source", keep="last")["entries"].sum())
    ends = sorted(run.folder.glob(f"[0-9]*-*/end/{memory}"))
    size = sum(path.stat().st_size for path in ends[-1].rglob("*") if path.is_file()) if ends else 0
    replayed = int(run.streams[memory]["count"].sum()) if memory in run.streams else 0
    each = f", {replayed / entries:.1f} for each that it holds" if entries else ""
    stored = f" ({short_number(size)}B on disk)" if size else ""
    return f"{run.name}: {memory} holds {entries:,} samples{stored}; {replayed:,} were replayed{each}."


def costs(folders: Mapping[str, Path]) -> list[str]:
    """Says how long each run took, by task."""
    return [_cost(name, found) for name, folder in folders.items() if (found := paces_in(folder)) and all(found)]


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
