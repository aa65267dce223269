"""Bounds and rounding of batch sizes."""

import math
from dataclasses import dataclass
from numbers import Integral

from mixer.utils.errors import require, wrong_type, wrong_value

# Floats represent all whole numbers up to here; no schedule may request more.
LARGEST = 2**53


@dataclass(frozen=True)
class Limits:
    """Valid batch sizes.

    Args:
        minimum: Least size, or `None`.
        maximum: Largest size, or `None`.
        granularity: Sizes are multiples of it.
        max_growth: Largest factor of growth per step, or `None`.

    Raises:
        ValueError: If no size is left, or a value is outside its range.
        TypeError: If a size is no whole number.
    """

    minimum: int | None = None
    maximum: int | None = None
    granularity: int = 1
    max_growth: float | None = None

    def __post_init__(self) -> None:
        for name in ("minimum", "maximum", "granularity"):
            value = getattr(self, name)
            if value is not None:
                check_whole(name, value)
        if self.max_growth is not None and not 1.0 < self.max_growth < math.inf:
            raise wrong_value("max_growth", f"must be a factor above 1, or None for no limit, got {self.max_growth}.")
        if self.minimum is not None and self.maximum is not None and self.minimum > self.maximum:
            raise wrong_value("minimum", f"={self.minimum} is above maximum={self.maximum}: no batch size is left.")
        if self._least > self._most:
            raise wrong_value(
                "granularity",
                f"={self.granularity} has no multiple from minimum={self.minimum} to maximum={self.maximum}.",
            )

    @property
    def _least(self) -> int:
        return -(-(self.minimum or 1) // self.granularity) * self.granularity

    @property
    def _most(self) -> int:
        return (self.maximum or LARGEST) // self.granularity * self.granularity

    def check_initial(self, initial: int | None) -> None:
        """Refuses a first size outside the bounds.

        Args:
            initial: The size, or `None`.

        Raises:
            ValueError: If it is below the least, above the largest, or no multiple of the granularity.
            TypeError: If it is no whole number.
        """
        if initial is not None:
            self.check_size("initial", initial)

    def check_size(self, name: str, size: int) -> None:
        """Refuses a user's size outside the bounds.

        Args:
            name: Its name in an error.
            size: The size.

        Raises:
            ValueError: If it is below the least, above the largest, or no multiple of the granularity.
            TypeError: If it is no whole number.
        """
        check_whole(name, size)
        if not self._least <= size <= self._most or size % self.granularity:
            raise wrong_value(
                name, f"={size} must be within {self.minimum} and {self.maximum}, a multiple of {self.granularity}."
            )

    def with_least(self, num_ranks: int) -> "Limits":
        """Returns the limits with a default minimum of one sample per rank."""
        if self.minimum is not None:
            return self
        return Limits(num_ranks, self.maximum, self.granularity, self.max_growth)

    def clamp(self, batch_size: float) -> float:
        """Limits a size, before rounding, to the bounds."""
        return min(max(batch_size, self._least), self._most)

    def apply(self, requested: float, previous: int) -> int:
        """Converts a schedule's request to a valid size.

        Args:
            requested: The requested size; any number but NaN.
            previous: The size of the last step.

        Returns:
            The nearest multiple of the granularity within bounds and growth; the least size if these exclude all.
        """
        most = self._most
        if self.max_growth is not None:
            # A size too small to grow by the factor grows by one granule, as it would stay forever.
            grown = math.floor(previous * self.max_growth / self.granularity + 1e-9) * self.granularity
            most = min(most, max(grown, previous // self.granularity * self.granularity + self.granularity))
        rounded = math.floor(self.clamp(requested) / self.granularity + 0.5) * self.granularity
        return min(rounded, max(most, self._least))


def check_whole(name: str, value: object, unit: str = "sample", least: int = 1) -> None:
    """Refuses anything but a whole number of samples, or of something else.

    Args:
        name: Its name in an error.
        value: The value.
        unit: What it counts.
        least: The smallest valid number.

    Raises:
        TypeError: If it is no whole number.
        ValueError: If it is below the least.
    """
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise wrong_type(name, f"must be a whole number of {unit}s, got {value!r}.", found=value)
    require(int(value) >= least, name, f"at least {least} {unit}{'s' * (least != 1)}", value)


def check_above(name: str, value: float, least: float) -> None:
    """Refuses a number that is not above a bound, or infinite.

    Raises:
        ValueError: If it is.
    """
    require(least < value < math.inf, name, f"above {least}", value)
