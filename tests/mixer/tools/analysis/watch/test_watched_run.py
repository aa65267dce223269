"""What is read of a run that is watched."""

import os
from pathlib import Path

import numpy as np
import pytest

from mixer.tools.analysis.watch.gathered import WatchedRun
from mixer.tools.analysis.watch.view import sparkline
from tests.mixer.tools.analysis.watch.writing import begin, write


def read(folder: Path) -> WatchedRun:
    run = WatchedRun(folder)
    run.read()
    return run


def test_losses_and_shares_are_of_the_last_50_steps(tmp_path: Path) -> None:
    begin(tmp_path, 3, 301, steps=400).finish()
    run = read(tmp_path)
    assert run.progress == 301 / 400
    stream = run.streams["stream-1"]
    assert (stream.last["step"], stream.amounts["samples"], len(stream.losses)) == (301, 100.0, 301)
    assert stream.loss == pytest.approx(np.mean([5.0 - step / 100 for step in range(252, 302)]))
    assert run.shares()["stream-2"] == pytest.approx(0.5)


def test_the_time_left_is_by_that_since_the_run_began_or_resumed(tmp_path: Path) -> None:
    def written_at(names: str, seconds: float) -> None:
        for path in (tmp_path / "ledger").glob(names):
            os.utime(path, (seconds, seconds))

    ledger = begin(tmp_path, 2, 50)
    ledger.flush()
    written_at("ledger.json", 1e9)
    written_at("clock/*", 1e9 + 100)
    assert read(tmp_path).seconds_left() == pytest.approx(300.0)  # whatever was done in it, not only training
    ledger.begin(50, {"policy": "Uniform"})
    write(ledger, range(51, 101), 2)
    ledger.flush()
    written_at("clock/part-*", 2e9 - 10)
    written_at("ledger.json", 2e9)
    written_at("clock/tail-*", 2e9 + 50)
    assert read(tmp_path).seconds_left() == pytest.approx(100.0)  # a step a second since it goes on


def test_how_a_run_ended_is_known(tmp_path: Path) -> None:
    ledger = begin(tmp_path, 2, 1, steps=2)
    ledger.finish()  # as before a checkpoint is copied; nothing was said of how it ended
    assert read(tmp_path).state == "running"
    ledger.end("stopped")
    run = read(tmp_path)
    assert (run.state, run.seconds_left()) == ("stopped", None)
    run.note["run"] = {"budget": {"steps": 10**400, "epochs": float("nan"), "tokens": -1, "samples": "9", "{{7}}": 8}}
    assert run.budget == {}  # nobody wrote that


def test_a_sparkline_has_blocks_from_the_least_value_to_the_greatest() -> None:
    drawn = [sparkline(np.array(values)) for values in ([], [2.0, np.nan, 2.0], range(96))]
    assert drawn == ["", "▁▁", "▁▂▂▃▄▄▅▅▆▇▇█"]
