"""What is read of a run that is watched: what is new, once."""

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from mixer.analysis.watch.curve import Curve, sparkline
from mixer.analysis.watch.gathered import Follower, WatchedRun
from mixer.ledger.table import Table
from tests.mixer.analysis.watch.writing import begin, write

SCHEMA = pa.schema({"step": pa.int64(), "value": pa.float64()})


def _append(table: Table, step: int) -> None:
    table.append({"step": [step, step], "value": [step / 2, 0.0]})


@pytest.mark.parametrize("every", [1, 7, 40])
def test_each_row_is_given_once_however_the_table_is_sealed(tmp_path: Path, every: int) -> None:
    table = Table(tmp_path, SCHEMA, rows_per_part=50, flush_interval_seconds=0.0)
    follower, steps = Follower(tmp_path, SCHEMA, ["step"]), []
    for step in range(100):
        _append(table, step)
        if step % every == 0:
            steps += follower.new_rows().column("step").to_pylist()
    table.close()
    steps += follower.new_rows().column("step").to_pylist()
    assert steps == [step for step in range(100) for _ in range(2)]
    assert follower.new_rows().num_rows == 0


def test_a_torn_tail_is_read_up_to_its_last_whole_rows_and_gone_on_with(tmp_path: Path) -> None:
    table = Table(tmp_path / "whole", SCHEMA, flush_interval_seconds=0.0)
    for step in range(6):
        _append(table, step)
    written = (tmp_path / "whole" / "tail-000000.arrow").read_bytes()
    (tmp_path / "torn").mkdir()
    tail, follower, steps = tmp_path / "torn" / "tail-000000.arrow", Follower(tmp_path / "torn", SCHEMA, ["step"]), []
    for length in [*range(0, len(written), 37), len(written)]:
        tail.write_bytes(written[:length])
        steps += follower.new_rows().column("step").to_pylist()
    assert steps == [step for step in range(6) for _ in range(2)]


def test_what_came_before_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = begin(tmp_path, 3, 300, steps=400)
    ledger.finish()
    run = WatchedRun(tmp_path)
    run.read()
    monkeypatch.setattr("mixer.ledger.table_files.read_part", lambda *args: pytest.fail("it read a part again"))
    write(ledger, range(301, 302), 3, 400)
    run.read()
    assert (run.gathered.last_step, run.progress) == (301, 301 / 400)
    stream = run.gathered.streams["stream-1"]
    assert len(stream.recent) == 50
    assert stream.recent_loss == pytest.approx(np.mean([5.0 - step / 100 for step in range(252, 302)]))
    assert run.gathered.shares()["stream-2"] == pytest.approx(0.5)


def test_before_it_has_seen_a_run_go_the_time_left_is_by_that_since_it_began(tmp_path: Path) -> None:
    def written_at(names: str, seconds: float) -> None:
        for path in (tmp_path / "ledger").glob(names):
            os.utime(path, (seconds, seconds))

    ledger = begin(tmp_path, 2, 50)
    written_at("ledger.json", 1e9)
    written_at("clock/*", 1e9 + 100)
    run = WatchedRun(tmp_path)
    run.read()
    assert run.seconds_left() == pytest.approx(300.0)  # whatever was done in it, not only training
    ledger.begin(50, {"policy": "Uniform"})
    write(ledger, range(51, 101), 2)
    written_at("clock/part-*", 2e9 - 10)
    written_at("ledger.json", 2e9)
    written_at("clock/tail-*", 2e9 + 50)
    run.read()
    assert run.seconds_left() == pytest.approx(100.0)  # a step a second since it goes on


def test_a_run_that_begins_anew_is_read_anew(tmp_path: Path) -> None:
    ledger = begin(tmp_path, 2, 10)
    run = WatchedRun(tmp_path)
    run.read()
    ledger.begin(5, {"policy": "Uniform"})  # goes on from a checkpoint
    write(ledger, range(6, 7), 2)
    run.read()
    assert run.gathered.last_step == len(run.gathered.streams["stream-0"].losses.points) == 6
    ledger.begin(None, {"policy": "Uniform"})
    run.read()
    assert run.gathered.clock == {}
    write(ledger, range(1, 2), 2)
    run.read()
    assert run.gathered.last_step == 1


def test_how_a_run_ended_is_known(tmp_path: Path) -> None:
    ledger = begin(tmp_path, 2, 1, steps=2)
    run = WatchedRun(tmp_path)
    for goes_on in (
        ledger.finish,  # as before a checkpoint is copied
        lambda: write(ledger, range(2, 3), 2, 2),  # the last evaluation is to come
        ledger.finish,  # nothing was said of how it ended
    ):
        goes_on()
        run.read()
        assert run.state == "running"
    ledger.end("stopped")
    run.read()
    assert (run.state, run.seconds_left()) == ("stopped", None)
    run.note["run"] = {"budget": {"steps": 10**400, "epochs": float("nan"), "tokens": -1, "samples": "9", "{{7}}": 8}}
    assert run.budget == {}  # nobody wrote that


def test_a_curve_stays_small_and_keeps_its_mean() -> None:
    values = np.arange(10_000, dtype=float)
    at_once, bit_by_bit = Curve(), Curve()
    at_once.extend(np.append(values, np.nan))
    for piece in np.array_split(values, 331):
        bit_by_bit.extend(piece)
    for curve in (at_once, bit_by_bit):
        assert 256 <= len(curve.points) <= 513
        assert (np.diff(curve.points) > 0).all()
        assert np.average(curve.points[:-1]) == pytest.approx(values.mean(), rel=0.01)
    drawn = [sparkline(np.array(values), 8) for values in ([], [2.0, 2.0], range(100))]
    assert drawn == ["", "▁▁", "▁▂▃▄▅▆▇█"]
