"""Pictures and tables as files, and the command that writes them."""

import importlib.util
import json
import re
from pathlib import Path

import pandas as pd
import plotly.graph_objects as go
import pytest

from mixer.cli.entry import main
from mixer.ledger.ledger import Ledger
from mixer.report.contents import read_report
from mixer.report.exporting import file_name
from mixer.report.pictures import for_paper, write_pictures
from mixer.report.plot import Plot, panel
from mixer.report.tables import write_tables
from tests.mixer.report.ledgers import write_run
from tests.mixer.report.test_page import HOSTILE

has_kaleido = importlib.util.find_spec("kaleido") is not None


def test_names_of_files_are_safe_short_and_different() -> None:
    for name in (*HOSTILE, "long " * 100):
        assert re.fullmatch("[a-z0-9][a-z0-9-]{0,79}", file_name(name))
    taken: list[str] = []
    for name in ("a b", "a/b", "A--B", "ab", "数", "学"):
        taken.append(file_name(name, taken))
    assert taken == ["a-b", "a-b-2", "a-b-3", "ab", "unnamed", "unnamed-2"]


@pytest.mark.parametrize("table_format", ["csv", "parquet"])
def test_every_table_with_rows_is_a_file(tmp_path: Path, table_format: str) -> None:
    ledger = write_run(tmp_path / "run", measure_every=2)
    own = read_report([tmp_path / "run"]).tables()
    paths = write_tables({"../run": ledger}, own, tmp_path / "new" / "tables", table_format)
    kept = ("streams", "clock", "timings", "evaluations", "metrics", "gradients", "memories")
    names = ["summary", "findings", "by-stream", *(f"run-{name}" for name in kept), "run-memory-classes"]
    assert [path.name for path in paths] == [f"{name}.{table_format}" for name in names]
    read = pd.read_csv if table_format == "csv" else pd.read_parquet
    tables = {path.stem: read(path) for path in paths if path.stem != "findings"}
    assert tables["run-streams"]["loss"].tolist() == pytest.approx(ledger.to_pandas()["loss"].tolist())
    gram = tables["run-gradients"]["gram"].iloc[0]
    expected = pytest.approx(ledger.gradients()["gram"].iloc[0].tolist())
    assert (json.loads(gram) if table_format == "csv" else gram.tolist()) == expected
    assert tables["by-stream"]["samples"].tolist() == [42, 42]
    assert tables["summary"].set_index("figure").loc["Steps", "run"] in (6, "6")


def test_tables_without_rows_are_left_out_and_wrong_input_is_refused(tmp_path: Path) -> None:
    ledger = write_run(tmp_path / "run")
    paths = write_tables({"run": ledger}, {}, tmp_path)
    assert [path.stem for path in paths] == ["run-streams", "run-clock", "run-timings", "run-evaluations"]
    assert ledger.tables() == Ledger(tmp_path / "run" / "ledger").tables()
    assert ledger.read("clock", ["step", "loss"]).column_names == ["step", "loss"]
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="table_format must be one of csv, parquet, found 'xls'"):
        write_tables({}, {}, tmp_path, "xls")
    with pytest.raises(ValueError, match=r"tables must be a folder, but .*file is a file"):
        write_tables({}, {}, tmp_path / "file")


def test_a_figure_for_a_paper_is_dark_on_white_or_needs_named_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [go.Scatter(x=[0, 1, 2], y=[place, 3, 9], legendgroup=name, name=name) for place, name in enumerate("ab")]
    pale = go.Scatter(x=[0, 1, 2], y=[0, 1, 2], name="pale", opacity=0.3)
    plot = Plot("Some plot", "", [panel("one", [*lines, pale], 2.0), panel("Some plot", lines[:1], 2.0)])
    figure = for_paper(plot.panels[0].figure, "<b>")
    assert figure.layout.paper_bgcolor == figure.layout.plot_bgcolor == "#ffffff"
    assert [trace.showlegend for trace in figure.data] == [True, True, False]
    assert figure.layout.showlegend
    assert figure.layout.title.text == "&lt;b&gt;"
    assert not for_paper(plot.panels[1].figure, "").layout.showlegend
    assert plot.panels[0].figure.layout.paper_bgcolor == "rgba(0,0,0,0)"  # the page's own is left as it is
    monkeypatch.setenv("BROWSER_PATH", str(tmp_path / "nowhere"))
    if has_kaleido:
        with pytest.raises(ValueError, match="drawn by Chrome or Chromium, which was not found: install one"):
            write_pictures([plot], tmp_path)
    monkeypatch.setitem(write_pictures.__globals__, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"kaleido 1.0 or later, which is not installed: pip install"):
        write_pictures([], tmp_path)


def test_the_command_says_where_everything_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [tmp_path / "first", tmp_path / "second"]
    for folder, streams in zip(runs, (("math", "code"), ("code", "chat")), strict=True):
        write_run(folder, streams)
    options = ["--output", str(tmp_path / "page.html"), "--tables", str(tmp_path / "tables")]
    main(["report", *map(str, runs), *options, "--json"])
    said = json.loads(capsys.readouterr().out)
    assert (said["page"], said["pictures"], said["findings"]) == (str(tmp_path / "page.html"), [], [])
    assert {Path(path) for path in said["tables"]} == set((tmp_path / "tables").iterdir())
    assert said["summary"]["second"]["Steps"] == "6"
    assert [row["stream"] for row in said["streams"]["second"]] == ["code", "chat"]
    assert "math only in first" in said["note"]
    main(["report", str(runs[0]), *options[2:], "--table_format", "parquet"])
    lines = capsys.readouterr().out.splitlines()
    assert (lines[0], Path(lines[-1]).name) == (str(runs[0] / "report.html"), "first-evaluations.parquet")
    with pytest.raises(SystemExit) as ending:
        main(["report", str(tmp_path / "nowhere"), "--picture_format", "gif", "--pictures", str(tmp_path)])
    assert ending.value.code == 2
    assert "picture_format must be one of" in capsys.readouterr().err  # before anything is read
