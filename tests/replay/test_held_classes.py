"""Counting a buffer's entries by class, for the ledger."""

from collections import Counter
from pathlib import Path
from typing import Any

import datasets
import pytest

from replay import ReplayBuffer
from replay.memory.held_classes import HeldClasses
from replay.storage.sources import Sources


def table(labels: list[Any]) -> datasets.Dataset:
    return datasets.Dataset.from_dict({"number": list(range(len(labels))), "label": labels})


def held(buffer: ReplayBuffer, labels: list[int]) -> dict[int, int]:
    return dict(Counter(labels[buffer[slot]["number"]] for slot in range(len(buffer))))


@pytest.mark.parametrize("selection", ["ClassBalanced", "Reservoir"])
def test_entries_are_counted_as_they_come_and_go(selection: str) -> None:
    labels = [number // 12 for number in range(60)]
    data, buffer, classes = table(labels), ReplayBuffer(4, selection, seed=1), HeldClasses()
    for start in range(0, 60, 12):
        buffer.remember("data", data, range(start, start + 12))
        counted = classes.count(buffer)
        assert {label: count for label, count in counted.items() if count} == held(buffer, labels)
        assert sum(counted.values()) == len(buffer) == 4
        assert list(counted) == sorted(counted)
    assert 0 in counted.values()  # of a class that is gone


def test_the_class_of_an_entry_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read, labels = [], Sources.labels

    def noted(self: Sources, where: Any, column: str | None = None) -> Any:
        read.append(len(where))
        return labels(self, where, column)

    monkeypatch.setattr(Sources, "labels", noted)
    data, buffer, classes = table([5] * 24), ReplayBuffer(8, seed=0), HeldClasses()
    buffer.remember("data", data, range(4))
    assert (classes.count(buffer), classes.count(buffer)) == ({5: 4}, {5: 4})
    before = set(buffer.entries["number"].tolist())
    buffer.remember("data", data, range(4, 24))
    assert classes.count(buffer) == {5: 8}
    assert read == [4, len(set(buffer.entries["number"].tolist()) - before)]


@pytest.mark.parametrize("labels", [["a", "b"], [[1, 2], [3]], [0.5, 1.5]])
def test_what_has_no_classes_is_not_counted(labels: list[Any]) -> None:
    buffer, classes = ReplayBuffer(2), HeldClasses()
    buffer.remember("data", table(labels))
    assert (classes.count(buffer), classes.count(buffer)) == ({}, {})


def test_samples_that_are_copied_are_counted_where_the_selection_knows_them(tmp_path: Path) -> None:
    for selection, expected in (("Reservoir", {}), ("ClassBalanced", {0: 1, 1: 1})):
        buffer = ReplayBuffer(2, selection, "memory")
        buffer.remember("data", table([0, 1]))
        assert HeldClasses().count(buffer) == expected


def test_numbers_that_are_no_classes_do_not_fill_the_ledger() -> None:
    buffer = ReplayBuffer(1001)
    buffer.remember("data", table(list(range(1001))))
    assert HeldClasses().count(buffer) == {}


def test_an_empty_buffer_has_no_classes() -> None:
    buffer = ReplayBuffer(3)
    buffer.remember("data", table([0, 1]), [])
    assert HeldClasses().count(buffer) == {}
