import json
import os
from pathlib import Path

import pytest

from mixer.ledger.folder import newest_run, open_ledger, read_description
from mixer.ledger.ledger import Ledger
from tests.mixer.analysis.report.ledgers import write_run


def _note(folder: Path, **content: object) -> None:
    (folder / "ledger" / "ledger.json").write_text(json.dumps(content))


def test_a_run_that_is_going_is_opened(tmp_path: Path) -> None:
    write_run(tmp_path, is_done=False)
    assert open_ledger(tmp_path).to_pandas()["step"].max() == 6


def test_what_is_no_folder_or_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"Folder .*none does not exist: pass the output folder of a run"):
        open_ledger(tmp_path / "none")
    with pytest.raises(ValueError, match=r"is not the folder of a run: it has no ledger/ledger.json"):
        open_ledger(tmp_path)


def test_a_ledger_without_steps_is_refused(tmp_path: Path) -> None:
    Ledger(tmp_path / "ledger", is_writer=True).begin(None, {})
    with pytest.raises(ValueError, match="has no steps yet: if the run is in progress"):
        open_ledger(tmp_path)


@pytest.mark.parametrize("version", [2, 99, "1", None])
def test_a_ledger_of_a_newer_version_is_refused(tmp_path: Path, version: object) -> None:
    write_run(tmp_path)
    _note(tmp_path, format=version)
    with pytest.raises(
        ValueError, match=f"has format {version}, but this version reads up to 1. Upgrade adaptive-mixer"
    ):
        open_ledger(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", "\x00"])
def test_a_damaged_note_is_named(tmp_path: Path, text: str) -> None:
    write_run(tmp_path)
    (tmp_path / "ledger" / "ledger.json").write_text(text)
    with pytest.raises(ValueError, match=r"ledger.json is damaged: replace its content by"):
        open_ledger(tmp_path)


def test_a_description_is_read_and_older_ledgers_have_none(tmp_path: Path) -> None:
    write_run(tmp_path)
    assert read_description(tmp_path) == {}
    _note(tmp_path, format=1, run={"data_seed": 3})
    assert read_description(tmp_path) == {"data_seed": 3}
    _note(tmp_path, format=1, run="nonsense")
    assert read_description(tmp_path) == {}


def test_runs_within_a_folder_are_named_and_the_newest_found(tmp_path: Path) -> None:
    assert newest_run(tmp_path) == tmp_path
    for number, name in enumerate(("01-a", "02-b", "03-c")):
        write_run(tmp_path / name)
        for path in (tmp_path / name / "ledger").rglob("*"):
            os.utime(path, (1e9 + number % 2, 1e9 + number % 2))
    with pytest.raises(ValueError, match=r"Pass one of the runs in it: .*01-a, .*02-b, .*03-c\."):
        open_ledger(tmp_path)
    assert newest_run(tmp_path) == tmp_path / "02-b"
    assert newest_run(tmp_path / "03-c") == tmp_path / "03-c"
