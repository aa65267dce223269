"""The tables, as text that can be pasted into a page: what ran is one thing, how it is shown another."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.common import paired_ratio

OURS = "mixer"
MISSING = "not installed"
COLUMNS = (
    "work",
    "peer",
    "seconds, ours / peer",
    "time, ours / peer",
    "processor time",
    "memory, ours / peer",
    "ours",
    "peer's",
)

Runs = Sequence[Mapping[str, Any]]  # one contestant's, round by round
Row = list[str]


def error_in(runs: Runs) -> str | None:
    """Finds what went wrong.

    Args:
        runs: A contestant's.

    Returns:
        The first error, or `None`.
    """
    return next((str(run["error"]) for run in runs if isinstance(run.get("error"), str)), None)


def ratio_of(ours: Runs, theirs: Runs, figure: str) -> str:
    """Compares a figure round by round.

    Args:
        ours: Our runs.
        theirs: The peer's, in the same rounds.
        figure: Its name.

    Returns:
        The median of the ratios, with the smallest and the largest.
    """
    ratio = paired_ratio([run[figure] for run in ours], [run[figure] for run in theirs])
    return f"**{ratio['median']:.2f}** ({ratio['min']:.2f} to {ratio['max']:.2f})"


def mean_of(runs: Runs, figure: str, digits: int) -> str:
    """Gives a figure's mean over the rounds, which have other seeds, with its standard deviation.

    Args:
        runs: A contestant's.
        figure: Its name.
        digits: Decimals.

    Returns:
        The text.
    """
    values = np.array([run[figure] for run in runs])
    deviation = f" ± {values.std(ddof=1):.{digits}f}" if len(values) > 1 else ""
    return f"{values.mean():.{digits}f}{deviation}"


def compared(work: str, peer: str, ours: Runs, theirs: Runs | None, result: Sequence[str]) -> Row:
    """Makes a row of the table.

    Args:
        work: What was done.
        peer: Who, with the version.
        ours: Our runs.
        theirs: The peer's; `None` if it is not installed.
        result: Our result and the peer's, in words.

    Returns:
        The cells.
    """
    if theirs is None:
        return [work, peer, MISSING, "", "", "", result[0], ""]
    if (error := error_in(theirs) or error_in(ours)) is not None:
        return [work, peer, f"failed: {error}".replace("|", "/"), *[""] * 5]
    seconds = " / ".join(f"{np.median([run['seconds'] for run in runs]):.3g}" for runs in (ours, theirs))
    ratios = [ratio_of(ours, theirs, figure) for figure in ("seconds", "processor_seconds", "growth_bytes")]
    return [work, peer, seconds, *ratios, *result]


def mixing_result(runs: Runs | None) -> str:
    """Says how well a mixture was trained on.

    Args:
        runs: A contestant's; `None` if it is not installed.

    Returns:
        Loss, and how far the realised shares were from those asked for, at any step.
    """
    if runs is None or error_in(runs) is not None:
        return ""
    deviation = np.median([run["deviation"] for run in runs])
    return f"loss {mean_of(runs, 'loss', 3)}; shares off by {deviation:.1f} samples at most"


def gramian_result(runs: Runs | None) -> str:
    """Says what a Gramian costs over a plain step, and how exact it is.

    Args:
        runs: A contestant's; `None` if it is not installed.

    Returns:
        The text.
    """
    if runs is None or error_in(runs) is not None:
        return ""
    over = np.median([run["processor_seconds"] / run["plain_processor_seconds"] for run in runs])
    return f"{over:.2f} of a plain step; error {max(run['difference'] for run in runs):.0e}"
