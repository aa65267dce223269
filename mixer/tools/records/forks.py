"""Forks of one run: what differs between them since they parted, evaluation by evaluation."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from mixer.ledger.folder import open_ledger, read_description
from mixer.utils.text import listed

_NULL = 0.01  # a fork whose weights were moved by no more only shows the noise


def paired_differences(folders: Sequence[str | Path]) -> list[dict[str, Any]]:
    """Compares forks of one run with that run, or else with the first of them, at the evaluations that they share.

    Args:
        folders: Output folders of runs, forks or not.

    Returns:
        A row for each fork that can be compared: run, against, forked_at, evaluations (their number since then), mean
        and last (difference of the loss by evaluation set; below 0 the fork is better), largest_move (of a weight, in
        the mean over the steps since) and is_null (whether the weights hardly moved, so that it shows the noise).
    """
    described = {Path(folder): read_description(folder) for folder in folders}
    rows = []
    for path, run in described.items():
        base = _base(path, described)
        if base is None:
            continue
        at = max(int(run["forked_at"]), int(described[base].get("forked_at", 0)) if _is_fork(described[base]) else 0)
        differences = (_losses(path, at) - _losses(base, at)).dropna(how="all")
        move = float((_weights(path, at) - _weights(base, at)).abs().max())
        steps = differences.index.get_level_values("step")
        by_set = differences.groupby("stream", sort=False)
        rows.append(
            {
                "run": str(path),
                "against": str(base),
                "forked_at": at,
                "evaluations": int(steps.nunique()),
                "mean": by_set.mean().to_dict(),
                "last": by_set.last().to_dict(),
                "largest_move": move,
                "is_null": move <= _NULL,
            }
        )
    return rows


def forks_in_words(rows: Sequence[dict[str, Any]]) -> str:
    """Says the differences of forks in a sentence each.

    Args:
        rows: Result of `paired_differences`.
    """
    return " ".join(_in_words(row) for row in rows if row["mean"])


def _in_words(row: dict[str, Any]) -> str:
    fork, other = Path(row["run"]).name, Path(row["against"]).name
    noise = " (hardly another mixture: it shows the noise)" if row["is_null"] else ""
    changes = listed([f"{mean:+.4f} on {name}" for name, mean in row["mean"].items()])
    return (
        f"{fork} parted from {other} at step {row['forked_at']}, with the same order in every stream{noise}: its loss "
        f"less that of {other}, a mean over {row['evaluations']} evaluations at the same steps, is {changes}."
    )


def _is_fork(run: dict[str, Any]) -> bool:
    return isinstance(run.get("parent"), str) and isinstance(run.get("forked_at"), int)


def _base(path: Path, described: dict[Path, dict[str, Any]]) -> Path | None:
    """Finds what a fork is compared with: its parent, or else the first fork of the same parent."""
    run = described[path]
    if not _is_fork(run):
        return None
    parent = Path(run["parent"]).resolve()
    same = [other for other in described if other.resolve() == parent]
    forks = [other for other, own in described.items() if _is_fork(own) and Path(own["parent"]).resolve() == parent]
    base = same[0] if same else forks[0]
    return None if base == path else base


def _losses(path: Path, at: int) -> "pd.Series[float]":
    rows = open_ledger(path).evaluations()
    rows = rows[rows["step"] > at].drop_duplicates(["step", "stream"], keep="last")
    return rows.set_index(["step", "stream"])["loss"]


def _weights(path: Path, at: int) -> "pd.Series[float]":
    rows: pd.DataFrame = open_ledger(path).read("streams", ["step", "stream", "weight"]).to_pandas()
    return rows[rows["step"] > at].groupby("stream")["weight"].mean()
