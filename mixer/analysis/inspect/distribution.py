"""How numbers are distributed: quantiles and a histogram."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from mixer.utils.arrays import Int64Array

_NUM_BINS = 10
_SHARES = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True)
class Bin:
    """A bar of a histogram.

    Args:
        least: The least whole number in it.
        most: The greatest.
        count: How many of the numbers are in it.
    """

    least: int
    most: int
    count: int


@dataclass(frozen=True)
class Distribution:
    """Whole numbers.

    Args:
        least: The least.
        quantiles: By share: 0.05 has a twentieth of them below it. Each is one of the numbers.
        most: The greatest.
        mean: Their mean.
        bins: At most ten of equal width, from the least to the greatest.
    """

    least: int
    quantiles: dict[float, int]
    most: int
    mean: float
    bins: list[Bin]


def distribution_of(numbers: Int64Array) -> Distribution | None:
    """Describes how numbers are distributed.

    Args:
        numbers: Whole numbers.

    Returns:
        Their distribution; `None` where there are none.

    Example:
        >>> distribution_of(np.array([1, 2, 3, 30])).bins[0]
        Bin(least=1, most=3, count=3)
    """
    if not len(numbers):
        return None
    least, most = int(numbers.min()), int(numbers.max())
    width = -(-(most - least + 1) // _NUM_BINS)
    counts = np.bincount((numbers - least) // width)
    bins = [
        Bin(least + number * width, least + (number + 1) * width - 1, int(count)) for number, count in enumerate(counts)
    ]
    found: Any = np.quantile(numbers, _SHARES, method="inverted_cdf")
    quantiles = dict(zip(_SHARES, map(int, found), strict=True))
    return Distribution(least, quantiles, most, float(numbers.mean()), bins)
