"""Tables of `benchmarks.quality.multi_task`: accuracies, differences by seed, and what was spent."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.common import show
from benchmarks.quality.multi_task.data import TASKS
from benchmarks.quality.report import paired
from mixer.utils.arrays import FloatArray

SEPARATELY = "separate models"
# CNN-rand of Kim 2014, arXiv:1408.5882: other parts of the data, a larger model.
PUBLISHED = {"trec": 91.2, "mr": 76.1, "subj": 89.6, "cr": 79.8, "mpqa": 83.4, "sst2": 82.7}

Accuracies = Mapping[str, FloatArray]


def accuracies(results: Sequence[Mapping[str, Any]], part: str) -> dict[str, FloatArray]:
    """Collects the accuracies of a row.

    Args:
        results: One a seed.
        part: Of the data.

    Returns:
        Per cent by task and their `average`, `[num_seeds]` each.
    """
    return {name: 100 * values for name, values in _by_task(results, part, "accuracy").items()}


def _by_task(results: Sequence[Mapping[str, Any]], part: str, metric: str) -> dict[str, FloatArray]:
    found = {task: np.array([one[part][task][metric] for one in results]) for task in TASKS}
    return {**found, "average": np.mean(list(found.values()), axis=0)}


def less(own: FloatArray, base: FloatArray) -> tuple[float, float]:
    """Compares two rows, seed by seed.

    Args:
        own: Accuracies, `[num_seeds]`.
        base: Those to compare with.

    Returns:
        The mean of the differences, and the half width of its 95 % interval by Student's t.
    """
    found = paired(dict(enumerate(own.tolist())), dict(enumerate(base.tolist())))
    return found["mean"], found["half_width"]


def verdict(difference: float, half_width: float) -> str:
    """Says how several tasks in one model compare with separate models.

    Args:
        difference: Of the accuracies.
        half_width: Of its interval.

    Returns:
        `"within the spread"` if the interval has 0 in it, else `"higher"` or `"lower"`.
    """
    if abs(difference) <= half_width:
        return "within the spread"
    return "higher" if difference > 0 else "lower"


def show_all(results: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Prints the tables.

    Args:
        results: Of each row, one a seed.
    """
    _show_accuracies({name: accuracies(own, "test") for name, own in results.items()})
    losses = {name: _by_task(own, "test", "loss") for name, own in results.items()}
    rows = [[name, *(_text(own[task], 2) for task in (*TASKS, "average"))] for name, own in losses.items()]
    show("Test loss, mean ± standard deviation over the seeds", ["", *TASKS, "average"], rows)
    for part in ("test", "validation"):
        _show_differences({name: accuracies(own, part) for name, own in results.items()}, part)
    rows = [
        [name, f"{own[0]['steps']:,}", *(f"{own[0]['samples'][task]:,}" for task in TASKS), f"{_seconds(own):.0f}"]
        for name, own in results.items()
    ]
    show("Steps and samples of seed 1, and the time of training", ["", "steps", *TASKS, "seconds"], rows)


def _seconds(results: Sequence[Mapping[str, Any]]) -> float:
    return float(np.median([one["seconds"] for one in results]))


def _show_accuracies(test: Mapping[str, Accuracies]) -> None:
    rows = [[name, *(_text(own[task]) for task in (*TASKS, "average"))] for name, own in test.items()]
    published = [f"{value:.1f}" for value in (*PUBLISHED.values(), np.mean(list(PUBLISHED.values())))]
    rows.append(["published, CNN-rand, other parts", *published])
    show("Test accuracy in per cent, mean ± standard deviation over the seeds", ["", *TASKS, "average"], rows)


def _show_differences(found: Mapping[str, Accuracies], part: str) -> None:
    rows = []
    for name, own in found.items():
        for task in (*TASKS, "average") if name != SEPARATELY else ():
            mean, half = less(own[task], found[SEPARATELY][task])
            text = f"{mean:+.1f} [{mean - half:+.1f}, {mean + half:+.1f}]"
            rows.append([f"{name}: {task}", text, verdict(mean, half)])
    show(f"{part.capitalize()} part: less {SEPARATELY}, by seed, with 95 % intervals", ["", "difference", ""], rows)


def _text(values: FloatArray, places: int = 1) -> str:
    spread = f" ± {values.std(ddof=1):.{places}f}" if len(values) > 1 else ""
    return f"{values.mean():.{places}f}{spread}"
