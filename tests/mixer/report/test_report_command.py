"""The command that writes the page."""

import json
from pathlib import Path

import pytest

from mixer.cli.entry import main
from tests.mixer.report.ledgers import write_run


def test_the_command_says_where_the_page_is_and_what_it_has(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [tmp_path / "first", tmp_path / "second"]
    for folder, streams in zip(runs, (("math", "code"), ("code", "chat")), strict=True):
        write_run(folder, streams)
    main(["report", *map(str, runs), "--output", str(tmp_path / "page.html"), "--json"])
    said = json.loads(capsys.readouterr().out)
    assert (said["page"], said["findings"]) == (str(tmp_path / "page.html"), [])
    assert said["summary"]["second"]["Steps"] == "6"
    assert [row["stream"] for row in said["streams"]["second"]] == ["code", "chat"]
    assert "math only in first" in said["note"]
    main(["report", str(runs[0])])
    assert capsys.readouterr().out.splitlines() == [str(runs[0] / "report.html")]
