"""Replay policies go on from task to task in a continual run, also where it is resumed in the middle of one."""

import logging
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from mixer.ledger.ledger import Ledger
from mixer.policies import Policy, Smoothed
from replay import ReplayBound, ReplayRatio
from tasks.sources import Arrays
from tasks.task import Task, TaskSequence
from tests.mixer.checkpoint.test_resume import Instants
from tests.ranks.warm import some
from tests.tasks.killed import assert_goes_on, whole_runs
from tests.tasks.test_continual import build

POLICIES: dict[str, Callable[[], Policy]] = {
    "tasks": lambda: ReplayRatio("tasks"),
    "samples": lambda: ReplayRatio("samples"),
    "course": lambda: ReplayRatio([(0.0, 0.25), (1.0, 0.75)]),
    "ReplayBound": lambda: ReplayBound(0.05),
}
SIZES = (40, 20, 20, 80)
STEPS = 5


@cache
def sequence() -> TaskSequence:
    random = np.random.default_rng(0)

    def task(number: int, size: int) -> Task:
        # Labels contradict those of the task before, so that what is learnt is forgotten.
        inputs = random.normal(size=(size, 6)).astype(np.float32)
        data = Arrays(inputs, ((inputs[:, 0] > 0) ^ (number % 2)).astype(np.int64))
        return Task(f"task_{number + 1}", data, data, classes=(0, 1))

    return TaskSequence(tuple(task(number, size) for number, size in enumerate(SIZES)), "domain")


def run_of(folder: Path, name: str, instants: Instants | None = None) -> Any:
    changes: dict[str, Any] = {"mixing": POLICIES[name](), "memory": "reservoir", "sequence": sequence()}
    if name == "ReplayBound":
        changes |= {"eval_dataset": {task.name: task.evaluation for task in sequence()}}
        changes |= {"eval_on_start": True, "eval_strategy": "steps", "eval_steps": 1}
    changes |= {"batch_size": 16, "num_labels": 2, "max_steps": STEPS, "save_steps": 2, "learning_rate": 0.3}
    return build(folder, "reservoir, fresh", instants, scores_before=False, **changes)


def counts(run: Any) -> list[pd.DataFrame]:
    """Samples `[steps, streams]` of each task."""
    ledgers = [Ledger(run.folder / f"{number:02}-task_{number}" / "ledger").to_pandas() for number in (1, 2, 3, 4)]
    return [ledger.pivot_table(index="step", columns="stream", values="count", aggfunc="sum") for ledger in ledgers]


def replayed(table: pd.DataFrame) -> pd.Series:
    """Share of replayed samples by step."""
    memories = [name for name in table.columns if name.startswith("memory")]
    return table[memories].sum(axis=1) / table.sum(axis=1)


whole = whole_runs(run_of)


@pytest.mark.parametrize("name", some(POLICIES, ("samples",)))
def test_a_run_resumed_in_the_middle_of_a_task_ends_as_one_that_was_not(name: str, whole: Any, tmp_path: Path) -> None:
    run = assert_goes_on(run_of, name, whole, tmp_path)
    for found, own in zip(counts(run), counts(whole(name)[0]), strict=True):
        pd.testing.assert_frame_equal(found, own)


@pytest.mark.parametrize(
    ("name", "shares"), [("tasks", [0, 1 / 2, 2 / 3, 3 / 4]), ("samples", [0, 40 / 60, 60 / 80, 80 / 160])]
)
def test_what_is_old_counts_all_earlier_tasks(name: str, shares: list[float], whole: Any) -> None:
    run, _ = whole(name)
    np.testing.assert_allclose([replayed(table).mean() for table in counts(run)], shares, atol=0.05)


def test_bounds_of_earlier_tasks_are_those_of_their_own_end(whole: Any) -> None:
    run, _ = whole("ReplayBound")
    assert {*counts(run)[3].columns} == {"task_4", *(f"memory of task_{number}" for number in (1, 2, 3))}
    at_start = {}
    for number in (2, 3, 4):
        table = Ledger(run.folder / f"{number:02}-task_{number}" / "ledger").evaluations()
        name = f"memory of task_{number - 1}"
        at_start[name] = float(table[(table.stream == name) & (table.step == 0)].loss.iloc[0])
    known = {name: state["first"] for name, state in run.rehearsal._lasting.items()}
    assert known == pytest.approx(at_start)


def test_a_memory_that_was_never_drawn_from_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("transformers").propagate = True
    mixing = Smoothed(ReplayRatio(0.0))
    changes = {"mixing": mixing, "sequence": sequence(), "num_labels": 2, "max_steps": 1}
    build(tmp_path, "reservoir, fresh", scores_before=False, **changes).run()
    said = [record.getMessage() for record in caplog.records if "drew nothing" in record.getMessage()]
    assert [text.split("'")[1] for text in said] == ["task_2", "task_3", "task_4"]


@pytest.mark.parametrize("additional", [False, True])
def test_new_samples_left_uncovered_are_told(additional, tmp_path, caplog) -> None:
    logging.getLogger("transformers").propagate = True
    mixing = ReplayRatio("tasks", additional=additional)
    changes = {"mixing": mixing, "sequence": sequence(), "num_labels": 2, "max_steps": -1, "num_train_epochs": 1}
    changes |= {"dataloader_drop_last": True, "batch_size": 3} if additional else {}  # is told of the mixture alone
    run = build(tmp_path, "reservoir, fresh", scores_before=False, **changes)
    run.run()
    said = [record.getMessage() for record in caplog.records if "times on average" in record.getMessage()]
    passes = [table[task.name].sum() / len(task.train) for table, task in zip(counts(run), run.sequence, strict=True)]
    expected = [1.0] * 4 if additional else [1 / number for number in (1, 2, 3, 4)]
    np.testing.assert_allclose(passes, expected, atol=0.1)
    assert [text.split("'")[1] for text in said] == ([] if additional else ["task_2", "task_3", "task_4"])
    assert additional or f"trained on {passes[3]:.2f} times on average in 1 epochs, since mixing=ReplayRatio" in said[2]
