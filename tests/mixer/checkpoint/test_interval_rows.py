"""Runs whose ledger has a row for several steps: they train, resume and are read as those with a row a step."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from mixer import LossChange, MixingTrainer
from mixer.tools.analysis.explanation import explain
from mixer.tools.report.contents import read_report
from tests.mixer.trainer.runs import folder_of, make

ENDS = [3, 4, 6, 8, 9, 11]  # at multiples of 3, in checkpoints, at the end
OPTIONS: dict[str, Any] = {"max_steps": 11, "save_strategy": "steps", "save_steps": 4, "logging_steps": 2}


@pytest.fixture(scope="module")
def every(tmp_path_factory: pytest.TempPathFactory) -> MixingTrainer:
    return trained(tmp_path_factory.mktemp("runs") / "every", None)


@pytest.fixture(scope="module")
def intervals(tmp_path_factory: pytest.TempPathFactory) -> MixingTrainer:
    return trained(tmp_path_factory.mktemp("runs") / "intervals", 3)


def trained(folder: Path, interval_steps: int | None, resume: str | None = None) -> MixingTrainer:
    trainer = build(folder, interval_steps)
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def build(folder: Path, interval_steps: int | None) -> MixingTrainer:
    policy = LossChange(num_warmup_observations=1)
    return make(folder, mixing=policy, batch_size=6, ledger_interval_steps=interval_steps, **OPTIONS)


@pytest.mark.parametrize("step", [4, 8])
def test_a_run_resumed_within_an_interval_is_the_whole_one(intervals: MixingTrainer, tmp_path: Path, step: int) -> None:
    shutil.copytree(folder_of(intervals), tmp_path / "run")
    resumed = trained(tmp_path / "run", 3, str(tmp_path / "run" / f"checkpoint-{step}"))
    for table in ("streams", "clock", "decisions"):
        own, expected = (trainer.ledger.read(table).to_pandas() for trainer in (resumed, intervals))
        pd.testing.assert_frame_equal(own, expected)


def test_an_error_leaves_the_steps_of_the_interval_in_progress(tmp_path: Path) -> None:
    trainer = build(tmp_path, 50)
    step, compute = [0], trainer.compute_loss

    def failing(*args: Any, **kwargs: Any) -> Any:
        step[0] += 1
        if trainer.mixing.clock.step == 2:
            raise RuntimeError("it ends here")
        return compute(*args, **kwargs)

    trainer.compute_loss = failing  # type: ignore[method-assign]
    with pytest.raises(RuntimeError):
        trainer.train()
    rows = trainer.ledger.to_pandas()
    assert (rows["step"].tolist(), rows["count"].sum()) == ([2] * 3, 12)


def test_reports_and_comparisons_say_so_and_count_the_same(every, intervals, printed) -> None:
    folders = [folder_of(every), folder_of(intervals)]
    report = read_report(folders)
    first, second = report.runs
    for name, rows in first.streams.items():
        assert rows["count"].sum() == second.streams[name]["count"].sum()
    totals = np.cumsum([0, *every.ledger.clock()["total"]])
    assert second.row_clock["asked"].tolist() == np.diff(totals[[0, *ENDS]]).tolist()
    assert dict(report.summary)["Steps per recorded row"] == ["", "3"]
    assert "intervals has a row for 3 steps" in report.note
    assert "intervals: rows of 3 steps" in printed("compare", *folders)
    assert "step 11" in printed("watch", folders[1])


def test_an_explanation_is_of_the_interval_that_a_step_is_in(every: MixingTrainer, intervals: MixingTrainer) -> None:
    explanation, rows = explain(folder_of(intervals), 5), every.ledger.to_pandas()
    assert (explanation.step, explanation.total) == (6, 12)
    counts = rows[rows["step"].isin([5, 6])].groupby("stream")["count"].sum()
    assert explanation.counts["count"].tolist() == counts.tolist()
    assert explanation.counts["asked"].sum() == pytest.approx(12)
    assert "over the steps 5 to 6" in explanation.notes[0]
    with pytest.raises(ValueError, match=r"the steps in the ledger of .*, 1 to 11, got 12"):
        explain(folder_of(intervals), 12)
