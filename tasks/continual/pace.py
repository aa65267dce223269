"""Training speed of each task of a continual run."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from mixer.ledger.ledger import Ledger
from tasks.task_folders import folder_of_task


def read_pace(folder: str | Path, task_names: Sequence[str], first: int = 0, last: int | None = None) -> pd.DataFrame:
    """Reads from the ledgers how long the tasks of a run took, evaluation left out.

    Args:
        folder: The run's folder.
        task_names: Names of its tasks.
        first: Number of the first task to read about, from 0.
        last: That of the task to end before; `None` for all.

    Returns:
        One row a task that was trained (the index `task`): `num_samples` (those of memory too), `seconds` (of loading
        and training, on the main rank; of a run that was killed and went on, what counts in the end), and
        `samples_per_second`, the samples of all ranks over the seconds of a step, as the median over the steps,
        so that the first ones, which warm up, do not rule it.
    """
    rows = {}
    for number, name in list(enumerate(task_names))[first:last]:
        ledger_folder = folder_of_task(Path(folder), number, name) / "ledger"
        batches = Ledger(ledger_folder).timings() if ledger_folder.exists() else pd.DataFrame()
        if len(batches):
            samples, seconds = batches["total"], batches["load_seconds"] + batches["train_seconds"]
            rows[name] = [int(samples.sum()), float(seconds.sum()), float(np.median(samples / seconds))]
    columns = ["num_samples", "seconds", "samples_per_second"]
    return pd.DataFrame.from_dict(rows, orient="index", columns=columns).rename_axis("task")
