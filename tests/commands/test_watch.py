"""`mixer watch`: where a run is."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from mixer.checkpoint.lock import FolderLock
from mixer.tools.cli.watch import place_of
from mixer.tools.records.run import Run
from tests.mixer.checkpoint.test_folder_lock import held_elsewhere
from tests.mixer.ledger.writing import begin, write


def test_it_shows_the_newest_run_once(tmp_path: Path, printed: Callable[..., str]) -> None:
    for name in ("01-first", "02-second"):
        ledger = begin(tmp_path / name, 2, 50)
        ledger.record_evaluation(50, {"stream-0": 1.5, "stream-1": 2.5})
        ledger.flush()
        for path in (tmp_path / name / "ledger").rglob("*"):
            os.utime(path, (1e9 + int(name[:2]), 1e9 + int(name[:2])))
    text = printed("watch", tmp_path)
    for part in (
        "02-second: running",
        "25%, step 50, epoch 0.50, 150 samples",
        "loss 3.500",
        "gradient 0.500",
        "2.500",
    ):
        assert part in text
    told = json.loads(printed("watch", tmp_path, "--json"))
    assert (told["state"], told["clock"]["gradient_norm"], told["eval_loss"]["last"]) == ("running", 0.5, 2.0)
    assert [stream["share"] for stream in told["streams"]] == pytest.approx([1 / 3, 2 / 3])
    ledger.end("stopped", "SIGTERM")
    assert (place_of(Run(tmp_path / "02-second"))["state"], place_of(Run(tmp_path / "02-second"))["reason"]) == (
        "stopped",
        "SIGTERM",
    )


def test_the_time_left_is_by_that_since_the_run_began_or_resumed(tmp_path: Path) -> None:
    def written_at(names: str, seconds: float) -> None:
        for path in (tmp_path / "ledger").glob(names):
            os.utime(path, (seconds, seconds))

    ledger = begin(tmp_path, 2, 50)
    ledger.flush()
    written_at("ledger.json", 1e9)
    written_at("clock/*", 1e9 + 100)
    assert place_of(Run(tmp_path))["seconds_left"] == pytest.approx(300.0)  # whatever was done in it, not only training
    ledger.begin(50, {"policy": "Uniform"})
    write(ledger, range(51, 101), 2)
    ledger.flush()
    written_at("clock/part-*", 2e9 - 10)
    written_at("ledger.json", 2e9)
    written_at("clock/tail-*", 2e9 + 50)
    assert place_of(Run(tmp_path))["seconds_left"] == pytest.approx(100.0)  # a step a second since it goes on


def test_a_killed_run_has_ended_without_finishing(tmp_path: Path) -> None:
    begin(tmp_path, 2, 50).flush()
    with held_elsewhere(tmp_path):
        assert place_of(Run(tmp_path))["state"] == "running"
    place = place_of(Run(tmp_path))
    assert (place["state"], place["seconds_left"]) == ("killed", None)
    lock = FolderLock(tmp_path)  # another run goes on there, in this process
    lock.acquire()
    assert place_of(Run(tmp_path))["state"] == "running"
    lock.release()
