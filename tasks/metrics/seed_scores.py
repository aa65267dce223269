"""Scores of a continual run over seeds: means, spreads, and differences from another run."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mixer.utils.arrays import FloatArray
from mixer.utils.errors import InvalidValueError
from mixer.utils.files import read_json
from mixer.utils.statistics import Measured, bound, over_seeds, paired_bound
from tasks.metrics.metrics import all_metrics
from tasks.metrics.score_matrix import SCORES_FILE, ScoreMatrix
from tasks.task_folders import RUN_STATE_FILE

_SEED_FOLDER = re.compile(r"seed-(\d+)")


class Difference(NamedTuple):
    """A metric of a run minus that of another.

    Args:
        mean: The difference of the means; of the pairs alone, where there are two at least.
        bound: Half of its 95 % interval, by a t-test; NaN for one run of each.
        seeds: The seeds that were paired, in both runs with the same tasks in the same order; none where the test takes
            the seeds of each run by themselves.
    """

    mean: float
    bound: float
    seeds: tuple[int, ...]

    def text(self) -> str:
        """Formats the difference."""
        if np.isnan(self.mean):
            return "not known"
        by = f"paired, {len(self.seeds)} seeds" if self.seeds else "not paired"
        return f"{self.mean:+.3f}" if np.isnan(self.bound) else f"{self.mean:+.3f} ± {self.bound:.3f} ({by})"


@dataclass(frozen=True)
class SeedScores:
    """Scores of the same continual run with several seeds; spreads are standard deviations between seeds.

    Args:
        by_seed: The scores by seed, at least one.
        orders: By seed, what tells the tasks, their samples and their order from others; seeds of two runs are paired
            where it is the same.

    Raises:
        ValueError: If seeds have other metrics, or another number of tasks.
    """

    by_seed: Mapping[int, ScoreMatrix]
    orders: Mapping[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        kinds = {seed: (matrix.metric, matrix.num_tasks) for seed, matrix in self.by_seed.items()}
        if len(set(kinds.values())) != 1:
            raise InvalidValueError.about("by_seed", f"must have one metric and one number of tasks, got {kinds}.")

    @classmethod
    def read(cls, folders: Mapping[int, Path]) -> "SeedScores":
        """Reads the scores of runs, finished or not, by seed."""
        orders = {}
        for seed, folder in folders.items():
            if (folder / RUN_STATE_FILE).exists():
                state = read_json(folder / RUN_STATE_FILE)
                orders[seed] = json.dumps([state["tasks"], state["data"]])
        return cls({seed: ScoreMatrix.from_file(folder / SCORES_FILE) for seed, folder in folders.items()}, orders)

    def __str__(self) -> str:
        seeds = f"seeds {', '.join(map(str, self.by_seed))}; ± is the standard deviation between them"
        metrics = [f"{name}: {measured.text()}" for name, measured in self.metrics().items()]
        return "\n".join([f"Mean {self.mean} ({seeds})", *metrics])

    @property
    def last_task(self) -> int:
        """Number of the last task that was trained on with all seeds."""
        return min(matrix.last_task for matrix in self.by_seed.values())

    @property
    def scores(self) -> FloatArray:
        """The mean of R over seeds, `[num_tasks + 1, num_tasks]`: NaN where a seed has no score."""
        return self.mean.scores

    @property
    def spread(self) -> FloatArray:
        """The standard deviation of R between seeds; NaN for one seed."""
        scores = np.array([matrix.scores for matrix in self.by_seed.values()])
        return scores.std(axis=0, ddof=1) if len(scores) > 1 else np.full(scores.shape[1:], np.nan)

    @cached_property
    def mean(self) -> ScoreMatrix:
        """The mean of everything over seeds, to be plotted; `metrics()` has the means of the metrics, not of this."""
        return _mean([*self.by_seed.values()])

    def metrics(self) -> dict[str, Measured]:
        """Returns mean and spread of the metrics, by name; each is computed for each seed."""
        return {name: over_seeds([*values.values()]) for name, values in self.metrics_by_seed().items()}

    def against(self, other: "SeedScores") -> dict[str, Difference]:
        """Compares the metrics with those of another run.

        Args:
            other: The other run, which is subtracted.

        Returns:
            The differences by name of the metric.
        """
        base = other.metrics_by_seed()
        return {
            name: self._difference(own, base[name], other)
            for name, own in self.metrics_by_seed().items()
            if name in base
        }

    def _difference(self, own: Mapping[int, float], base: Mapping[int, float], other: "SeedScores") -> Difference:
        paired = [seed for seed in own if seed in self.orders and self.orders[seed] == other.orders.get(seed)]
        pairs = {seed: own[seed] - base[seed] for seed in paired if np.isfinite(own[seed] - base[seed])}
        if len(pairs) > 1:
            differences = [*pairs.values()]
            return Difference(float(np.mean(differences)), paired_bound(differences), tuple(pairs))
        mine, theirs = over_seeds([*own.values()]), over_seeds([*base.values()])
        return Difference(mine.mean - theirs.mean, bound(mine, theirs), ())

    def metrics_by_seed(self) -> dict[str, dict[int, float]]:
        """Returns the metrics by name and seed."""
        found = {seed: all_metrics(matrix, self.last_task) for seed, matrix in self.by_seed.items()}
        names = dict.fromkeys(name for metrics in found.values() for name in metrics)
        return {name: {seed: metrics.get(name, np.nan) for seed, metrics in found.items()} for name in names}


def cell(value: Measured | None, scores: SeedScores) -> str:
    """Formats a metric."""
    if value is None or not value.num_runs:
        return "not known"
    missing = value.num_runs < len(scores.by_seed)
    return value.text() + (f" ({value.num_runs} of {len(scores.by_seed)} seeds)" if missing else "")


def as_seed_scores(scores: ScoreMatrix | SeedScores) -> SeedScores:
    """Takes the scores of one run as those of one seed."""
    return scores if isinstance(scores, SeedScores) else SeedScores({0: scores})


def folder_of_seed(folder: Path, seed: int) -> Path:
    """Returns the folder of a seed's run, in that of all seeds."""
    return folder / f"seed-{seed}"


