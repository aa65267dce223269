"""Runs of any framework: a table of shares and losses, as CSV or Parquet."""

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from mixer.tools.console import Result
from mixer.utils.arrays import FloatArray
from mixer.utils.errors import InvalidValueError, require, wrong_value
from mixer.utils.text import first_of

_ROUNDING, _MOST_OFF = 1e-3, 0.05
SUFFIXES = (".csv", ".parquet")


class RunTable(Result):
    """Mixtures and losses of runs, a row each.

    Blanks around the names of columns do not count, and a row that appears twice is one run.

    Args:
        path: The table.
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
        ValueError: If the table cannot be read, columns are missing, or a share is no number of 0 or more.
    """

    def __init__(self, path: Path, shares: str = "share/*", losses: str = "loss/*", size: str | None = None):
        self.notes: list[str] = []
        table = self._once(_read(path))
        mixtures, values = _columns(table, "--shares", shares), _columns(table, "--losses", losses)
        both = [column for column in mixtures.values() if column in values.values() or column == size]
        if both:
            text = f"The columns {both} are both shares and something else: correct the patterns."
            raise wrong_value("--shares", text, found=both)
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
        self.sizes = (
            None
            if size is None
            else self._numbers(table, [*_columns(table, "--size", size).values()], may_miss=False)[:, 0]
        )
        missing = int((~np.isfinite(self.losses)).sum())
        if missing:
            self.notes.append(
                f"{missing} of {self.losses.size} losses are missing or not finite; each is fitted to the runs that "
                "have it."
            )

    def _once(self, table: pd.DataFrame) -> pd.DataFrame:
        again = table.duplicated()
        if again.any():
            self.notes.append(f"{int(again.sum())} rows repeat an earlier one: each counts once.")
        return table[~again].reset_index(drop=True)

    def _numbers(self, table: pd.DataFrame, columns: Sequence[str], may_miss: bool) -> FloatArray:
        found = table[list(columns)].apply(_as_numbers)
        wrong = found.isna() & (table[list(columns)].notna() | (not may_miss))
        for row, column in np.argwhere(wrong.to_numpy()):
            raise InvalidValueError(
                option=columns[column],
                expected=f"a number for the run {self.runs[row]}",
                found=table[columns[column]].iloc[row],
                hint="" if may_miss else "A source that a run did not train on has the share 0.",
            )
        return np.asarray(found, dtype=np.float64)

    def _shares(self, shares: FloatArray) -> FloatArray:
        """Scales the shares of each run to 1."""
        for row, column in np.argwhere(~((shares >= 0.0) & (shares < np.inf))):
            raise InvalidValueError(
                option="--shares",
                stream=self.streams[column],
                expected=f"finite and 0 or more in the run {self.runs[row]}",
                found=float(shares[row, column]),
            )
        totals = shares.sum(axis=1)
        off = np.flatnonzero(np.abs(totals - 1.0) > _MOST_OFF)
        if (totals > 2.0).all():
            self.notes.append("No run's shares sum to 1: they are taken for amounts, such as tokens or per cent.")
        elif len(off):
            found = ", ".join(first_of([f"{self.runs[row]} ({totals[row]:.3f})" for row in off]))
            text = f"The shares of a run must sum to 1, to {_MOST_OFF:.0%}: {found}. Is the column of a source missing?"
            raise wrong_value("--shares", text, found=found)
        elif (np.abs(totals - 1.0) > _ROUNDING).any():
            self.notes.append(f"Shares sum to {totals.min():.3f} to {totals.max():.3f}: they are scaled to 1.")
        return np.asarray(shares / np.where(totals > 0.0, totals, 1.0)[:, None])


def _read(path: Path) -> pd.DataFrame:
    try:
        table = pd.read_parquet(path) if path.suffix.lower() == ".parquet" else pd.read_csv(path)
        if path.suffix.lower() == ".csv":  # pandas would rename a column that appears twice
            table.columns = pd.read_csv(path, header=None, nrows=1, dtype=str, keep_default_na=False).iloc[0]
    except (OSError, ValueError) as error:
        raise wrong_value(str(path), f"cannot be read: {' '.join(str(error).split())}") from None
    table.columns = [str(name).strip() for name in table.columns]
    if twice := table.columns[table.columns.duplicated()].tolist():
        raise wrong_value(str(path), f"has the columns {twice} twice: rename or remove one.", found=twice)
    if table.empty:
        raise wrong_value(str(path), "has no rows.")
    return table


def _as_numbers(cells: pd.Series) -> pd.Series:
    """Gives NaN for what is no number: text, truth values, times."""
    if cells.dtype.kind in "bMm":
        return pd.Series(np.nan, cells.index)
    if cells.dtype == object:
        cells = cells.where(~cells.map(lambda cell: isinstance(cell, bool)))
    return pd.to_numeric(cells, errors="coerce")


def _columns(table: pd.DataFrame, option: str, pattern: str) -> dict[str, str]:
    """Gives columns by what `*` stands for, or the one that is called so."""
    names = [str(column) for column in table.columns]
    written = re.compile(re.escape(pattern).replace(r"\*", "(.+)", 1))
    found = {match[match.re.groups]: match[0] for name in names if (match := written.fullmatch(name))}
    known = ", ".join(first_of(names))
    require(bool(found), option, f"of columns among {known}, * for any name", pattern)
    return found
