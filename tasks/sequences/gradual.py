"""Tasks that flow into each other without boundaries: the Gaussian schedule (Shanahan et al. 2021, arXiv:2105.13327).

A learner without task boundaries (Aljundi et al. 2019, arXiv:1812.03596) sees a stream whose mixture changes slowly.
"""

from typing import Any

import numpy as np
import torch

from mixer.utils.arrays import Int64Array
from mixer.utils.data_set import DataSet
from mixer.utils.ranges import check_range
from tasks.sequences.by_class import by_class
from tasks.sequences.data_sets import pick
from tasks.sequences.derived import joined
from tasks.sequences.parts import check_between, check_seed
from tasks.task import Task, TaskSequence


def gradual(sequence: TaskSequence, num_parts: int, width: float, seed: int) -> TaskSequence:
    """Turns tasks into a stream whose mixture shifts slowly from one task to the next, cut into equal parts.

    The samples of task k come at the times of a Gaussian around k: the stream has exactly those shares, up to one
    sample. Every sample is in exactly one part. What is evaluated on is spread in the same way, so that a part is
    evaluated on the mixture that it is trained on.

    Args:
        sequence: The tasks, of any kind.
        num_parts: Number of parts, which take the place of tasks: samples are shuffled within a part, and scores are
            taken between parts.
        width: Standard deviation of the Gaussian, in tasks: 0 keeps the tasks apart, 0.5 lets neighbours overlap,
            a width of several tasks mixes all.
        seed: Seed of the order of a task's samples.

    Returns:
        The sequence, boundary-free.

    Raises:
        ValueError: If there are more parts than samples, or the width is no number of 0 or more.

    Example:
        >>> from tasks.sequences import by_class
        >>> from tasks.sources import digits
        >>> gradual(by_class(*digits(), 2), num_parts=20, width=0.5, seed=0).names[-1]
        'part_20'
    """
    check_seed("gradual: seed", seed)
    check_range("gradual: width", width, 0.0, float("inf"), "0.5 lets neighbours overlap")
    parts = {}
    (whole,) = joined(sequence)
    for called, data in (("train", whole.train), ("evaluation", whole.evaluation)):
        check_between(f"gradual: num_parts (for {called})", num_parts, len(data), "samples")
        sizes = [len(getattr(task, called)) for task in sequence]
        order = _stream(sizes, float(width), np.random.default_rng((seed, int(called == "train"))))
        parts[called] = [(pick(data, np.sort(part)), _counts(part, sizes)) for part in np.array_split(order, num_parts)]
    pairs = zip(parts["train"], parts["evaluation"], strict=True)
    return TaskSequence(
        tuple(
            Task(f"part_{number}", train, evaluation, description=_describe(sequence, counts))
            for number, ((train, counts), (evaluation, _)) in enumerate(pairs, 1)
        ),
        "free",
    )


def gradual_by_class(
    train: DataSet, evaluation: DataSet, num_parts: int, width: float, seed: int, classes_per_task: int = 1
) -> TaskSequence:
    """Turns classes into a stream that shifts from each to the next; see `gradual`.

    Args:
        train: A labelled data set.
        evaluation: Another, of the same classes.
        num_parts: Number of parts.
        width: Standard deviation of a task's Gaussian, in tasks.
        seed: Seed of the order of samples; classes go by their numbers.
        classes_per_task: Number of classes that come together.

    Returns:
        The sequence, boundary-free.

    Raises:
        ValueError: As `by_class` and `gradual`.
    """
    return gradual(by_class(train, evaluation, classes_per_task), num_parts, width, seed)


def _stream(sizes: list[int], width: float, generator: np.random.Generator) -> Int64Array:
    """Orders the samples of tasks that are joined one behind the other, int64 `[num_samples]`, by their times."""
    times, indices, start = [], [], 0
    for number, size in enumerate(sizes):
        quantiles = torch.special.ndtri((torch.arange(size, dtype=torch.float64) + 0.5) / size).numpy()
        times.append(number + width * quantiles)
        indices.append(start + generator.permutation(size))
        start += size
    # Rounded, so that equal times are equal on every machine; the earlier task comes first then.
    order = np.argsort(np.concatenate(times).round(9), kind="stable")
    return np.concatenate(indices)[order]


def _counts(part: Int64Array, sizes: list[int]) -> Any:
    """Counts the samples of each task, int64 `[num_tasks]`."""
    return np.bincount(np.searchsorted(np.cumsum(sizes), part, side="right"), minlength=len(sizes))


def _describe(sequence: TaskSequence, counts: Any) -> str:
    return ", ".join(f"{count} of {name}" for name, count in zip(sequence.names, counts, strict=True) if count)
