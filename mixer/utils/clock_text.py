"""The data clock in words, for the progress bar and the terminal view."""

import math
from collections.abc import Mapping

from tqdm import tqdm  # type: ignore[import-untyped]

_SUFFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k"))


def clock_text(done: Mapping[str, float], budget: Mapping[str, float]) -> str:
    """Writes what is done of a budget.

    Args:
        done: Epochs, samples, tokens and steps that are done.
        budget: How many of some of these there are to do.

    Returns:
        The one that is furthest, such as `1.24M/10M tokens`; the samples, where there is no budget.

    Example:
        >>> clock_text({"epochs": 0.5, "tokens": 1_240_000}, {"epochs": 3, "tokens": 10_000_000})
        '0.50/3 epochs'
    """
    if not budget:
        return f"{short_number(done['samples'])} samples"
    unit = max(budget, key=lambda name: done[name] / budget[name])
    now = f"{done[unit]:.2f}" if unit == "epochs" else short_number(done[unit])
    return f"{now}/{short_number(budget[unit])} {unit}"


def duration_text(seconds: float | None) -> str:
    """Writes a duration.

    Args:
        seconds: Its seconds, or `None` where they are not known; endless ones are not either.

    Returns:
        `MM:SS`, `H:MM:SS` or `?`.
    """
    return str(tqdm.format_interval(seconds)) if seconds is not None and math.isfinite(seconds) else "?"


def short_number(number: float) -> str:
    """Writes a number with at most four digits where it is large.

    Args:
        number: The number, of 0 or more.

    Returns:
        Such as `950`, `9,500`, `95k`, `1.24M`.
    """
    for size, suffix in _SUFFIXES:
        if number >= size:
            unit = 1e3 if suffix == "k" else size
            return f"{number / unit:.3g}{suffix}" if number / unit < 1e3 else f"{number / unit:.0f}{suffix}"
    return f"{number:,.0f}" if number == int(number) else f"{number:,.2f}"
