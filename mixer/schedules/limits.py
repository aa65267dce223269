"""Bounds of a batch size, and how it is rounded."""

import math
from dataclasses import dataclass
from numbers import Integral

# Floats tell whole numbers apart up to here; no rule may ask for more, whatever it was shown.
LARGEST = 2**53


@dataclass(frozen=True)
class Limits:
    """Which batch sizes there are.

    Args:
        minimum: Least size, or `None`.
        maximum: Largest size, or `None`.
        granularity: Sizes are multiples of it.
        max_growth: Largest factor of growth from a step to the next, or `None`.

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
            raise ValueError(f"max_growth must be a factor above 1, or None for no limit, got {self.max_growth}.")
        if self.minimum is not None and self.maximum is not None and self.minimum > self.maximum:
            raise ValueError(f"minimum={self.minimum} is above maximum={self.maximum}: no batch size is left.")
        if self._least > self._most:
            raise ValueError(
                f"There is no multiple of granularity={self.granularity} between minimum={self.minimum} and "
                f"maximum={self.maximum}."
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
        """Refuses a size that a user gives outside the bounds.

        Args:
            name: What to call it in an error.
            size: The size.

        Raises:
            ValueError: If it is below the least, above the largest, or no multiple of the granularity.
            TypeError: If it is no whole number.
        """
        check_whole(name, size)
        if not self._least <= size <= self._most or size % self.granularity:
            raise ValueError(
                f"{name}={size} is not a batch size within the bounds: minimum={self.minimum}, "
                f"maximum={self.maximum}, a multiple of granularity={self.granularity}."
            )

    def with_least(self, num_ranks: int) -> "Limits":
        """Gives the same limits where no minimum was given: at least one sample a rank.

        Args:
            num_ranks: Number of ranks.

        Returns:
            The limits.
        """
        if self.minimum is not None:
            return self
        return Limits(num_ranks, self.maximum, self.granularity, self.max_growth)

    def clamp(self, batch_size: float) -> float:
        """Keeps a size, not yet rounded, within the bounds.

        Args:
            batch_size: The size.

        Returns:
            The nearest size within the bounds.
        """
        return min(max(batch_size, self._least), self._most)

    def apply(self, asked: float, previous: int) -> int:
        """Makes a size of what a schedule asks for.

        Args:
            asked: What it asks for; any number that is not NaN.
            previous: The size of the step before.

        Returns:
            The nearest multiple of the granularity within bounds and growth; the least size where they leave none.
        """
        most = self._most
        if self.max_growth is not None:
            # A size too small to grow by the factor grows by one step: it would stay for ever.
            grown = math.floor(previous * self.max_growth / self.granularity + 1e-9) * self.granularity
            most = min(most, max(grown, previous // self.granularity * self.granularity + self.granularity))
        rounded = math.floor(self.clamp(asked) / self.granularity + 0.5) * self.granularity
        return min(rounded, max(most, self._least))


def check_whole(name: str, value: object) -> None:
    """Refuses what is no whole number of samples.

    Args:
        name: What to call it in an error.
        value: The value.

    Raises:
        TypeError: If it is no whole number.
        ValueError: If it is below 1.
    """
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} must be a whole number of samples, got {value!r}.")
    if value < 1:
        raise ValueError(f"{name} must be at least 1 sample, got {value}.")
