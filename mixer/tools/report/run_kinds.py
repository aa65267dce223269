"""The contents of a report, and kinds of runs other than a trainer's, which other packages add."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

from mixer.tools.records.run import Run
from mixer.tools.report.answer import Answer
from mixer.tools.report.findings import Finding
from mixer.tools.report.plot import Plot
from mixer.tools.report.tables import stream_figures
from mixer.utils.entry_points import load_plug_ins, made_by
from mixer.utils.errors import InvalidValueError
from mixer.utils.text import first_of, listed

PLUG_IN_GROUP = "adaptive_mixer.reports"


@dataclass(frozen=True)
class Report:
    """The contents of a report.

    Args:
        names: Names of the runs.
        summary: The main figures: the name of each row, and a cell per run.
        plots: The plots.
        note: A sentence below the summary.
        runs: The trainers' runs; empty for runs of another kind.
        findings: Possible problems of the runs.
        answer: What the page says first.
        first_plots: Plots on the first screen.
    """

    names: Sequence[str]
    summary: Sequence[tuple[str, Sequence[str]]]
    plots: Sequence[Plot]
    note: str = ""
    runs: Sequence[Run] = ()
    findings: Sequence[Finding] = ()
    answer: Answer = field(default_factory=Answer)
    first_plots: Sequence[Plot] = ()

    @property
    def title(self) -> str:
        """What the page is about."""
        names = list(dict.fromkeys([*self.answer.best_first, *self.names]))
        return f"Comparison of {listed(first_of(names))}" if len(names) > 1 else f"Run {names[0]}"

    def as_data(self) -> dict[str, Any]:
        """Gives the contents as plain data.

        Returns:
            `answer` (sentences), `next` (a list of purpose and command), `comparison` and `differences` (see `Answer`),
            `summary` by run, `findings` (a list of run, kind, streams and text), `streams` (see `stream_figures`) and
            `note`.
        """
        return {
            "answer": list(self.answer.sentences),
            "next": [{"purpose": purpose, "command": command} for purpose, command in self.answer.commands],
            "comparison": self.answer.comparison,
            "differences": self.answer.differences,
            "summary": {
                run: {name: cells[place] for name, cells in self.summary} for place, run in enumerate(self.names)
            },
            "findings": [vars(finding) for finding in self.findings],
            "streams": {run.name: stream_figures(run) for run in self.runs},
            "note": self.note,
        }


@dataclass(frozen=True)
class ReportKind:
    """A kind of run that `mixer report` knows.

    A package adds its own by entry points of the group `adaptive_mixer.reports`: `name = "package.module:function"`,
    where the function takes no argument and returns a `ReportKind`.

    Args:
        title: Name of such a run, as in "a continual run".
        recognises: Says whether a folder holds one.
        contents: Reads the runs in some folders, finished or running; raises `ValueError` on wrong input.
    """

    title: str
    recognises: Callable[[Path], bool]
    contents: Callable[[Sequence[Path]], Report]


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
        text = f"A report shows runs of one kind, but {listed(named)}. Write a report of each kind."
        raise InvalidValueError.about("runs", text)
    return found[0]


def _load(entry: EntryPoint, taken: Collection[str]) -> tuple[str, ReportKind]:
    return made_by(entry, taken, "report", ReportKind)
