"""Tasks one after the other on one data clock, from ledgers written without training."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mixer.ledger.ledger import Ledger
from mixer.tools.report.plots.mixture import mixture
from tasks.tools.report.training import joined_run, task_ends
from tests.mixer.tools.report.ledgers import write_run

TASKS = ("one", "two", "three")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_run(tmp_path / "01-one", ("one",), num_steps=4, measure_every=2)
    write_run(tmp_path / "02-two", ("memory", "two"), num_steps=6, measure_every=2, unsized=("memory",))
    return tmp_path


def joined(folder: Path) -> Any:
    run = joined_run(folder, "run", TASKS)
    assert run is not None
    return run


def test_the_clock_goes_on_and_streams_stand_where_their_task_does_the_memory_last(folder: Path) -> None:
    run = joined(folder)
    assert run.clock["step"].tolist() == list(range(1, 11))
    assert run.clock["samples"].tolist() == [2, 6, 12, 20, 24, 32, 44, 60, 80, 104]
    np.testing.assert_allclose(run.clock["epoch"], run.clock["samples"] / 1000)
    assert run.clock["batch_size"].tolist() == [2, 4, 6, 8, 4, 8, 12, 16, 20, 24]
    assert task_ends(run, TASKS) == pytest.approx([0.02, 0.104])
    assert run.timings[["load_seconds", "train_seconds"]].sum().tolist() == [5.0, 200.0]
    assert list(run.streams) == ["one", "two", "memory"]
    assert run.streams["two"]["samples"].tolist() == run.clock["samples"].tolist()[4:]
    assert run.streams["two"]["passes"].tolist() == pytest.approx([0.004, 0.012, 0.024, 0.04, 0.06, 0.084])
    assert run.evaluations["two"]["step"].tolist() == [4, 6, 8, 10]
    shares = [line.y.tolist()[-1] for line in mixture([run], 100).panels[0].figure.data]
    assert shares == pytest.approx([0.0, 0.5, 0.5])


def test_a_task_is_shown_as_far_as_it_is_written(folder: Path, tmp_path: Path) -> None:
    assert joined_run(tmp_path / "nothing", "run", TASKS) is None
    before = joined(folder)
    Ledger(folder / "03-three" / "ledger", is_writer=True).begin(None, {})
    after = joined(folder)
    assert after.clock.equals(before.clock)
    assert list(after.streams) == list(before.streams)
    write_run(folder / "03-three", ("three",), num_steps=2, is_done=False)
    assert joined(folder).clock["samples"].tolist()[-2:] == [106, 110]
    (folder / "02-two" / "ledger" / "ledger.json").write_text("{")
    with pytest.raises(ValueError, match=r"02-two.*ledger\.json is damaged"):
        joined(folder)