def runs_in(folder: Path) -> dict[int, Path]:
    """Finds the runs with scores in a folder.

    Args:
        folder: Output folder of a continual run, or of one with several seeds.

    Returns:
        Their folders by seed, in ascending order; empty if there is none.
    """
    if (folder / SCORES_FILE).is_file():
        state = folder / RUN_STATE_FILE
        return {read_json(state)["settings"].get("seed", 0) if state.exists() else 0: folder}
    found = {
        path: _SEED_FOLDER.fullmatch(path.name) for path in folder.glob("seed-*") if (path / SCORES_FILE).is_file()
    }
    return dict(sorted((int(name[1]), path) for path, name in found.items() if name))


def _mean(matrices: list[ScoreMatrix]) -> ScoreMatrix:
    first = matrices[0]
    if len(matrices) == 1:
        return first
    are_alike = all(matrix.task_names == first.task_names for matrix in matrices)
    names = first.task_names if are_alike else tuple(f"task {number}" for number in range(1, first.num_tasks + 1))
    mean = ScoreMatrix(names, first.higher_is_better, first.metric, held_out=first.held_out_names)
    for after in sorted(set.intersection(*(set(matrix.recorded) for matrix in matrices))):
        row = dict(zip(names, np.mean([matrix.scores[after] for matrix in matrices], axis=0).tolist(), strict=True))
        failures = {
            names[matrix.task_names.index(name)]: why
            for matrix in matrices
            for (where, name), why in matrix.failures.items()
            if where == after
        }
        mean.record(after, row, failures)
        if first.held_out_names:
            held_out = [matrix.held_out().reindex(columns=[*first.held_out_names]).loc[after] for matrix in matrices]
            mean.record_held_out(
                after, dict(zip(first.held_out_names, np.mean(held_out, axis=0).tolist(), strict=True))
            )
    _record_course(mean, matrices)
    return mean


def _record_course(mean: ScoreMatrix, matrices: list[ScoreMatrix]) -> None:
    tables = [matrix.course.to_pandas() for matrix in matrices]
    for task, step in tables[0].index:
        if all((task, step) in table.index for table in tables):
            row = np.mean([table.loc[(task, step)].to_numpy(float) for table in tables], axis=0)
            mean.record_step(task, step, dict(zip(mean.task_names, row.tolist(), strict=True)))
