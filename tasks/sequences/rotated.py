"""Rotated images (Lopez-Paz and Ranzato 2017)."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tasks.sequences.data_sets import Transformed, find_inputs, first_row
from tasks.sequences.parts import check_filled, check_seed, listed, pick_some
from tasks.task import Task, TaskSequence

_ZERO = 1e-9


class Rotation:
    """Turns images counter-clockwise about their middle, by bilinear interpolation; what comes in from outside is 0.

    Args:
        degrees: The angle.
        height: Rows of an image.
        width: Columns of an image.

    Raises:
        ValueError: If an image has no pixels or the angle is not finite.
    """

    def __init__(self, degrees: float, height: int, width: int):
        if height < 1 or width < 1:
            raise ValueError(f"Rotation: height and width must be 1 or more, got {height} and {width}.")
        if not math.isfinite(degrees):
            raise ValueError(f"Rotation: degrees must be a finite number, got {degrees}.")
        self.degrees, self.height, self.width = degrees, height, width
        self.sources, self.shares = _interpolation(math.radians(degrees), height, width)

    def __call__(self, inputs: Tensor) -> Tensor:
        """Turns.

        Args:
            inputs: Floating `[count, ..., height, width]`, or `[count, height * width]`.

        Returns:
            The same shape.

        Raises:
            TypeError: If pixels are whole numbers.
            ValueError: If images have another size.
        """
        num_pixels = self.height * self.width
        if not inputs.is_floating_point():
            raise TypeError(f"Rotation: pixels must be floating, scaled to [0, 1] say, got {inputs.dtype}.")
        is_image = inputs.ndim > 2 and inputs.shape[-2:] == (self.height, self.width)
        if not is_image and inputs.shape[1:] != (num_pixels,):
            size = f"{self.height} by {self.width}"
            raise ValueError(f"Rotation: images must be {size} or {num_pixels} pixels, got {list(inputs.shape[1:])}.")
        pixels, shares = inputs.reshape(-1, num_pixels), self.shares.to(inputs.dtype)
        turned = torch.zeros_like(pixels)
        for corner in range(4):
            turned += pixels.index_select(1, self.sources[corner]) * shares[corner]
        return turned.reshape(inputs.shape)


def _interpolation(angle: float, height: int, width: int) -> tuple[Tensor, Tensor]:
    """Finds which four pixels each pixel is mixed of, int64 `[4, num_pixels]`, and their shares, of the same shape."""
    axes = (torch.arange(size, dtype=torch.float64) - (size - 1) / 2 for size in (height, width))
    down, right = torch.meshgrid(*axes, indexing="ij")
    cosine, sine = math.cos(angle), math.sin(angle)
    row = (cosine * down + sine * right + (height - 1) / 2).flatten()
    column = (cosine * right - sine * down + (width - 1) / 2).flatten()
    # Angles of quarter turns are not exact in radians: without this, pixels at the edge would fall outside.
    row, column = (torch.where((x - x.round()).abs() < _ZERO, x.round(), x) for x in (row, column))
    sources, shares = [], []
    for rows, row_share in _neighbours(row):
        for columns, column_share in _neighbours(column):
            is_inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
            place = rows.clamp(0, height - 1) * width + columns.clamp(0, width - 1)
            sources.append(place.long())
            shares.append(row_share * column_share * is_inside)
    return torch.stack(sources), torch.stack(shares)


def _neighbours(place: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Gives the whole numbers below and above, each with its share."""
    below = place.floor()
    return (below, 1 - (place - below)), (below + 1, place - below)


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
        own = pick_some(train, samples_per_task, (seed, number, 1))
        rotation = Rotation(angle, height, width)
        turned = [Transformed(part, rotation, column) for part in (own, evaluation)]
        return Task(
            f"rotated_{_shown(angle)}", turned[0], turned[1], description=f"{column} turned by {_shown(angle)} degrees"
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
