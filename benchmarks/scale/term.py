"""How a cost grows: measured at several sizes, with the exponent, and what that comes to at a size that was not run."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

STREAMS, BATCH, RANKS, STEPS, SAMPLES, ENTRIES = "streams", "batch", "ranks", "steps", "samples", "entries"
# What a page about scale has to say something of.
TARGETS = {
    STREAMS: 10_000.0,
    BATCH: 4_194_304.0,
    RANKS: 4_096.0,
    STEPS: 1_000_000.0,
    SAMPLES: 1e13,
    ENTRIES: 1_000_000.0,
}
_MOST_SECONDS = 2.0
_REPETITIONS = 5


@dataclass(frozen=True)
class Term:
    """One part's cost as a function of one size.

    Args:
        part: The part.
        variable: What was varied, of `TARGETS`.
        unit: `"s"` of a CPU, `"s waited"` or `"bytes"`.
        sizes: The sizes.
        values: `[num_sizes]`: the costs.
        at: The other sizes, in words.
    """

    part: str
    variable: str
    unit: str
    sizes: tuple[float, ...]
    values: tuple[float, ...]
    at: str = ""

    @property
    def exponent(self) -> float:
        """The slope between the two largest sizes, both as logarithms: what is fixed counts least there."""
        (small, large), (low, high) = self.sizes[-2:], self.values[-2:]
        if not (low > 0 and high > 0):
            return 0.0
        return math.log(high / low) / math.log(large / small)

    @property
    def target(self) -> float:
        """The size that is asked about."""
        return TARGETS[self.variable]

    @property
    def is_measured(self) -> bool:
        """Whether the target was run itself."""
        return self.sizes[-1] >= self.target

    @property
    def at_target(self) -> float:
        """The cost at the target: measured, or going on with the exponent."""
        if self.is_measured:
            return self.values[self.sizes.index(self.target)]
        return self.values[-1] * (self.target / self.sizes[-1]) ** self.exponent


def cpu_seconds(action: Callable[[], object], most_seconds: float = _MOST_SECONDS) -> float:
    """Measures what an action takes of a CPU: waiting for other work on the machine does not count.

    Args:
        action: What is done, over and over.
        most_seconds: No repetition begins after so many.

    Returns:
        The median over some rounds, of as many calls each as take some milliseconds.
    """
    action()  # warms up
    started = time.process_time()
    action()
    once = max(time.process_time() - started, 1e-7)
    calls = max(1, math.ceil(5e-3 / once))
    rounds: list[float] = []
    begun = time.process_time()
    while len(rounds) < _REPETITIONS and (not rounds or time.process_time() - begun < most_seconds):
        started = time.process_time()
        for _ in range(calls):
            action()
        rounds.append((time.process_time() - started) / calls)
    return float(np.median(rounds))


def swept(
    part: str,
    variable: str,
    sizes: Sequence[float],
    prepare: Callable[[int], Callable[[], object]],
    at: str = "",
) -> Term:
    """Measures the time of a part at several sizes.

    Args:
        part: The part.
        variable: What is varied.
        sizes: The sizes.
        prepare: Makes, of a size, the action that is timed.
        at: The other sizes, in words.

    Returns:
        The term.
    """
    seconds = tuple(cpu_seconds(prepare(int(size))) for size in sizes)
    return Term(part, variable, "s", tuple(map(float, sizes)), seconds, at)


def counted(
    part: str, variable: str, sizes: Sequence[float], measure: Callable[[int], float], at: str = "", unit: str = "bytes"
) -> Term:
    """Counts the bytes of a part, or something else that is not timed here, at several sizes.

    Args:
        part: The part.
        variable: What is varied.
        sizes: The sizes.
        measure: Gives, of a size, the number.
        at: The other sizes, in words.
        unit: What it is a number of.

    Returns:
        The term.
    """
    values = tuple(float(measure(int(size))) for size in sizes)
    return Term(part, variable, unit, tuple(map(float, sizes)), values, at)


def in_words(value: float, unit: str) -> str:
    """Writes a cost with a unit that suits its size.

    Args:
        value: The cost.
        unit: Its unit, of a `Term`.

    Returns:
        Such as `"1.5 ms"` or `"20 MB"`.
    """
    steps = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)) if unit != "bytes" else _BYTES
    name, factor = next((one for one in steps if value >= one[1]), steps[-1])
    return f"{value / factor:.3g} {name}"


_BYTES = (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("bytes", 1.0))
