"""Which rows two ranks were trained on, a buffer's and broken ones among them, and one rank that went on alone."""

from pathlib import Path
from typing import Any

import pytest

from mixer import Exposure
from mixer.tools.analysis.value import source_values
from tests.mixer.tools.analysis import test_value as value
from tests.mixer.trainer.test_exposure import Recording, Stop, build, pairs
from tests.ranks.warm import Results, launched


def stopped(folder: Path) -> dict[str, Any]:
    recording = Recording()
    trainer = build(folder, "buffer", recording, batch_size=6)
    trainer.add_callback(Stop())
    trainer.train()
    return {"folder": str(folder), "steps": {step: sorted(seen) for step, seen in recording.steps.items()}}


def forked(folder: Path) -> dict[int, Any]:
    recording = Recording()
    trainer = build(folder / "fork", "buffer", recording, batch_size=6)
    trainer.add_callback(Stop())
    trainer.fork(folder, at=4)
    return {step: sorted(seen) for step, seen in recording.steps.items()}


def valued(folder: Path) -> list[dict[str, Any]]:
    value.train_parent(folder / "linear")
    found = source_values(value.build, folder / "linear", value.AT, value.STEPS, repeats=2)
    return [{str(name): cell for name, cell in row.items()} for row in found.to_dict("records")]


results = launched(stopped, forked, valued)


def test_the_rows_of_all_ranks_are_known_and_those_of_one_rank_later(results: Results) -> None:
    own = [rank["stopped"] for rank in results]
    folder, recording = Path(own[0]["folder"]), Recording()
    build(folder, "buffer", recording, batch_size=6).train(resume_from_checkpoint=str(folder / "checkpoint-4"))
    exposure, steps = Exposure(folder), recording.steps
    for step in range(1, 5):
        steps[step] = {tuple(row) for rank in own for row in rank["steps"][step]}
    assert len(exposure.at(1)) == 6
    for step, seen in steps.items():
        assert pairs(exposure.at(step)) == seen


def test_a_fork_has_the_rows_of_the_run_on_each_rank(results: Results) -> None:
    for rank in results:
        assert rank["forked"] == {step: rank["stopped"]["steps"][step] for step in (5, 6)}
        assert Exposure(Path(rank["stopped"]["folder"]) / "fork").at(3)["row"].notna().all()


def test_values_of_sources_on_two_ranks_are_those_by_hand(results: Results) -> None:
    first, second = [rank["valued"] for rank in results]
    assert second == []
    for row in first:
        assert row["change"] == pytest.approx(value.by_hand(row["source"], row["target"]), rel=1e-4)
