"""Folders of a continual run: the training folder of each task, the state at its end, and its speed."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from transformers.utils import logging

from mixer.checkpoint.checkpoint_files import STATE_FILE, begin_writing, complete, find_problem, remove_checkpoints
from mixer.ledger.ledger import Ledger
from mixer.utils.errors import InvalidValueError
from mixer.utils.files import read_json, synced_later, write_json
from tasks.continual.cost import COLUMNS, read_cost
from tasks.metrics.metrics import all_metrics
from tasks.metrics.score_matrix import SCORES_FILE, ScoreMatrix
from tasks.task_folders import METRICS_FILE, PAGE_FILE, RUN_STATE_FILE, folder_of_task

logger = logging.get_logger(__name__)

FORMAT_VERSION = 1
_LATER = ("held_out", "mixing", "methods")  # which runs of earlier versions did not note


class TaskCheckpoints:
    """The saved states: before the first task, in `start`, and after each one, in `NUMBER-NAME/end`.

    Args:
        folder: The run's folder.
        task_names: Names of the tasks.
        description: Properties that must not change on resume.
        settings: Settings that may change; changes are logged.
    """

    def __init__(
        self, folder: Path, task_names: Sequence[str], description: Mapping[str, Any], settings: Mapping[str, Any]
    ):
        self.folder, self._task_names = folder, tuple(task_names)
        self._description = {"format": FORMAT_VERSION, "tasks": list(task_names), **description}
        self._settings = dict(settings)

    def folder_of(self, number: int) -> Path:
        """Returns the training folder of a task, numbered from 0."""
        return folder_of_task(self.folder, number, self._task_names[number])

    def end_of(self, num_done: int) -> Path:
        """Returns the folder of the state after `num_done` tasks; 0 is the start."""
        return self.folder_of(num_done - 1) / "end" if num_done else self.folder / "start"

    def find(self, resume: bool) -> int:
        """Finds the progress of the run in the folder.

        Args:
            resume: Whether it may be resumed.

        Returns:
            The number of finished tasks with an intact state, -1 if there is no run.

        Raises:
            ValueError: If there is a run that may not be resumed, a different run, or no intact state.
        """
        path = self.folder / RUN_STATE_FILE
        if not path.exists():
            return -1
        if not resume:
            raise InvalidValueError.about(
                "output_dir", f"must hold no run, but {self.folder} does: say resume=True or overwrite=True."
            )
        state = read_json(path)
        for name, own in self._description.items():
            if (found := state.get(name, own if name in _LATER else None)) != own:
                raise InvalidValueError(
                    f"The run in {self.folder} is another: {self._difference(name, found, own)}.", option=name
                )
        before = {**self._settings, **state["settings"]}
        changed = [f"{name} {before[name]} -> {own}" for name, own in self._settings.items() if before[name] != own]
        if changed:
            logger.warning("The run in %s resumes with other settings than before: %s", self.folder, "; ".join(changed))
        for num_done in range(int(state["num_done"]), -1, -1):
            end = self.end_of(num_done)
            problem = find_problem(end)
            if problem is None:
                return num_done
            logger.warning("The run resumes before the end of task %d, as %s is damaged: %s", num_done, end, problem)
        raise InvalidValueError.about("resume", f"is impossible, as {end} is damaged: {problem}.")

    def _difference(self, name: str, found: Any, own: Any) -> str:
        if name == "data":
            pairs = zip(self._task_names, found, own, strict=True)
            return f"the samples of {[task for task, before, now in pairs if before != now]} are not those of then"
        if name == "held_out":
            differ = sorted(key for key in found.keys() | own.keys() if found.get(key) != own.get(key))
            return f"held_out had other sets, in {differ}"
        return f"its {name} is {found}, not {own}"

    def write(self, num_done: int, write_into: Callable[[Path], None]) -> None:
        """Writes the state after `num_done` tasks with `write_into(folder)`; it only counts once it is complete."""
        end = self.end_of(num_done)
        begin_writing(end)
        end.mkdir(parents=True, exist_ok=True)
        state = {**self._description, "settings": self._settings, "num_done": num_done}
        with synced_later():  # by `complete`
            write_into(end)
            write_json(end / STATE_FILE, state)  # required of every checkpoint
        complete(end)
        write_json(self.folder / RUN_STATE_FILE, state)

    def remove_checkpoints(self, num_done: int) -> None:
        """Removes the checkpoints of finished tasks, of which those of earlier ones are left after a kill."""
        for number in range(num_done):
            remove_checkpoints(self.folder_of(number))


def remove_run(folder: Path) -> None:
    """Removes the state and scores of a run, so that a new one can begin in its folder; one rank has to call it."""
    # The state goes first: what is left of a run is then none.
    for name in (RUN_STATE_FILE, SCORES_FILE, METRICS_FILE, PAGE_FILE):
        (folder / name).unlink(missing_ok=True)
    for checkpoint in checkpoints_in(folder):
        shutil.rmtree(checkpoint)


def checkpoints_in(folder: Path) -> list[Path]:
    """Lists the checkpoints of tasks and the states at their ends."""
    return [*folder.glob("[0-9]*-*/checkpoint-*"), *folder.glob("[0-9]*-*/end")]


def write_metrics(matrix: ScoreMatrix, pace: pd.DataFrame, folder: Path) -> None:
    """Writes all metrics of the tasks that were trained so far; one that is not known is `null`.

    Args:
        matrix: The scores.
        pace: What `read_pace` gives.
        folder: The run's folder.
    """
    last = matrix.last_task
    metrics = {name: value if np.isfinite(value) else None for name, value in all_metrics(matrix, last).items()}
    content = {"metric": matrix.metric, "after": last, "metrics": metrics, "pace": pace.to_dict("index")}
    with synced_later():  # they follow from the scores
        write_json(folder / METRICS_FILE, content)


def read_pace(folder: str | Path, task_names: Sequence[str], first: int = 0) -> pd.DataFrame:
    """Reads from the ledgers how long the tasks of a run took, evaluation left out.

    Args:
        folder: The run's folder.
        task_names: Names of its tasks.
        first: The first task to read.

    Returns:
        One row per task that was trained (the index `task`): `num_samples` (those of memory too), `seconds` (of loading
        and training, on the main rank; of a run that was killed and went on, what counts in the end), and
        `samples_per_second`, the samples of all ranks over the seconds of a step, as the median over the steps,
        so that the first ones, which warm up, do not rule it; `parameters`, those that are trained, the bytes of the
        task's folder, checkpoints that stay included, the most memory so far, of the accelerator or the process, and
        the bytes kept for earlier tasks: samples, also where they stay in their data sets, logits, the state of
        methods, and adapters but the first.
    """
    rows = {}
    for number, name in enumerate(task_names[first:], start=first):
        ledger_folder = folder_of_task(Path(folder), number, name) / "ledger"
        batches = Ledger(ledger_folder).timings() if ledger_folder.exists() else pd.DataFrame()
        if len(batches):
            samples, seconds = batches["total"], batches["load_seconds"] + batches["train_seconds"]
            cost = read_cost(folder_of_task(Path(folder), number, name) / "end")
            pace = [int(samples.sum()), float(seconds.sum()), float(np.median(samples / seconds))]
            rows[name] = [*pace, *(cost.get(column) for column in COLUMNS)]
    columns = ["num_samples", "seconds", "samples_per_second", *COLUMNS]
    return pd.DataFrame.from_dict(rows, orient="index", columns=columns).rename_axis("task")
