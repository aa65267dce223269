"""Runs of other kinds, which other packages add to the report."""

from collections.abc import Sequence
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from mixer.tools.report import write_report
from mixer.tools.report.run_kinds import PLUG_IN_GROUP, Report, ReportKind, kind_of
from mixer.utils import entry_points as plugins
from tests.mixer.tools.report.ledgers import write_run
from tests.refusals import refused


def sweep() -> ReportKind:
    def contents(folders: Sequence[Path]) -> Report:
        return Report([folder.name for folder in folders], [("Rows", ["3"] * len(folders))], [], "Said below.")

    return ReportKind("a sweep", lambda folder: (folder / "sweep.json").exists(), contents)


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package, beside two that are broken."""
    values = {"broken": f"{__name__}:nothing", "none": "builtins:dict", "sweep": f"{__name__}:sweep"}
    entries = [EntryPoint(name, value, PLUG_IN_GROUP) for name, value in values.items()]
    monkeypatch.setattr(plugins, "entry_points", lambda group: [one for one in entries if one.group == group])


@pytest.mark.filterwarnings("ignore:.*is skipped:UserWarning")
def test_a_package_gives_the_page_of_its_runs_and_a_trainer_that_of_the_others(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("first", "second")]
    for folder in folders:
        folder.mkdir()
        (folder / "sweep.json").touch()
    with pytest.warns(UserWarning, match="is skipped") as warned:
        page = write_report(folders, tmp_path / "first.html")
    left_out = [f"report {name} of an unknown package is skipped" for name in ("broken", "none")]
    assert [str(warning.message).split(" (")[0] for warning in warned] == left_out
    text = page.read_text()
    for said in (
        "<h1>Comparison of first and second</h1>",
        '<th scope="row">Rows</th><td>3</td><td>3</td>',
        "Said below.",
    ):
        assert said in text
    write_run(tmp_path / "run")
    assert kind_of([tmp_path / "run"]) is None
    assert "Mixture" in write_report([tmp_path / "run"], tmp_path / "run.html").read_text()
    with refused("runs"):
        write_report([tmp_path / "run", folders[1]], tmp_path / "mixed.html")
