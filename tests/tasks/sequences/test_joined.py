from typing import Any

import numpy as np
import pytest
from torch.utils.data import ConcatDataset, Subset

from tasks.sequences import Joined, by_class, from_data_sets, joined, permuted
from tasks.sources import labels_of
from tasks.task import Task, TaskSequence
from tests.tasks.data import assert_columns_are_samples, data_of, numbered_arrays, numbers_in

LABELS = [0, 2, 1, 1, 0, 2, 2, 3, 1]


@pytest.mark.parametrize("kind", ["arrays", "table", "images"])
def test_all_samples_of_all_tasks_are_in_one(kind: str) -> None:
    data = data_of(kind, LABELS)
    apart = by_class(data, data, 2)
    one = joined(apart)
    assert (one.names, one.scenario, one["all"].classes) == (("all",), "class", (0, 1, 2, 3))
    expected = [number for task in apart for number in numbers_in(task.train)]
    together = one["all"].train
    found = [together[index][0] for index in range(len(together))] if kind == "images" else numbers_in(together)
    assert found == expected
    assert sorted(expected) == list(range(len(LABELS)))
    assert len(one["all"].evaluation) == len(LABELS)
    assert labels_of(one["all"].train).tolist() == [LABELS[number] for number in expected]


def test_columns_are_stacked_samples_whatever_part_they_are_of() -> None:
    data = numbered_arrays(LABELS)
    together = joined(permuted(data, data, 3, seed=0), "offline")["offline"].train
    assert isinstance(together, Joined)
    assert len(together) == 3 * len(LABELS)
    assert_columns_are_samples(together)
    assert together.read_columns(np.zeros(0, np.int64))["labels"].shape == (0,)
    with pytest.raises(IndexError, match="There are 27 samples"):
        together[27]


def test_parts_of_several_kinds() -> None:
    arrays = numbered_arrays([0, 1])
    parts: list[Any] = [arrays, Subset(numbered_arrays([2, 3, 2]), [1, 0])]
    sequence = TaskSequence(tuple(Task(f"t{number}", part, part) for number, part in enumerate(parts)))
    together = joined(sequence)["all"].train
    assert isinstance(together, ConcatDataset)
    assert [int(together[index]["labels"]) for index in range(4)] == [0, 1, 3, 2]
    assert labels_of(together).tolist() == [0, 1, 3, 2]


def test_parts_without_labels() -> None:
    parts = [ConcatDataset([[{"x": 0}, {"x": 1}]]), Subset([{"x": 2}], [0])]
    together = joined(from_data_sets({str(number): (part, part) for number, part in enumerate(parts)}, "free"))["all"]
    assert together.classes is None
    assert [sample["x"] for sample in together.train] == [0, 1, 2]
