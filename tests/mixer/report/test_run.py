from pathlib import Path

import pytest

from mixer.ledger import Ledger
from mixer.report.run import read_runs, stream_names
from mixer.report.summary import differing_streams, summary_rows
from tests.mixer.report.ledgers import write_run


class TestReading:
    def test_every_row_has_its_place_on_the_clock(self, tmp_path: Path) -> None:
        write_run(tmp_path / "run")
        (run,) = read_runs([tmp_path / "run"])
        assert run.name == "run"
        assert run.streams["code"]["samples"].tolist() == [4, 12, 24, 40, 60, 84]
        assert run.streams["code"]["epoch"].tolist() == [0.004, 0.012, 0.024, 0.04, 0.06, 0.084]
        assert run.streams["code"]["passes"].tolist() == run.streams["code"]["epoch"].tolist()
        assert run.evaluations["math"]["epoch"].tolist() == [0.0, 0.012, 0.04, 0.084]
        assert (run.load_seconds, run.train_seconds) == (3.0, 120.0)

    def test_a_run_that_is_still_going(self, tmp_path: Path) -> None:
        ledger = write_run(tmp_path / "run", is_done=False)
        assert list((tmp_path / "run" / "ledger" / "streams").glob("tail-*"))
        ledger.record_evaluation(9, {"math": 1.0})  # its update is not written yet
        ledger.flush()
        (run,) = read_runs([tmp_path / "run"])
        assert len(run.streams["math"]) == 6
        assert run.evaluations["math"]["step"].tolist() == [0, 2, 4, 6]
        assert dict(summary_rows([run]))["Done of the budget"] == ["50%"]

    def test_runs_of_one_name_are_called_by_their_paths(self, tmp_path: Path) -> None:
        folders = [tmp_path / "first" / "out", tmp_path / "second" / "out"]
        for folder in folders:
            write_run(folder)
        assert [run.name for run in read_runs(folders)] == [str(folder) for folder in folders]
        with pytest.raises(ValueError, match="given twice"):
            read_runs([folders[0], folders[0] / ".." / "out"])

    def test_what_is_no_run_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match=r"There is no folder .*nowhere: give the output folder"):
            read_runs([tmp_path / "nowhere"])
        with pytest.raises(ValueError, match=r"is not the folder of a run: it has no ledger/ledger\.json"):
            read_runs([tmp_path])
        Ledger(tmp_path / "new" / "ledger", is_writer=True).begin(None, {})
        with pytest.raises(ValueError, match="has no update yet: if the run is still going, try again"):
            read_runs([tmp_path / "new"])


class TestSummary:
    def test_the_main_figures(self, tmp_path: Path) -> None:
        write_run(tmp_path / "run")
        assert dict(summary_rows(read_runs([tmp_path / "run"]))) == {
            "Done of the budget": ["100%"],
            "Updates": ["6"],
            "Samples": ["84"],
            "Tokens": ["252"],
            "Epochs": ["0.08"],
            "Batch size, first → last": ["4 → 24 (min 4, max 24)"],
            "Learning rate, peak → last": ["0.0985 → 0.0866"],
            "Validation loss, last, average": ["3.500"],
            "Validation loss, last, worst": ["4.000"],
            "Time in loading": ["3.0 s"],
            "Time in training": ["2 min 0 s"],
        }

    def test_a_run_without_evaluations(self, tmp_path: Path) -> None:
        ledger = Ledger(tmp_path / "run" / "ledger")
        write_run(tmp_path / "run")
        for path in (ledger.folder / "evaluations").iterdir():
            path.unlink()
        assert dict(summary_rows(read_runs([tmp_path / "run"])))["Validation loss, last, worst"] == ["no evaluation"]

    def test_streams_that_only_some_runs_have(self, tmp_path: Path) -> None:
        write_run(tmp_path / "first", ("math", "code"))
        write_run(tmp_path / "second", ("code", "chat"))
        write_run(tmp_path / "third", ("code", "chat"))
        runs = read_runs([tmp_path / name for name in ("first", "second", "third")])
        assert stream_names(runs) == ["math", "code", "chat"]
        expected = "Not every run has every stream: math only in first; chat only in second and third."
        assert differing_streams(runs) == expected
        assert differing_streams(runs[1:]) == ""
