"""How much a run trains in all."""

import math
from dataclasses import dataclass
from numbers import Integral, Real


@dataclass(frozen=True)
class Budget:
    """How much a run trains in all: whichever of these ends first.

    Args:
        epochs: Passes over the mixture's epoch.
        samples: Samples of all streams together.
        tokens: Tokens of all streams together; the step that reaches them is the last.
        steps: Optimizer steps.

    Raises:
        ValueError: If nothing is given, or a number is not above 0.
        TypeError: If samples, tokens or steps are no whole numbers.

    Example:
        >>> Budget(tokens=2_000_000_000, epochs=3)
        Budget(epochs=3, samples=None, tokens=2000000000, steps=None)
    """

    epochs: float | None = None
    samples: int | None = None
    tokens: int | None = None
    steps: int | None = None

    def __post_init__(self) -> None:
        given = {name: value for name, value in vars(self).items() if value is not None}
        if not given:
            raise ValueError("budget must be given in epochs, samples, tokens or steps, got none of them.")
        for name, value in given.items():
            if isinstance(value, bool) or not isinstance(value, Real):
                raise TypeError(f"budget: {name} must be a number, got {value!r}.")
            if name != "epochs" and not isinstance(value, Integral):
                raise TypeError(f"budget: {name} must be a whole number, got {value!r}.")
            if not 0 < float(value) < math.inf:
                raise ValueError(f"budget: {name} must be above 0 and finite, got {value}.")

    @property
    def is_in_steps(self) -> bool:
        """Whether it can be counted in steps of a constant batch size, as the Trainer counts."""
        return self.samples is None and self.tokens is None
