import json
from pathlib import Path

import numpy as np
import pytest

from mixer.ledger import FORMAT_VERSION, Ledger

NAMES = ("math", "code")
COLUMNS = ["step", "stream", "weight", "count", "items", "loss", "tokens", "seen", "unique", "coverage", "epoch"]


def columns_of(step: int) -> dict[str, np.ndarray]:
    floats = {name: np.array([step / 3, np.nan]) for name in ("weight", "loss", "coverage", "epoch")}
    names = ("count", "items", "tokens", "seen", "unique", "staleness", "undelivered")
    whole = {name: np.array([step, 2 * step]) for name in names}
    return {**floats, **whole}


def record(ledger: Ledger, *steps: int) -> None:
    for step in steps:
        ledger.record_streams(step, NAMES, columns_of(step))
        ledger.record_update(step=step, total=8, micro_batches=2, hits=1, misses=0, load_seconds=0.5, train_seconds=1.5)


def started(folder: Path, resume_step: int | None = None) -> Ledger:
    ledger = Ledger(folder, is_writer=True)
    ledger.begin(resume_step, {"streams": list(NAMES)})
    return ledger


def steps_of(ledger: Ledger) -> list[int]:
    return ledger.to_pandas()["step"].tolist()[:: len(NAMES)]


class TestRecords:
    def test_there_is_a_row_per_update_and_stream(self, tmp_path: Path) -> None:
        ledger = started(tmp_path / "ledger")
        record(ledger, 1, 2)
        frame = ledger.to_pandas()
        assert list(frame.columns) == [*COLUMNS, "staleness", "undelivered"]
        assert frame["step"].tolist() == [1, 1, 2, 2]
        assert frame["stream"].tolist() == [*NAMES, *NAMES]
        assert frame["seen"].tolist() == [1, 2, 2, 4]
        assert frame["weight"].tolist()[::2] == [1 / 3, 2 / 3]
        assert frame["loss"].isna().tolist() == [False, True] * 2

    def test_timings_stand_in_a_table_of_their_own(self, tmp_path: Path) -> None:
        ledger = started(tmp_path / "ledger")
        record(ledger, 1)
        assert ledger.updates().to_dict("records") == [
            {
                "step": 1,
                "total": 8,
                "micro_batches": 2,
                "hits": 1,
                "misses": 0,
                "load_seconds": 0.5,
                "train_seconds": 1.5,
            }
        ]
        assert not [name for name in ledger.to_pandas().columns if "second" in name]

    def test_evaluations(self, tmp_path: Path) -> None:
        ledger = started(tmp_path / "ledger")
        ledger.record_evaluation(10, {"math": 1.5, "code": 2.5})
        ledger.record_evaluation(20, {})
        assert ledger.evaluations().to_dict("list") == {"step": [10, 10], "stream": [*NAMES], "loss": [1.5, 2.5]}

    def test_a_second_evaluation_after_the_end_of_the_run_is_kept(self, tmp_path: Path) -> None:
        ledger = started(tmp_path / "ledger")
        ledger.record_evaluation(10, {"math": 1.5})
        ledger.finish()
        ledger.record_evaluation(10, {"held out": 2.5})
        assert ledger.evaluations()["stream"].tolist() == ["math", "held out"]

    def test_an_empty_ledger_has_its_columns(self, tmp_path: Path) -> None:
        frame = Ledger(tmp_path / "none").to_pandas()
        assert list(frame.columns) == [*COLUMNS, "staleness", "undelivered"]
        assert frame.empty

    def test_the_same_run_writes_the_same_rows(self, tmp_path: Path) -> None:
        frames = []
        for name in ("first", "second"):
            ledger = started(tmp_path / name)
            record(ledger, *range(1, 30))
            ledger.finish()
            frames.append(ledger.to_pandas())
        assert frames[0].equals(frames[1])


class TestProcesses:
    def test_another_process_reads_while_the_run_goes_on(self, tmp_path: Path) -> None:
        ledger, reader = started(tmp_path / "ledger"), Ledger(tmp_path / "ledger")
        record(ledger, 1)
        ledger.flush()
        assert steps_of(reader) == [1]
        record(ledger, 2)
        ledger.finish()
        assert steps_of(reader) == [1, 2]

    def test_only_the_writer_writes(self, tmp_path: Path) -> None:
        ledger = Ledger(tmp_path / "ledger")
        ledger.begin(None, {})
        record(ledger, 1)
        ledger.record_evaluation(1, {"math": 1.0})
        ledger.flush()
        ledger.finish()
        assert not (tmp_path / "ledger").exists()

    def test_another_rank_leaves_the_ledger_where_it_is(self, tmp_path: Path) -> None:
        record(writer := started(tmp_path / "ledger"), 1)
        Ledger(tmp_path / "ledger").begin(None, {})
        assert steps_of(writer) == [1]


class TestBegin:
    def test_what_the_run_is_stands_beside_the_tables(self, tmp_path: Path) -> None:
        started(tmp_path / "ledger")
        description = json.loads((tmp_path / "ledger" / "ledger.json").read_text())
        assert description == {"format": FORMAT_VERSION, "streams": ["math", "code"]}

    def test_a_new_run_keeps_the_old_ledgers_beside_its_own(self, tmp_path: Path) -> None:
        for last in (1, 2, 3):
            ledger = started(tmp_path / "ledger")
            record(ledger, *range(1, last + 1))
            ledger.finish()
        assert steps_of(Ledger(tmp_path / "ledger")) == [1, 2, 3]
        assert steps_of(Ledger(tmp_path / "ledger-1")) == [1]
        assert steps_of(Ledger(tmp_path / "ledger-2")) == [1, 2]

    def test_a_second_run_of_the_same_process_begins_anew(self, tmp_path: Path) -> None:
        ledger = started(tmp_path / "ledger")
        record(ledger, 1, 2)
        ledger.begin(None, {})
        record(ledger, 1)
        assert steps_of(ledger) == [1]
        assert steps_of(Ledger(tmp_path / "ledger-1")) == [1, 2]

    @pytest.mark.parametrize("ending", ["finish", "flush"])
    def test_a_resumed_run_goes_on_after_its_checkpoint(self, tmp_path: Path, ending: str) -> None:
        crashed = started(tmp_path / "ledger")
        record(crashed, *range(1, 9))
        for step in (3, 6):
            crashed.record_evaluation(step, {"math": 1.0})
        getattr(crashed, ending)()
        resumed = started(tmp_path / "ledger", resume_step=5)
        record(resumed, 6, 7)
        assert steps_of(resumed) == [1, 2, 3, 4, 5, 6, 7]
        assert resumed.updates()["step"].tolist() == [1, 2, 3, 4, 5, 6, 7]
        assert resumed.evaluations()["step"].tolist() == [3]
        assert not (tmp_path / "ledger-1").exists()

    def test_resuming_without_a_ledger_begins_one(self, tmp_path: Path) -> None:
        ledger = started(tmp_path / "ledger", resume_step=5)
        record(ledger, 6)
        assert steps_of(ledger) == [6]

    def test_a_resumed_run_writes_what_an_unbroken_one_writes(self, tmp_path: Path) -> None:
        whole = started(tmp_path / "whole")
        record(whole, *range(1, 9))
        broken = started(tmp_path / "broken")
        record(broken, *range(1, 7))
        broken.flush()
        resumed = started(tmp_path / "broken", resume_step=4)
        record(resumed, *range(5, 9))
        assert resumed.to_pandas().equals(whole.to_pandas())
