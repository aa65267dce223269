"""Runs of any framework: tables of shares and losses, as CSV or Parquet."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from mixer.tools.console import Result
from mixer.utils.arrays import FloatArray
from mixer.utils.text import first_of

_ROUNDING, _MOST_OFF = 1e-3, 0.05
SUFFIXES = (".csv", ".parquet")


class RunTable(Result):
    """Mixtures and losses of runs, a row each.

    Tables with the same columns are put under each other; others are joined by their first column. Blanks around the
    names of columns do not count, and a row that stands twice is one run.

    Args:
        paths: The tables.
        shares: Pattern of the columns of shares, such as `"share/*"`; a source's name is what `*` stands for.
        losses: Pattern of the columns of losses or metrics.
        size: Column of the size of each run's model; `None` if all are of one size.

    Attributes:
        runs: Names of the runs: the first column, or numbers.
        streams: Names of the sources.
        loss_names: Names of the losses.
        mixtures: `[num_runs, num_streams]`.
        losses: `[num_runs, num_losses]`; NaN where a run has none.
        sizes: `[num_runs]`, or `None`.
        notes: Remarks for readers of the fit, in sentences.

    Raises:
        ValueError: If a table cannot be read, columns are missing, or a share is no number of 0 or more.
    """

    def __init__(self, paths: Sequence[Path], shares: str = "share/*", losses: str = "loss/*", size: str | None = None):
        self.notes: list[str] = []
        table = self._once(self._joined([_read(path) for path in paths]))
        mixtures, values = _columns(table, "--shares", shares), _columns(table, "--losses", losses)
        both = [column for column in mixtures.values() if column in values.values() or column == size]
        if both:
            raise ValueError(f"--shares, --losses, --size: {both} are shares and something else: mend the patterns.")
        read = (*mixtures.values(), *values.values(), size)
        named = table.columns[0] not in read
        if unread := [str(name) for name in table.columns[named:] if name not in read]:
            self.notes.append(
                f"Columns that are not read: {', '.join(first_of(unread))}. If one is the model's size, name it by "
                "--size: runs of one mixture are averaged."
            )
        self.runs = [str(name) for name in (table[table.columns[0]] if named else range(1, len(table) + 1))]
        if len(set(self.runs)) < len(self.runs):
            self.runs = [f"row {number}: {name}" for number, name in enumerate(self.runs, 1)]
        self.streams, self.loss_names = tuple(mixtures), tuple(values)
        self.mixtures = self._shares(self._numbers(table, [*mixtures.values()], may_miss=False))
        self.losses = self._numbers(table, [*values.values()], may_miss=True)
        self.sizes = None if size is None else self._numbers(table, [_there(table, size)], may_miss=False)[:, 0]
        missing = int((~np.isfinite(self.losses)).sum())
        if missing:
            self.notes.append(
                f"{missing} of {self.losses.size} losses are missing or not finite; each is fitted to the runs that "
                "have it."
            )

    def _joined(self, tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
        stacked: dict[frozenset[str], pd.DataFrame] = {}
        for table in tables:
            key = frozenset(table.columns)
            stacked[key] = pd.concat([stacked[key], table], ignore_index=True) if key in stacked else table
        found, *others = stacked.values()
        for other in others:
            column = found.columns[0]
            joined = _joined_by(column, found, other)
            alone = sorted(map(str, {*found[column], *other[column]} - {*joined[column]}))
            found = joined
            if alone:
                self.notes.append(f"Runs that are in one table only are left out: {', '.join(first_of(alone))}.")
        return found

    def _once(self, table: pd.DataFrame) -> pd.DataFrame:
        again = table.duplicated()
        if again.any():
            self.notes.append(f"{int(again.sum())} rows stand twice, to the last column: each is one run.")
        return table[~again].reset_index(drop=True)

    def _numbers(self, table: pd.DataFrame, columns: Sequence[str], may_miss: bool) -> FloatArray:
        found = table[list(columns)].apply(_as_numbers)
        wrong = found.isna() & (table[list(columns)].notna() | (not may_miss))
        if wrong.to_numpy().any():
            row, column = np.argwhere(wrong.to_numpy())[0]
            cell, others = table[columns[column]].iloc[row], int(wrong.to_numpy().sum()) - 1
            found_there = "empty" if pd.isna(cell) else f"{cell!r}, which is no number"
            raise ValueError(
                f"{columns[column]} of run {self.runs[row]} is {found_there}"
                + (f", and so are {others} other cells: mend them" if others else ": mend it")
                + ("." if may_miss else "; a source that a run did not train on has the share 0.")
            )
        return np.asarray(found, dtype=np.float64)

    def _shares(self, shares: FloatArray) -> FloatArray:
        is_wrong = ~((shares >= 0.0) & (shares < np.inf))
        if is_wrong.any():
            row, column = np.argwhere(is_wrong)[0]
            raise ValueError(
                f"The share of {self.streams[column]} in run {self.runs[row]} must be finite and 0 or more, got "
                f"{shares[row, column]:g}."
            )
        totals = shares.sum(axis=1)
        if (totals > 2.0).all():
            self.notes.append("No run's shares sum to 1: they are taken for amounts, such as tokens or per cent.")
        elif (np.abs(totals - 1.0) > _MOST_OFF).any():
            off = [f"{self.runs[row]} ({totals[row]:.3f})" for row in np.flatnonzero(np.abs(totals - 1.0) > _MOST_OFF)]
            raise ValueError(
                f"The shares of a run must sum to 1, to {_MOST_OFF:.0%}; those of these do not: "
                f"{', '.join(first_of(off))}. Is a source's column missing from --shares?"
            )
        elif (np.abs(totals - 1.0) > _ROUNDING).any():
            self.notes.append(f"Shares sum to {totals.min():.3f} to {totals.max():.3f}: they are scaled to 1.")
        return np.asarray(shares / np.where(totals > 0.0, totals, 1.0)[:, None])


def _read(path: Path) -> pd.DataFrame:
    try:
        table = pd.read_parquet(path) if path.suffix.lower() == ".parquet" else pd.read_csv(path)
        if path.suffix.lower() == ".csv":  # pandas would rename a column that stands twice
            table.columns = pd.read_csv(path, header=None, nrows=1, dtype=str, keep_default_na=False).iloc[0]
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {' '.join(str(error).split())}") from None
    table.columns = [str(name).strip() for name in table.columns]
    twice = table.columns[table.columns.duplicated()].tolist()
    if twice:
        raise ValueError(f"{path}: the columns {twice} stand twice: rename or remove one.")
    if table.empty:
        raise ValueError(f"{path} has no rows.")
    return table


def _joined_by(column: str, first: pd.DataFrame, other: pd.DataFrame) -> pd.DataFrame:
    """Joins the runs that are in both tables."""
    if other.columns[0] != column:
        raise ValueError(
            f"Tables of different columns are joined by the first one, but these are {column!r} and "
            f"{other.columns[0]!r}: rename one."
        )
    if first[column].duplicated().any() or other[column].duplicated().any():
        raise ValueError(f"Tables are joined by {column!r}, which names a run twice: give each run a name of its own.")
    both = [name for name in other.columns[1:] if name in first.columns]
    if both:
        raise ValueError(f"Tables are joined by {column!r}, but {both} are in both: rename or remove them in one.")
    if pd.api.types.is_numeric_dtype(first[column]) != pd.api.types.is_numeric_dtype(other[column]):
        raise ValueError(f"Tables are joined by {column!r}, which has numbers in one and text in the other.")
    found = first.merge(other, on=column, how="inner")
    if found.empty:
        raise ValueError(f"Tables are joined by {column!r}, but no run is in both.")
    return found


def _as_numbers(cells: pd.Series) -> pd.Series:
    """Gives NaN for what is no number: text, truth values, times."""
    if cells.dtype.kind in "bMm":
        return pd.Series(np.nan, cells.index)
    if cells.dtype == object:
        cells = cells.where(~cells.map(lambda cell: isinstance(cell, bool)))
    return pd.to_numeric(cells, errors="coerce")


def _columns(table: pd.DataFrame, option: str, pattern: str) -> dict[str, str]:
    """Gives columns by what `*` stands for, or the one that is called so."""
    before, star, after = pattern.partition("*")
    names = [str(column) for column in table.columns]
    found = {
        name[len(before) : len(name) - len(after)]: name
        for name in names
        if star and name.startswith(before) and name.endswith(after) and len(name) > len(before) + len(after)
    }
    if pattern in names:  # a single loss
        found = {pattern: pattern}
    if not found:
        raise ValueError(
            f"{option}: no column is called as {pattern!r} says, with * for any name; there are "
            f"{', '.join(first_of(names))}."
        )
    return found


def _there(table: pd.DataFrame, column: str) -> str:
    if column not in table.columns:
        raise ValueError(f"--size: there is no column {column!r} among {', '.join(first_of([*table.columns]))}.")
    return column
