import random
import re

import numpy as np
import pytest
import torch

from mixer import Stream
from mixer.utils.random_state import RandomState
from tasks.sequences import Transformed
from tasks.sources import Arrays
from tasks.sources.checks import find_unrepeatable
from tasks.task import Task, TaskSequence
from tasks.text_domains import python_source
from tests.tasks.data import Images, numbered_arrays, numbered_table


def task(name: str, labels: list[int], classes: tuple[int, ...] | None = None) -> Task:
    return Task(name, numbered_arrays(labels), numbered_arrays(labels), classes)


def test_classes_are_those_of_the_training_data_unless_promised() -> None:
    assert task("a", [3, 1, 3]).classes == (1, 3)
    assert task("a", [3, 1, 3], (3, 1)).classes == (3, 1)
    assert Task("a", Images([2, 0]), Images([0])).classes == (0, 2)


def test_text_without_classes_is_a_task() -> None:
    blocks = python_source(20, 5, 16)
    learnt = Task("python", blocks["train"], blocks["validation"])
    assert learnt.classes is None
    sequence = TaskSequence((learnt,), "domain")
    with pytest.raises(ValueError, match=r"\['python'\] have no classes"):
        _ = sequence.num_classes


def test_a_task_is_a_stream() -> None:
    learnt = task("first", [0, 1])
    assert Stream(learnt.name, learnt.train).num_samples == 2


def test_a_sequence_is_indexed_by_number_name_and_slice() -> None:
    sequence = TaskSequence((task("a", [0, 1]), task("b", [5, 2]), task("c", [1, 3])), "class")
    assert (len(sequence), sequence.names) == (3, ("a", "b", "c"))
    assert [item.name for item in sequence] == ["a", "b", "c"]
    assert sequence[1] is sequence["b"] is sequence[-2]
    assert sequence[:2].names == ("a", "b")
    with pytest.raises(KeyError, match=r"no task 'd'; the tasks are \['a', 'b', 'c'\]"):
        sequence["d"]


def test_classes_seen_grow_and_a_head_has_room_for_all_labels() -> None:
    sequence = TaskSequence((task("a", [0, 1]), task("b", [5, 2]), task("c", [1, 3])), "class")
    assert [sequence.classes_seen(after) for after in range(3)] == [(0, 1), (0, 1, 2, 5), (0, 1, 2, 3, 5)]
    assert sequence.num_classes == 6
    for after in (-1, 3):
        with pytest.raises(IndexError, match=f"one of 3 tasks, counted from 0, got {after}"):
            sequence.classes_seen(after)


@pytest.mark.parametrize("name", ["", " ", "a/b", 3])
def test_a_name_must_do_for_a_stream(name: object) -> None:
    with pytest.raises(ValueError, match="needs a name of printable characters, not empty and without '/'"):
        task(name, [0])  # type: ignore[arg-type]


def test_an_empty_part_is_named() -> None:
    with pytest.raises(ValueError, match="Task 'a': evaluation is empty"):
        Task("a", numbered_arrays([0]), numbered_arrays([]))
    with pytest.raises(TypeError, match="Task 'a': train must be a data set with __len__ and __getitem__, got a gener"):
        Task("a", (number for number in range(3)), numbered_arrays([0]))


def test_a_promised_class_without_examples_is_named() -> None:
    with pytest.raises(ValueError, match=r"Task 'a': train has no example of the promised classes \[4\]"):
        task("a", [0, 1], (0, 1, 4))
    with pytest.raises(ValueError, match=r"Task 'a': evaluation has no example of the promised classes \[1\]"):
        Task("a", numbered_table([0, 1]), numbered_table([0]), (0, 1))


@pytest.mark.parametrize("classes", [(), (1, 1)])
def test_a_promise_names_each_class_once(classes: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="must name each label once"):
        task("a", [0, 1], classes)


def test_a_promise_without_labels_is_refused() -> None:
    words = numbered_table(["yes", "no"])
    with pytest.raises(ValueError, match="are promised, but train has no whole number as a label"):
        Task("a", words, words, (0, 1))


def test_negative_classes_are_refused() -> None:
    with pytest.raises(ValueError, match="classes are numbered from 0, got -1"):
        task("a", [-1, 0])


def _noise(inputs: torch.Tensor) -> torch.Tensor:
    return inputs + torch.rand_like(inputs)


