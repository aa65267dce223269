"""Tasks with rotated images (Lopez-Paz and Ranzato 2017)."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tasks.sequences.arguments import check_seed, listed
from tasks.sequences.parts import check_filled, pick_some
from tasks.sequences.rotation import Rotation
from tasks.sequences.transformed import Transformed, find_inputs, first_row
from tasks.task import Task, TaskSequence


def rotated(
    train: Any,
    evaluation: Any,
    degrees: Sequence[float],
    *,
    samples_per_task: int | None = None,
    seed: int = 0,
    size: tuple[int, int] | None = None,
    input_name: str | None = None,
) -> TaskSequence:
    """Gives each task the same images turned by an angle of its own.

    Args:
        train: A data set that is read by columns.
        evaluation: Another.
        degrees: The angle of each task, counter-clockwise.
        samples_per_task: Number of training samples of a task, drawn for each anew; `None` takes all.
        seed: Seed of what is drawn.
        size: Height and width of an image; `None` takes the last two axes, or a square of the pixels of a row.
        input_name: Column of the images; `None` takes the only one beside the labels.

    Returns:
        The sequence, domain-incremental.

    Raises:
        ValueError: If an angle comes twice, there are fewer samples than asked for, or the size is not known.
        TypeError: If data are not read by columns, or pixels are whole numbers.
    """
    angles = listed("rotated: degrees", degrees, "[0, 30, 60]")
    strange = [angle for angle in angles if not isinstance(angle, (int, float, np.number)) or not math.isfinite(angle)]
    if strange or not angles:
        raise ValueError(f"rotated: degrees must hold finite numbers, such as [0, 30, 60], got {angles}.")
    check_seed("rotated: seed", seed)
    check_filled(train, "rotated: train")
    column = find_inputs(train, input_name)
    height, width = size or _size(tuple(first_row(train)[column].shape[1:]))

    def make(number: int, angle: float) -> Task:
        rotation = Rotation(angle, height, width)
        own = pick_some(train, samples_per_task, (seed, number, 1))
        turned = [Transformed(part, rotation, column) for part in (own, evaluation)]
        return Task(
            f"rotated_{_shown(angle)}",
            turned[0],
            turned[1],
            description=f"{column} turned by {_shown(angle)} degrees",
        )

    return TaskSequence(tuple(make(number, angle) for number, angle in enumerate(angles)), "domain")


def _shown(angle: float) -> str:
    """Gives an angle as short as can be told from all others."""
    return f"{angle:g}" if float(f"{angle:g}") == angle else repr(float(angle))


def _size(shape: tuple[int, ...]) -> tuple[int, int]:
    if len(shape) >= 2:
        return shape[-2], shape[-1]
    side = math.isqrt(math.prod(shape))
    if side * side != math.prod(shape):
        raise ValueError(f"rotated: {math.prod(shape)} pixels are no square; say size=(height, width).")
    return side, side
