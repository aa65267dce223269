"""Tasks of one data set with transformed inputs.

Permuted: Goodfellow et al. 2013; Chaudhry et al. 2019; Buzzega et al. 2020. Rotated: Lopez-Paz and Ranzato 2017.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mixer.utils.data_set import DataSet
from mixer.utils.errors import InvalidTypeError, InvalidValueError
from mixer.utils.ranges import check_count
from tasks.sequences.data_sets import Transform, Transformed, find_inputs, pick
from tasks.sequences.parts import check_between, check_seed, listed
from tasks.task import Task, TaskSequence

_ZERO = 1e-9
_Named = tuple[str, Transform | None, str]  # name and description of a task, and its transform between them


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
            raise InvalidValueError.about("Permutation: num_features", f"must be 1 or more, got {num_features}.")
        self.order = torch.from_numpy(np.random.default_rng(seed).permutation(num_features))

    def __call__(self, inputs: Tensor) -> Tensor:
        """Permutes.

        Args:
            inputs: `[count, ...]` with `num_features` entries per sample.

        Returns:
            The same shape.

        Raises:
            ValueError: If a sample has another number of features.
        """
        flat = inputs.flatten(1)
        if flat.shape[1] != len(self.order):
            raise InvalidValueError.about("inputs", f"must have {len(self.order)} features, got {flat.shape[1]}.")
        return flat.index_select(1, self.order).reshape(inputs.shape)


def permuted(
    train: DataSet,
    evaluation: DataSet,
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
    column, shape = find_inputs(train, input_name, "permuted: train")
    num_features = math.prod(shape)
    transforms: list[_Named] = [
        (f"task_{n + 1}", Permutation((seed, n, 0), num_features), f"{column} permuted by seed {seed}, {n}")
        for n in range(num_tasks)
    ]
    if first_is_identity:
        transforms[0] = ("task_1", None, f"{column} as they are")
    return _transformed((train, evaluation), column, transforms, samples_per_task, seed)


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
            raise InvalidValueError.about("Rotation: degrees", f"must be a finite number, got {degrees}.")
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
            raise InvalidTypeError.about("inputs", f"must be floating, in [0, 1] say, got {inputs.dtype}.")
        is_image = inputs.ndim > 2 and inputs.shape[-2:] == (self.height, self.width)
        if not is_image and inputs.shape[1:] != (num_pixels,):
            size = f"{self.height} by {self.width}"
            raise InvalidValueError.about(
                "inputs", f"must be {size} or {num_pixels} pixels, got {[*inputs.shape[1:]]}."
            )
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
    for below, beside in itertools.product((0, 1), repeat=2):
        rows, columns = row.floor() + below, column.floor() + beside
        is_inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
        sources.append((rows.clamp(0, height - 1) * width + columns.clamp(0, width - 1)).long())
        shares.append(_share(row, below) * _share(column, beside) * is_inside)
    return torch.stack(sources), torch.stack(shares)


def _share(place: Tensor, step: int) -> Tensor:
    """Returns the share of the whole number below each place (step 0), or of the one above (1)."""
    return place - place.floor() if step else 1 - (place - place.floor())


def rotated(
    train: DataSet,
    evaluation: DataSet,
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
        raise InvalidValueError.about("degrees", f"must hold finite numbers, such as [0, 30, 60], got {angles}.")
    check_seed("rotated: seed", seed)
    column, shape = find_inputs(train, input_name, "rotated: train")
    height, width = size or _size(shape)
    transforms: list[_Named] = [
        (f"rotated_{name}", Rotation(angle, height, width), f"{column} turned by {name} degrees")
        for name, angle in ((_degrees_text(angle), angle) for angle in angles)
    ]
    return _transformed((train, evaluation), column, transforms, samples_per_task, seed)


def _transformed(
    splits: tuple[Any, Any], column: str, transforms: Sequence[_Named], num_samples: int | None, seed: int
) -> TaskSequence:
    """Makes a task of each name, transform and description, of so many training samples, drawn for each task anew."""
    if num_samples is not None:
        check_between("samples_per_task", num_samples, len(splits[0]), "there are")

    def make(number: int, name: str, transform: Transform | None, description: str) -> Task:
        train, evaluation = splits
        if num_samples is not None:
            generator = np.random.default_rng((seed, number, 1))
            train = pick(train, generator.choice(len(train), num_samples, replace=False))
        if transform is not None:
            train, evaluation = Transformed(train, transform, column), Transformed(evaluation, transform, column)
        return Task(name, train, evaluation, description=description)

    return TaskSequence(tuple(make(number, *transform) for number, transform in enumerate(transforms)), "domain")


def _degrees_text(angle: float) -> str:
    """Formats an angle with as few digits as are exact."""
    return f"{angle:g}" if float(f"{angle:g}") == angle else repr(float(angle))


def _size(shape: tuple[int, ...]) -> tuple[int, int]:
    if len(shape) >= 2:
        return shape[-2], shape[-1]
    side = math.isqrt(math.prod(shape))
    if side * side != math.prod(shape):
        raise InvalidValueError.about("size", f"must be given, as {math.prod(shape)} pixels are no square.")
    return side, side