class _Redrawn:
    """Draws a permutation at each call from a generator of its own: what libraries did in every worker."""

    def __init__(self) -> None:
        self.generator = np.random.default_rng(0)

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs[:, torch.from_numpy(self.generator.permutation(inputs.shape[1]))]


@pytest.mark.parametrize("transform", [_noise, _Redrawn()])
def test_a_transform_that_is_not_the_same_twice_is_refused(transform: object) -> None:
    data = numbered_arrays([0, 1], num_features=50)
    changing = Transformed(data, transform)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="Task 'a': evaluation: sample 0 was another when it was read again"):
        Task("a", data, changing)


class _Flipped:
    """Flips every other sample or so; puts the generators back afterwards if asked to."""

    def __init__(self, count: int, puts_back: bool):
        self.rows, self.puts_back = torch.arange(2 * count).reshape(count, 2), puts_back

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        state = RandomState.capture()
        is_flipped = torch.rand(()) < 0.5
        if self.puts_back:
            state.restore()
        return {"row": self.rows[index].flip(0) if is_flipped else self.rows[index], "labels": torch.tensor(0)}


@pytest.mark.parametrize("count", [1, 3, 50])
@pytest.mark.parametrize("puts_back", [True, False])
def test_a_flip_of_every_other_sample_is_found_and_generators_are_left_alone(count: int, puts_back: bool) -> None:
    for seed in range(20):
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        state = RandomState.capture()
        with pytest.raises(ValueError, match=r"Task 'a': train: sample \d+ was another when it was read again"):
            Task("a", _Flipped(count, puts_back), numbered_arrays([0]))
        assert state.is_current()


def test_few_samples_are_read_again() -> None:
    class Counting(Arrays):
        num_read = 0

        def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
            Counting.num_read += 1
            return super().__getitem__(index)

    assert find_unrepeatable(Counting(np.zeros((1000, 2)), np.zeros(1000, dtype=int))) is None
    assert Counting.num_read == 24


def test_a_table_with_a_random_transform_is_refused() -> None:
    table = numbered_table([0, 1])
    table.set_transform(lambda rows: {**rows, "noise": [torch.rand(3) for _ in rows["label"]]})
    with pytest.raises(ValueError, match="Task 'a': train: sample 0 was another"):
        Task("a", table, table)


def test_looking_at_samples_leaves_generators_alone() -> None:
    state = torch.get_rng_state()
    with pytest.raises(ValueError, match="was another"):
        Task("a", Transformed(numbered_arrays([0]), _noise), numbered_arrays([0]))
    assert torch.equal(torch.get_rng_state(), state)


def test_nan_is_the_same_as_itself() -> None:
    data = Arrays(torch.full((2, 3), torch.nan), [0, 1])
    assert Task("a", data, data).classes == (0, 1)


def test_what_does_not_make_a_sequence() -> None:
    with pytest.raises(ValueError, match="at least one task, got none"):
        TaskSequence((), "class")
    with pytest.raises(ValueError, match=r"Names of tasks must be unique, these come twice: \['a'\]"):
        TaskSequence((task("a", [0]), task("a", [1])), "class")
    with pytest.raises(ValueError, match=re.escape("one of ['class', 'domain', 'task', 'free'], got 'classes'")):
        TaskSequence((task("a", [0]),), "classes")  # type: ignore[arg-type]


def test_other_classes_in_a_domain_are_refused_with_the_way_out() -> None:
    tasks = (task("a", [0, 1]), task("b", [0, 1]), task("c", [2, 3]))
    with pytest.raises(ValueError, match=r"'a' \[0, 1\], 'c' \[2, 3\]\. Say scenario='class' .* scenario='task'"):
        TaskSequence(tasks, "domain")
    for scenario in ("class", "task", "free"):
        assert len(TaskSequence(tasks, scenario)) == 3


def test_labels_beside_the_promised_classes_are_for_free_sequences_only() -> None:
    mixed = Task("a", numbered_arrays([0, 1, 2]), numbered_arrays([0, 1]), (0, 1))
    with pytest.raises(ValueError, match=r"Task 'a': train has the labels \[2\] beside its classes \[0, 1\]"):
        TaskSequence((mixed,), "class")
    assert TaskSequence((mixed,), "free").num_classes == 3
    assert mixed.labels_trained_on == (0, 1, 2)
