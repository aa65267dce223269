"""Blurred, repeated and gradual tasks: every sample is used once, and shares are exact."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from tasks.sequences import blurry, by_class, gradual, repeated, repeated_at_random
from tasks.task import TaskSequence
from tests.refusals import refused
from tests.tasks.data import numbered_arrays, numbers_in
from tests.tasks.sequences.test_builders import assert_parts_are_whole

SEEDS = st.integers(0, 1000)


def counts_of(sequence: TaskSequence, num_classes: int) -> Any:
    """How many samples of each class are in each task: `[num_tasks, num_classes]`."""
    return np.array([np.bincount(task.train.labels, minlength=num_classes) for task in sequence])


def assert_used_once(sequence: TaskSequence, num_samples: int) -> None:
    """Each training sample is in one task, and tasks are evaluated on all samples of their own classes."""
    assert sorted(number for task in sequence for number in numbers_in(task.train)) == list(range(num_samples))
    assert all(set(task.evaluation.labels) == set(task.classes or ()) for task in sequence)


@settings(max_examples=10)
@given(st.data(), st.integers(1, 6), st.integers(1, 8), SEEDS)
def test_slots_are_shared_out_evenly(data: Any, num_classes: int, num_tasks: int, seed: int) -> None:
    per_task = data.draw(st.integers(-(-num_classes // num_tasks), num_classes))
    sizes = data.draw(st.lists(st.integers(8, 20), min_size=num_classes, max_size=num_classes))
    arrays = numbered_arrays(np.repeat(np.arange(num_classes), sizes))
    sequence = repeated(arrays, arrays, num_tasks, per_task, seed)
    assert_used_once(sequence, sum(sizes))
    assert [len(task.classes or ()) for task in sequence] == [per_task] * num_tasks
    counts = counts_of(sequence, num_classes)
    num_slots = (counts > 0).sum(axis=0)
    assert num_slots.max() - num_slots.min() <= 1
    for label, size in enumerate(sizes):
        own = counts[:, label][counts[:, label] > 0]
        assert set(own) <= {size // len(own), -(-size // len(own))}


@settings(max_examples=10)
@given(st.integers(1, 6), st.integers(1, 7), st.floats(0.05, 1.0), st.floats(0.0, 1.0), SEEDS)
def test_classes_come_back_at_random(num_classes: int, num_tasks: int, first: float, again: float, seed: int) -> None:
    arrays = numbered_arrays(np.repeat(np.arange(num_classes), 10))
    sequence = repeated_at_random(arrays, arrays, num_tasks, first, again, seed)
    assert_used_once(sequence, len(arrays))
    counts = counts_of(sequence, num_classes)
    for own in counts.T:
        assert own[own > 0].max() - own[own > 0].min() <= 1
    if again == 1.0:  # once there, a class stays
        assert all((np.diff((own > 0).astype(int)) >= 0).all() for own in counts.T)


@settings(max_examples=10)
@given(st.integers(1, 5), st.floats(0, 0.99), st.floats(0, 1), st.booleans(), SEEDS)
def test_disjoint_classes_stay(num_tasks: int, overlap: float, disjoint: float, at_random: bool, seed: int) -> None:
    arrays = numbered_arrays(np.repeat(np.arange(7), 24))
    sequence = blurry(arrays, arrays, num_tasks, overlap, seed, disjoint=disjoint, at_random=at_random)
    assert_used_once(sequence, len(arrays))
    counts, num_spread = counts_of(sequence, 7), min(round(24 * overlap), 23) if num_tasks > 1 else 0
    own = np.array([counts[n, label] for n, task in enumerate(sequence) for label in task.classes or ()])
    assert set(own) <= {24, 24 - num_spread}
    if num_spread:
        assert (own == 24).sum() == round(disjoint * 7)
    if not at_random and num_tasks > 1:
        of_others = [counts[n, label] for n, task in enumerate(sequence) for label in set(range(7)) - set(task.classes)]
        assert set(of_others) <= {0, num_spread // (num_tasks - 1), -(-num_spread // (num_tasks - 1))}


@settings(max_examples=10)
@given(st.lists(st.integers(1, 15), min_size=1, max_size=4), st.floats(0.05, 3), st.integers(1, 6), SEEDS)
def test_a_stream_has_the_shares_of_its_gaussians(sizes: list[int], width: float, num_parts: int, seed: int) -> None:
    labels = np.repeat(np.arange(len(sizes)), sizes)
    num_parts, arrays = min(num_parts, len(labels)), numbered_arrays(labels)
    parts = gradual(by_class(arrays, arrays, 1), num_parts, width, seed)
    assert_parts_are_whole(parts, len(labels), len(labels))
    assert {len(part.train) for part in parts} <= {len(labels) // num_parts, -(-len(labels) // num_parts)}
    for seen in np.cumsum(counts_of(parts, len(sizes)), axis=0):
        # A time at which each task has given its share of the samples, up to one.
        known = torch.tensor((np.stack([seen - 0.5, seen + 0.5]) / sizes).clip(0, 1))
        earliest, latest = np.arange(len(sizes)) + width * torch.special.ndtri(known).numpy()
        assert earliest.max() <= latest.min() + 1e-6


def test_width_leads_from_one_task_after_the_other_to_a_mixture() -> None:
    arrays = numbered_arrays(np.repeat(np.arange(4), 10))
    tasks = by_class(arrays, arrays, 1)
    apart = counts_of(gradual(tasks, 4, 0.0, seed=0), 4)
    np.testing.assert_array_equal(apart, 10 * np.eye(4))
    middle = counts_of(gradual(tasks, 4, 0.6, seed=0), 4)
    assert (middle.argmax(axis=1) == np.arange(4)).all()
    assert middle[0, 1] > 0 == middle[0, 3]
    assert counts_of(gradual(tasks, 4, 1e6, seed=0), 4).max() <= 3


ARRAYS = numbered_arrays(np.repeat(np.arange(3), 4))


@pytest.mark.parametrize(
    ("build", "option"),
    [
        (lambda: repeated(ARRAYS, ARRAYS, 2, 1, seed=0), "num_tasks"),
        (lambda: repeated(ARRAYS, ARRAYS, 5, 3, seed=0), "num_tasks"),
        (lambda: repeated(ARRAYS, ARRAYS, 2, 4, seed=0), "repeated: classes_per_task"),
        (lambda: repeated_at_random(ARRAYS, ARRAYS, 2, 1.0, {0: 1.0}, seed=0), "repetition"),
        (lambda: gradual(by_class(ARRAYS, ARRAYS, 1), 13, 0.5, seed=0), "gradual: num_parts (for train)"),
    ],
)
def test_what_cannot_be_shared_out_is_refused(build: Any, option: str) -> None:
    with refused(option):
        build()


def test_seeds_give_the_same_protocols_on_every_machine() -> None:
    assert [task.classes for task in repeated(ARRAYS, ARRAYS, 3, 2, seed=7)] == [(1, 2), (0, 2), (0, 1)]
    assert [task.classes for task in repeated_at_random(ARRAYS, ARRAYS, 3, 0.5, 0.5, seed=7)] == [(2,), (2,), (0, 1, 2)]
    parts = gradual(by_class(ARRAYS, ARRAYS, 1), 3, 0.5, seed=7)
    assert [numbers_in(part.train) for part in parts] == [[0, 2, 3, 7], [1, 4, 6, 10], [5, 8, 9, 11]]
