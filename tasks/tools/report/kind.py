"""Continual runs as a kind of report, and the page of scores that a run writes."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mixer.tools.records.run import Run
from mixer.tools.report.answer import Answer
from mixer.tools.report.contents import points_per_line
from mixer.tools.report.page import write_page
from mixer.tools.report.run_kinds import Report, ReportKind
from mixer.tools.report.tables import differing_streams
from mixer.utils.errors import InvalidValueError
from mixer.utils.statistics import over_seeds
from mixer.utils.text import listed, short_number
from tasks.metrics.score_matrix import ScoreMatrix
from tasks.metrics.seed_scores import SeedScores, as_seed_scores, runs_in
from tasks.tools.report.answer import costs, held, lost, paces_in, time_of, verdict
from tasks.tools.report.matrices import check_same_metric, metric_rows, read_scores, titled
from tasks.tools.report.plots import score_plots, task_names
from tasks.tools.report.training import joined_run, training_plots, training_rows


def continual_run() -> ReportKind:
    """Returns the kind of report for folders with score matrices."""
    return ReportKind("a continual run", lambda folder: bool(runs_in(folder)), contents)


def contents(folders: Sequence[Path]) -> Report:
    """Reads what a page shows of continual runs, finished or going.

    Args:
        folders: Their output folders; of a run with several seeds, that of all of them.

    Returns:
        The page's contents: metrics, scores, and how the tasks were trained on one data clock, drawn
        for the first seed.

    Raises:
        ValueError: If a folder is given twice, holds no scores, or they are of different metrics.
    """
    scores = titled(read_scores(folders))
    joined = {name: _joined(name, folder, run) for folder, (name, run) in zip(folders, scores.items(), strict=True)}
    runs = [by_seed[0] for by_seed in joined.values() if by_seed]
    matrices = {name: run.mean for name, run in scores.items()}
    plots = score_plots(matrices)
    if runs:
        plots += training_plots(runs, task_names(matrices), points_per_line(runs))
    missing = [name for name, by_seed in joined.items() if not by_seed]
    notes = [f"No step recorded yet: {listed(missing)}." if missing else "", _on_seeds(scores), differing_streams(runs)]
    paces = {name: paces_in(folder) for name, folder in zip(scores, folders, strict=True)}
    rows = [*_rows(scores), *training_rows(joined.values()), *cost_rows([*paces.values()])]
    said = [*verdict(scores), *lost(scores), *held(joined), *costs(paces)]
    return Report(list(scores), rows, plots, " ".join(filter(None, notes)), answer=Answer(said))


def _joined(name: str, folder: Path, scores: SeedScores) -> list[Run]:
    """Reads the runs of all seeds that have a step, each joined."""
    seeds = runs_in(folder)
    called = {seed: name if len(seeds) == 1 else f"{name}, seed {seed}" for seed in seeds}
    found = [joined_run(path, called[seed], scores.by_seed[seed].task_names) for seed, path in seeds.items()]
    return [run for run in found if run is not None]


def write_scores(scores: Mapping[str, ScoreMatrix | SeedScores], path: str | Path) -> Path:
    """Writes a page about scores alone.

    Args:
        scores: Scores of the same metric, at least one, by name of the run.
        path: Where the page goes.

    Returns:
        Path of the page.

    Raises:
        ValueError: If there are no scores, they are of different metrics, or the path is a folder.
    """
    known = {name: as_seed_scores(run) for name, run in scores.items()}
    check_same_metric(known)
    target = Path(path)
    if target.is_dir():
        raise InvalidValueError.about("path", f"must be a file, but {target} is a folder.")
    known = titled(known)
    plots = score_plots({name: run.mean for name, run in known.items()})
    said = Answer([*verdict(known), *lost(known)])
    return write_page(target, Report(list(known), _rows(known), plots, _on_seeds(known), answer=said))


def _rows(scores: Mapping[str, SeedScores]) -> list[tuple[str, list[str]]]:
    return [(f"{name[0].upper()}{name[1:]}", cells) for name, cells in metric_rows(scores)]


def _on_seeds(scores: Mapping[str, SeedScores]) -> str:
    if all(len(run.by_seed) == 1 for run in scores.values()):
        return ""
    return (
        "Of several seeds: mean ± standard deviation between them, and for differences ± half of the 95 % interval of "
        "a t-test, paired where runs have the same seeds with the same tasks in the same order. Plots of scores show "
        "means; the plots of training are those of the first seed."
    )


def cost_rows(paces: Sequence[Sequence[dict[str, Any]]]) -> list[tuple[str, list[str]]]:
    """Returns the rows about time, by task, and what the last finished one's state takes: a cell for each run."""
    costs: list[dict[str, int]] = [next(iter(reversed(pace.values())), {}) for pace, *_ in paces]
    made: dict[str, Callable[[dict[str, int]], str]] = {
        "Parameters (trained)": lambda cost: f"{cost['parameters']:,} ({cost['trainable_parameters']:,})",
        "Disk of the last task": lambda cost: f"{short_number(cost['disk_bytes'])}B",
        "Kept for earlier tasks": _kept,
        "Most memory": lambda cost: f"{short_number(cost['memory_bytes'])}B",
    }
    tasks = dict.fromkeys(task for runs in paces for pace in runs for task in pace)
    times = [
        (f"Time of {task}", [_time([pace[task] for pace in runs if task in pace]) for runs in paces]) for task in tasks
    ]
    rows = [(name, [shown(cost) if cost.get("parameters") else "-" for cost in costs]) for name, shown in made.items()]
    return [*times, *rows]


def _kept(cost: Mapping[str, float]) -> str:
    kept = cost.get("kept_bytes") or 0  # which runs of earlier versions did not note
    return f"{short_number(kept)}B" if kept > 0 else "-"


def _time(paces: Sequence[Mapping[str, float]]) -> str:
    """Formats the time of a task, the mean over seeds."""
    if not paces:
        return "-"
    seconds, rate = (over_seeds([pace[name] for pace in paces]) for name in ("seconds", "samples_per_second"))
    return f"{time_of(seconds)}, {rate.mean:,.0f} samples/s"
