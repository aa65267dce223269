"""The command that writes the page."""

import json
from collections.abc import Callable
from pathlib import Path

from tests.mixer.tools.report.ledgers import write_run


def test_the_command_says_where_the_page_is_and_what_it_has(tmp_path: Path, printed: Callable[..., str]) -> None:
    runs = [tmp_path / "first", tmp_path / "second"]
    for folder, streams in zip(runs, (("math", "code"), ("code", "chat")), strict=True):
        write_run(folder, streams)
    said = json.loads(printed("report", *runs, "--output", tmp_path / "page.html", "--json"))
    assert (said["page"], said["findings"]) == (str(tmp_path / "page.html"), [])
    assert said["summary"]["second"]["Steps"] == "6"
    assert [row["stream"] for row in said["streams"]["second"]] == ["code", "chat"]
    assert "math only in first" in said["note"]
    assert printed("report", runs[0]).splitlines() == [str(runs[0] / "report.html")]
