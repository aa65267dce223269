"""Sequences made of others: all tasks in one, and classes numbered apart."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from tasks.sequences import by_class, by_column, from_data_sets, held_out_of_training, joined, number_apart, permuted
from tasks.sources import labels_of
from tasks.task import Task, TaskSequence
from tests.refusals import refused
from tests.tasks.data import assert_columns_are_samples, data_of, numbered_arrays, numbered_table, numbers_in

LABELS = [0, 2, 1, 1, 0, 2, 2, 3, 1]
GROUPS = st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=4), min_size=1, max_size=4)


@pytest.mark.parametrize("kind", ["arrays", "table", "images"])
def test_all_samples_of_all_tasks_are_in_one(kind: str) -> None:
    data = data_of(kind, LABELS)
    apart = by_class(data, data, 2)
    whole = joined(apart)
    assert (whole.names, whole.scenario, whole["all"].classes) == (("all",), "class", (0, 1, 2, 3))
    expected = [number for task in apart for number in numbers_in(task.train)]
    together = whole["all"].train
    found = [together[index][0] for index in range(len(together))] if kind == "images" else numbers_in(together)
    assert found == expected
    assert sorted(expected) == list(range(len(LABELS)))
    assert len(whole["all"].evaluation) == len(LABELS)
    assert labels_of(whole["all"].train).tolist() == [LABELS[number] for number in expected]


def test_columns_are_stacked_samples_whatever_part_they_are_of() -> None:
    data = numbered_arrays(LABELS)
    together = joined(permuted(data, data, 3, seed=0), "offline")["offline"].train
    assert len(together) == 3 * len(LABELS)
    assert_columns_are_samples(together)
    assert together.read_columns(np.zeros(0, np.int64))["labels"].shape == (0,)


@settings(max_examples=10)
@given(GROUPS, st.sampled_from(["arrays", "table"]))
def test_labels_tell_task_and_class(groups: list[list[int]], kind: str) -> None:
    data = {f"task {number}": data_of(kind, labels) for number, labels in enumerate(groups)}
    before = from_data_sets({name: (part, part) for name, part in data.items()}, "free")
    after = number_apart(before)
    assert after.scenario == "task"
    assert [label for task in after for label in task.classes or ()] == list(range(after.num_classes))
    for old, new in zip(before, after, strict=True):
        numbers = dict(zip(old.classes or (), new.classes or (), strict=True))
        for part in ("train", "evaluation"):
            assert numbers_in(getattr(new, part)) == numbers_in(getattr(old, part))
            labels = labels_of(getattr(old, part))
            assert labels is not None
            assert [numbers[label] for label in labels.tolist()] == list(labels_of(getattr(new, part)))  # type: ignore[arg-type]


def test_by_column_can_do_it() -> None:
    table = numbered_table([0, 1, 2, 0, 2, 1], language=["de", "de", "en", "en", "fr", "fr"])
    shared = by_column(table, table, "language", scenario="task")
    assert [task.classes for task in shared] == [(0, 1), (0, 2), (1, 2)]
    apart = by_column(table, table, "language", scenario="task", apart=True)
    assert [task.classes for task in apart] == [(0, 1), (2, 3), (4, 5)]
    assert [task.train["label"][:] for task in apart] == [[0, 1], [3, 2], [5, 4]]
    texts = [{"input_ids": torch.arange(4), "labels": torch.arange(4)}] * 3
    with refused("sequence"):
        number_apart(TaskSequence((Task("text", texts, texts),), "task"))


@pytest.mark.parametrize("kind", ["arrays", "table"])
def test_strengths_are_judged_by_samples_held_out_of_training(kind: str) -> None:
    train, evaluation = data_of(kind, [0, 1, 2, 3, 4, 5] * 10), data_of(kind, [0, 1, 2, 3, 4, 5])
    whole = by_class(train, evaluation, 2)
    first = held_out_of_training(whole, 2)
    assert (first.names, first.scenario) == (whole.names[:2], "class")
    for task, own in zip(first, whole, strict=False):
        kept, held = numbers_in(task.train), numbers_in(task.evaluation)
        assert sorted(kept + held) == numbers_in(own.train)  # each once, and none of another set
        assert np.bincount(labels_of(task.evaluation)).tolist()[-2:] == [2, 2]  # a fifth of each class
        assert numbers_in(held_out_of_training(whole, 2)[task.name].evaluation) == held
    with refused("num_tasks"):
        held_out_of_training(whole, 4)


def test_a_sample_of_several_tasks_is_held_out_of_all() -> None:
    data = numbered_arrays([0, 1] * 10)
    first, second = held_out_of_training(permuted(data, data, 3, seed=0), 2)
    held = [{tuple(sorted(row["pixel_values"].tolist())) for row in task.evaluation} for task in (first, second)]
    trained = {tuple(sorted(row["pixel_values"].tolist())) for row in second.train}
    assert held[0] == held[1]
    assert not held[0] & trained
