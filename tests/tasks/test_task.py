from typing import Any

import numpy as np
import pytest
import torch

from mixer import Stream
from mixer.utils.errors import ErrorFacts
from tasks.sequences import Transformed
from tasks.sources import Arrays
from tasks.task import Task, TaskSequence
from tasks.text_domains import ByteBlocks
from tests.refusals import refused
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
    with refused("tasks"):
        _ = TaskSequence((text,), "domain").num_classes


def test_a_sequence_is_indexed_by_number_name_and_slice_and_knows_the_classes_seen() -> None:
    sequence = TaskSequence((task("a", [0, 1]), task("b", [5, 2]), task("c", [1, 3])), "class")
    assert sequence[1] is sequence["b"] is sequence[-2]
    assert sequence[:2].names == ("a", "b")
    with pytest.raises(KeyError):
        sequence["d"]
    assert [sequence.classes_seen(after) for after in range(3)] == [(0, 1), (0, 1, 2, 5), (0, 1, 2, 3, 5)]
    assert sequence.num_classes == 6
    with pytest.raises(IndexError):
        sequence.classes_seen(-1)


WORDS = numbered_table(["yes", "no"])
REFUSED: list[tuple[Any, str]] = [
    (lambda: task("", [0]), "name"),
    (lambda: task("a/b", [0]), "name"),
    (lambda: task(3, [0]), "name"),
    (lambda: Task("a", numbered_arrays([0]), numbered_arrays([])), "evaluation"),
    (lambda: Task("a", iter([1]), numbered_arrays([0])), "Task 'a': train"),
    (lambda: task("a", [0, 1], (0, 1, 4)), "classes"),
    (lambda: Task("a", numbered_table([0, 1]), numbered_table([0]), (0, 1)), "classes"),
    (lambda: task("a", [0, 1], (1, 1)), "classes"),
    (lambda: Task("a", WORDS, WORDS, (0, 1)), "classes"),
    (lambda: task("a", [-1, 0]), "classes"),
    (lambda: TaskSequence((), "class"), "tasks"),
    (lambda: TaskSequence((task("a", [0]), task("a", [1])), "class"), "tasks"),
    (lambda: TaskSequence((task("a", [0]),), "new"), "scenario"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("make", "option"), REFUSED)
def test_what_makes_no_task_and_no_sequence(make: Any, option: str) -> None:
    with refused(option, ErrorFacts):
        make()


def test_classes_have_to_fit_the_scenario() -> None:
    tasks = (task("a", [0, 1]), task("b", [0, 1]), task("c", [2, 3]))
    with refused("scenario"):
        TaskSequence(tasks, "domain")
    assert all(len(TaskSequence(tasks, scenario)) == 3 for scenario in ("class", "task", "free"))  # type: ignore[arg-type]
    mixed = Task("a", numbered_arrays([0, 1, 2]), numbered_arrays([0, 1]), (0, 1))
    with refused("classes"):
        TaskSequence((mixed,), "class")
    assert TaskSequence((mixed,), "free").num_classes == 3
    assert mixed.labels_trained_on == (0, 1, 2)


def test_a_transform_that_is_not_the_same_twice_is_refused() -> None:
    data, own = numbered_arrays([0, 1], num_features=50), np.random.default_rng(0)
    redrawn: Any = lambda inputs: inputs[:, torch.from_numpy(own.permutation(50))]  # noqa: E731
    for transform in (lambda inputs: inputs + torch.rand_like(inputs), redrawn):
        with refused("evaluation"):
            Task("a", data, Transformed(data, transform))
    table = numbered_table([0, 1])
    table.set_transform(lambda rows: {**rows, "noise": [torch.rand(3) for _ in rows["label"]]})
    with refused("train"):
        Task("a", table, table)
