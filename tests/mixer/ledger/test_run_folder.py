import json
import os
from pathlib import Path

import pyarrow.parquet as pq

from mixer.ledger.folder import newest_run, open_ledger, read_description
from mixer.ledger.ledger import Ledger
from mixer.ledger.table_files import write_part
from tests.mixer.tools.report.ledgers import write_run
from tests.refusals import refused


def test_a_run_that_is_going_is_opened_and_what_is_none_is_refused(tmp_path: Path) -> None:
    write_run(tmp_path / "run", is_done=False)
    assert open_ledger(tmp_path / "run").to_pandas()["step"].max() == 6
    (tmp_path / "empty").mkdir()
    Ledger(tmp_path / "new" / "ledger", is_writer=True).begin(None, {})
    for name, option in {"none": "folder", "empty": "folder", "new": "ledger"}.items():
        with refused(option):
            open_ledger(tmp_path / name)


def test_a_description_is_read_and_one_of_a_newer_version_or_that_is_damaged_is_refused(tmp_path: Path) -> None:
    write_run(tmp_path)
    assert read_description(tmp_path) == {}
    note = tmp_path / "ledger" / "ledger.json"
    for run, expected in (({"data_seed": 3}, {"data_seed": 3}), ("nonsense", {})):
        note.write_text(json.dumps({"format": 1, "run": run}))
        assert read_description(tmp_path) == expected
    newer = {json.dumps({"format": version}): "format" for version in (3, 99, "1", None)}
    for text, option in {**newer, **dict.fromkeys(("", "{", "[]", "\x00"), "ledger.json")}.items():
        note.write_text(text)
        with refused(option):
            open_ledger(tmp_path)


def test_runs_within_a_folder_are_named_and_the_newest_found(tmp_path: Path) -> None:
    assert newest_run(tmp_path) == tmp_path
    for number, name in enumerate(("01-a", "02-b", "03-c")):
        write_run(tmp_path / name)
        for path in (tmp_path / name / "ledger").rglob("*"):
            os.utime(path, (1e9 + number % 2, 1e9 + number % 2))
    with refused("folder"):
        open_ledger(tmp_path)
    assert newest_run(tmp_path) == tmp_path / "02-b"
    assert newest_run(tmp_path / "03-c") == tmp_path / "03-c"


def test_a_ledger_is_opened_by_its_run_or_itself_and_any_other_folder_is_refused(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "runs" / "one" / "ledger", is_writer=True)
    ledger.begin(None, {})
    ledger.record_evaluation(3, {"a": 1.5})
    ledger.finish()
    for folder in (tmp_path / "runs" / "one", tmp_path / "runs" / "one" / "ledger"):
        assert Ledger(folder).evaluations()["loss"].tolist() == [1.5]
    (tmp_path / "empty").mkdir()
    for name in ("empty", "missing", "runs"):
        with refused("folder"):
            Ledger(tmp_path / name)


def test_a_ledger_of_an_earlier_version_is_told_as_that(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger", is_writer=True)
    ledger.begin(None, {})
    ledger.record_evaluation(3, {"a": 1.5})
    ledger.finish()
    part = next((tmp_path / "ledger" / "evaluations").glob("part-*.parquet"))
    write_part(part, pq.read_table(part).drop_columns(["loss"]))
    with refused("part-000000.parquet"):
        Ledger(tmp_path).evaluations()
    for found in ({}, {"format": 0}):
        (tmp_path / "ledger" / "ledger.json").write_text(json.dumps(found))
        with refused("format"):
            open_ledger(tmp_path)
