"""The table, as text that can be pasted into a page: what ran is one thing, how it is shown another."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.common import paired_ratio
from benchmarks.peers.contest import CONTESTANTS, OURS, Runs

COLUMNS = (
    *("peer", "seconds, ours / peer", "time, ours / peer", "processor time", "memory, ours / peer", "ours", "peer's"),
)
Own = Sequence[Mapping[str, Any]]  # one contestant's, round by round


def rows_of(runs: Runs) -> list[list[str]]:
    """Gives the rows of the table.

    Args:
        runs: What was run.

    Returns:
        The cells of each peer.
    """
    versions = {own.name: f" ({own.package} {own.version or '?'})" for own in CONTESTANTS}
    ours, rest = runs[OURS], {name: own for name, own in runs.items() if name != OURS}
    assert ours is not None, "this toolkit is always there"
    return [[name + versions[name], *_compared(ours, own)] for name, own in rest.items()]


def _compared(ours: Own, theirs: Own | None) -> list[str]:
    if theirs is None:
        return ["not installed", "", "", "", _result(ours), ""]
    if (error := _error_in(theirs) or _error_in(ours)) is not None:
        return [f"failed: {error}".replace("|", "/"), *[""] * 5]
    seconds = " / ".join(f"{np.median([run['seconds'] for run in runs]):.3g}" for runs in (ours, theirs))
    ratios = [_ratio(ours, theirs, figure) for figure in ("seconds", "processor_seconds", "growth_bytes")]
    return [seconds, *ratios, _result(ours), _result(theirs)]


def _error_in(runs: Own) -> str | None:
    return next((str(run["error"]) for run in runs if isinstance(run.get("error"), str)), None)


def _ratio(ours: Own, theirs: Own, figure: str) -> str:
    """Compares a figure round by round: the median of the ratios, with the smallest and the largest."""
    ratio = paired_ratio([run[figure] for run in ours], [run[figure] for run in theirs])
    return f"**{ratio['median']:.2f}** ({ratio['min']:.2f} to {ratio['max']:.2f})"


def _result(runs: Own) -> str:
    """Says how well the mixture was trained on, and how far realised shares were from those asked for, at any step."""
    if _error_in(runs) is not None:
        return ""
    losses, off = np.array([run["loss"] for run in runs]), np.median([run["deviation"] for run in runs])
    deviation = f" ± {losses.std(ddof=1):.3f}" if len(losses) > 1 else ""
    return f"loss {losses.mean():.3f}{deviation}; shares off by {off:.1f} samples at most"
