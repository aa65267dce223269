"""Classes numbered apart: the same samples, and a label tells the task."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.sequences import by_column, from_data_sets, number_apart
from tasks.sources import labels_of
from tasks.task import Task, TaskSequence
from tests.tasks.data import Images, data_of, numbered_table, numbers_in

GROUPS = st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=4), min_size=1, max_size=4)


@settings(max_examples=25)
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
    assert apart.names == ("de", "en", "fr")
    assert apart["en"].description == "language = en"
    with pytest.raises(ValueError, match="scenario='domain' needs the same classes in all tasks"):
        by_column(table, table, "language", apart=True)


def test_what_cannot_be_numbered_is_refused() -> None:
    texts = [{"input_ids": torch.arange(4), "labels": torch.arange(4)}] * 3
    with pytest.raises(ValueError, match=r"number_apart: the tasks \['text'\] have no classes"):
        number_apart(TaskSequence((Task("text", texts, texts),), "task"))
    images = Images([0, 1])
    with pytest.raises(TypeError, match="Classes of a Images cannot be numbered anew"):
        number_apart(TaskSequence((Task("images", images, images),), "task"))
