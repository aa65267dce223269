"""Permuted inputs (Goodfellow et al. 2013; Chaudhry et al. 2019; Buzzega et al. 2020)."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mixer.policies.shared.ranges import check_count
from tasks.sequences.data_sets import Transformed, find_inputs, first_row
from tasks.sequences.parts import check_filled, check_seed, pick_some
from tasks.task import Task, TaskSequence


class Permutation:
    """Brings the features of each sample into another order, the same for all.

    Args:
        seed: Seed of the order, or several numbers that make one.
        num_features: Number of features of a sample.

    Raises:
        ValueError: If there is no feature.

    Example:
        >>> bool((Permutation(0, 5)(torch.arange(5).reshape(1, 5)).sort().values == torch.arange(5)).all())
        True
    """

    def __init__(self, seed: int | Sequence[int], num_features: int):
        if num_features < 1:
            raise ValueError(f"Permutation: num_features must be 1 or more, got {num_features}.")
        self.order = torch.from_numpy(np.random.default_rng(seed).permutation(num_features))

    def __call__(self, inputs: Tensor) -> Tensor:
        """Permutes.

        Args:
            inputs: `[count, ...]` with `num_features` entries a sample.

        Returns:
            The same shape.

        Raises:
            ValueError: If a sample has another number of features.
        """
        flat = inputs.flatten(1)
        if flat.shape[1] != len(self.order):
            raise ValueError(f"This Permutation is of {len(self.order)} features, got inputs with {flat.shape[1]}.")
        return flat.index_select(1, self.order).reshape(inputs.shape)


def permuted(
    train: Any,
    evaluation: Any,
    num_tasks: int,
    seed: int,
    *,
    samples_per_task: int | None = None,
    first_is_identity: bool = True,
    input_name: str | None = None,
) -> TaskSequence:
    """Gives each task the same data with its features in an order of its own.

    Args:
        train: A data set that is read by columns.
        evaluation: Another.
        num_tasks: Number of tasks.
        seed: Seed of the orders and of what is drawn.
        samples_per_task: Number of training samples of a task, drawn for each anew; `None` takes all.
        first_is_identity: Whether the first task has the data as they are.
        input_name: Column of the inputs; `None` takes the only one beside the labels.

    Returns:
        The sequence, domain-incremental.

    Raises:
        ValueError: If there is no task, no sample, fewer samples than asked for, no such column or no such seed.
        TypeError: If data are not read by columns.
    """
    check_count("permuted: num_tasks", num_tasks, 1, "5 to 20 are usual")
    check_seed("permuted: seed", seed)
    check_filled(train, "permuted: train")
    column = find_inputs(train, input_name)
    num_features = math.prod(first_row(train)[column].shape[1:])

    def make(number: int) -> Task:
        own = pick_some(train, samples_per_task, (seed, number, 1))
        name, description = f"task_{number + 1}", f"{column} permuted by seed {seed}, {number}"
        if number == 0 and first_is_identity:
            return Task(name, own, evaluation, description=f"{column} as they are")
        permutation = Permutation((seed, number, 0), num_features)
        parts = [Transformed(part, permutation, column) for part in (own, evaluation)]
        return Task(name, parts[0], parts[1], description=description)

    return TaskSequence(tuple(make(number) for number in range(num_tasks)), "domain")
