from typing import Any

import numpy as np
import pytest
import torch

from mixer import Stream
from tasks.sequences import Transformed
from tasks.sources import Arrays
from tasks.task import Task, TaskSequence
from tasks.text_domains import ByteBlocks
from tests.tasks.data import Images, numbered_arrays, numbered_table


def task(name: Any, labels: list[int], classes: tuple[int, ...] | None = None) -> Task:
    return Task(name, numbered_arrays(labels), numbered_arrays(labels), classes)


def test_classes_are_those_of_the_training_data_unless_promised() -> None:
    assert task("a", [3, 1, 3]).classes == (1, 3)
    assert task("a", [3, 1, 3], (3, 1)).classes == (3, 1)
    assert Task("a", Images([2, 0]), Images([0])).classes == (0, 2)
    nan = Arrays(torch.full((2, 3), torch.nan), [0, 1])
    assert Task("a", nan, nan).classes == (0, 1)  # NaN is the same as itself
    blocks = ByteBlocks(np.zeros((4, 8), dtype=np.uint8))
    text = Task("text", blocks, blocks)
    assert text.classes is None
    assert Stream(text.name, text.train).num_samples == 4
    with pytest.raises(ValueError, match=r"\['text'\] have no classes"):
        _ = TaskSequence((text,), "domain").num_classes


def test_a_sequence_is_indexed_by_number_name_and_slice_and_knows_the_classes_seen() -> None:
    sequence = TaskSequence((task("a", [0, 1]), task("b", [5, 2]), task("c", [1, 3])), "class")
    assert sequence[1] is sequence["b"] is sequence[-2]
    assert sequence[:2].names == ("a", "b")
    with pytest.raises(KeyError, match=r"no task 'd'; the tasks are \['a', 'b', 'c'\]"):
        sequence["d"]
    assert [sequence.classes_seen(after) for after in range(3)] == [(0, 1), (0, 1, 2, 5), (0, 1, 2, 3, 5)]
    assert sequence.num_classes == 6
    with pytest.raises(IndexError, match="one of 3 tasks, counted from 0, got -1"):
        sequence.classes_seen(-1)


NAME = "needs a name of printable characters, not empty and without '/'"
WORDS = numbered_table(["yes", "no"])
REFUSED: list[tuple[Any, str]] = [
    (lambda: task("", [0]), NAME),
    (lambda: task("a/b", [0]), NAME),
    (lambda: task(3, [0]), NAME),
    (lambda: Task("a", numbered_arrays([0]), numbered_arrays([])), "Task 'a': evaluation is empty"),
    (lambda: Task("a", iter([1]), numbered_arrays([0])), "'a': train must be a data set with __len__ and __getitem__"),
    (lambda: task("a", [0, 1], (0, 1, 4)), r"'a': train has no example of the promised classes \[4\]"),
    (lambda: Task("a", numbered_table([0, 1]), numbered_table([0]), (0, 1)), r"evaluation has no .* classes \[1\]"),
    (lambda: task("a", [0, 1], (1, 1)), "must name each label once"),
    (lambda: Task("a", WORDS, WORDS, (0, 1)), "are promised, but train has no whole number as a label"),
    (lambda: task("a", [-1, 0]), "classes are numbered from 0, got -1"),
    (lambda: TaskSequence((), "class"), "at least one task, got none"),
    (lambda: TaskSequence((task("a", [0]), task("a", [1])), "class"), r"be unique, these come twice: \['a'\]"),
    (lambda: TaskSequence((task("a", [0]),), "new"), r"one of \['class', 'domain', 'task', 'free'\], got 'new'"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("make", "match"), REFUSED)
def test_what_makes_no_task_and_no_sequence(make: Any, match: str) -> None:
    with pytest.raises((ValueError, TypeError), match=match):
        make()


def test_classes_have_to_fit_the_scenario() -> None:
    tasks = (task("a", [0, 1]), task("b", [0, 1]), task("c", [2, 3]))
    with pytest.raises(ValueError, match=r"'a' \[0, 1\], 'c' \[2, 3\]\. Say scenario='class' .* scenario='task'"):
        TaskSequence(tasks, "domain")
    assert all(len(TaskSequence(tasks, scenario)) == 3 for scenario in ("class", "task", "free"))  # type: ignore[arg-type]
    mixed = Task("a", numbered_arrays([0, 1, 2]), numbered_arrays([0, 1]), (0, 1))
    with pytest.raises(ValueError, match=r"Task 'a': train has the labels \[2\] beside its classes \[0, 1\]"):
        TaskSequence((mixed,), "class")
    assert TaskSequence((mixed,), "free").num_classes == 3
    assert mixed.labels_trained_on == (0, 1, 2)


def test_a_transform_that_is_not_the_same_twice_is_refused() -> None:
    data, own = numbered_arrays([0, 1], num_features=50), np.random.default_rng(0)
    redrawn: Any = lambda inputs: inputs[:, torch.from_numpy(own.permutation(50))]  # noqa: E731
    for transform in (lambda inputs: inputs + torch.rand_like(inputs), redrawn):
        with pytest.raises(ValueError, match="Task 'a': evaluation: sample 0 was another when it was read again"):
            Task("a", data, Transformed(data, transform))
    table = numbered_table([0, 1])
    table.set_transform(lambda rows: {**rows, "noise": [torch.rand(3) for _ in rows["label"]]})
    with pytest.raises(ValueError, match="Task 'a': train: sample 0 was another"):
        Task("a", table, table)
