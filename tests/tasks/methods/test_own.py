"""Methods and a selection of one's own, of `examples/own_methods.py` and the pages, do what the shipped ones do."""

from pathlib import Path
from typing import Any

import pytest
import torch

from examples.own_methods import HoldWeights, KeepPredictions, KeepSurprising
from replay import ReplayBuffer
from tasks.methods import CLSER, LwF, OnlineEWC
from tasks.score import Score
from tests.helpers import run_page, weights_of
from tests.mixer.checkpoint.test_resume import Instants, Killed
from tests.tasks.methods.runs import build


@pytest.mark.parametrize("name", ["KeepPredictions", "HoldWeights"])
def test_an_own_method_does_what_the_shipped_one_does(name: str, tmp_path: Path) -> None:
    own, shipped = {
        "KeepPredictions": (lambda: KeepPredictions(2.0), LwF(2.0, temperature=1.0)),
        "HoldWeights": (lambda: HoldWeights(30.0), OnlineEWC(30.0)),
    }[name]
    expected = build(tmp_path / "shipped", "LwF", methods=[shipped])
    expected.run()
    cut: dict[str, Any] = {"folder": tmp_path / "own", "name": "LwF"}
    with pytest.raises(Killed):
        build(**cut, methods=[own()], instants=Instants(8)).run()
    resumed = build(**cut, methods=[own()], seed=7)
    resumed.run(resume=True)
    torch.testing.assert_close(weights_of(resumed.model), weights_of(expected.model), rtol=0, atol=1e-5)


def test_an_own_selection_keeps_the_largest_losses_of_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offered: list[float] = []
    kind = run_page("extend_replay", tmp_path, monkeypatch)["KeepHardest"]

    class Noting(kind):  # type: ignore[misc, valid-type]
        def choose(self, offers: Any) -> Any:
            offered.extend(offers.losses.tolist())
            return super().choose(offers)

    run = build(tmp_path, "ERACE", memory=ReplayBuffer(5, Noting()), methods=[])
    run.run()
    for _ in range(2):
        assert sorted(run.memory.selection.losses) == sorted(offered)[-5:]
        run.memory.load(run.folder / "03-task_3" / "end" / "memory")


def test_surprise_and_a_slow_copy_are_joined_from_public_parts(tmp_path: Path) -> None:
    offered: dict[int, list[float]] = {}
    weights: list[Any] = []

    class Noting(KeepSurprising):
        def choose(self, offers: Any) -> Any:
            for task, loss in zip(offers.tasks.tolist(), offers.losses.tolist(), strict=True):
                offered.setdefault(task, []).append(loss)
            return super().choose(offers)

    class Slow(CLSER):
        def close(self, batch: Any) -> None:
            weights.append(weights_of(self.run.passes.model))
            super().close(batch)

    slow = Slow(strength=0.0, decay=0.8, plastic_rate=1.0, stable_rate=1.0)
    options: dict[str, Any] = {"memory": ReplayBuffer(6, Noting()), "score": Score(slow.score, "accuracy")}
    run = build(tmp_path, "ERACE", methods=[slow], **options)
    run.run()
    kept = sorted(map(tuple, run.memory.selection.entries))
    assert kept == sorted((task, loss) for task, losses in offered.items() for loss in sorted(losses)[-2:])
    expected = weights[0].clone()
    for number, now in enumerate(weights[1:], 1):
        expected.lerp_(now, max(1 / (number + 1), 0.2))
    torch.testing.assert_close(weights_of(slow.copies[-1]), expected)


@pytest.mark.full
def test_an_averaged_copy_is_taken_up_where_a_run_breaks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = run_page("extend_replay", tmp_path, monkeypatch)["SlowCopy"]
    own: dict[str, Any] = {"name": "ERACE", "memory": ReplayBuffer(12)}
    expected = build(tmp_path / "whole", methods=[whole := slow()], **own)
    expected.run()
    own["memory"] = ReplayBuffer(12)
    with pytest.raises(Killed):
        build(tmp_path / "cut", methods=[slow()], instants=Instants(8), **own).run()
    own["memory"] = ReplayBuffer(12)
    resumed = build(tmp_path / "cut", methods=[again := slow()], seed=7, **own)
    resumed.run(resume=True)
    assert torch.equal(weights_of(resumed.model), weights_of(expected.model))
    assert torch.equal(weights_of(again.average), weights_of(whole.average))
    assert not torch.equal(weights_of(whole.average), weights_of(expected.model))
