"""Kinds of runs other than a trainer's, which other packages add."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import NamedTuple

from mixer.analysis.report.plot import Plot
from mixer.utils.entry_points import load_plug_ins, made_by
from mixer.utils.text import listed

PLUG_IN_GROUP = "adaptive_mixer.reports"


class Contents(NamedTuple):
    """The contents of a page; see `mixer.analysis.report.page.write_page`.

    Args:
        names: Names of the runs.
        rows: The table: the name of each row, and its cells.
        plots: The plots.
        note: A sentence below the table.
    """

    names: Sequence[str]
    rows: Sequence[tuple[str, Sequence[str]]]
    plots: Sequence[Plot]
    note: str = ""


@dataclass(frozen=True)
class ReportKind:
    """A kind of run that `mixer report` knows.

    A package adds its own by entry points of the group `adaptive_mixer.reports`: `name = "package.module:function"`,
    where the function takes no argument and returns a `ReportKind`.

    Args:
        title: Name of such a run, as in "a continual run".
        recognises: Says whether a folder holds one.
        contents: Gives the contents of the page for runs in some folders, finished or running; raises `ValueError` on
            wrong input.
    """

    title: str
    recognises: Callable[[Path], bool]
    contents: Callable[[Sequence[Path]], Contents]


def kind_of(folders: Sequence[Path]) -> ReportKind | None:
    """Finds the kind of runs.

    Args:
        folders: Their output folders.

    Returns:
        The common kind; `None` for runs of trainers, and for folders that no kind recognises.

    Raises:
        ValueError: If they are of different kinds.
    """
    kinds = load_plug_ins(PLUG_IN_GROUP, "report", _load, (), stacklevel=2)
    found = [next((kind for kind in kinds.values() if kind.recognises(folder)), None) for folder in folders]
    if len(set(found)) > 1:
        named = [
            f"{folder} is {'a plain run' if kind is None else kind.title}"
            for folder, kind in zip(folders, found, strict=True)
        ]
        raise ValueError(f"A report shows runs of one kind, but {listed(named)}. Write a report of each kind.")
    return found[0]


def _load(entry: EntryPoint, taken: Collection[str]) -> tuple[str, ReportKind]:
    return made_by(entry, taken, "report", ReportKind)
