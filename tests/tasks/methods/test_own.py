"""The page `docs/own_method.md`: its code is that of the example, which does what the methods shipped here do."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from examples.own_methods import HoldWeights, KeepHardest, KeepPredictions
from replay import ReplayBuffer
from tasks.methods import LwF, OnlineEWC
from tests.commands.recipes import ROOT
from tests.helpers import weights_of
from tests.mixer.trainer.checkpointing.test_resume import Instants, Killed
from tests.tasks.methods.runs import build


def test_the_code_of_the_page_is_that_of_the_example() -> None:
    blocks = re.findall(r"```python\n(.+?)```", (ROOT / "docs" / "own_method.md").read_text(), re.DOTALL)
    example = (ROOT / "examples" / "own_methods.py").read_text()
    assert len(blocks) == 3
    assert [block for block in blocks if block not in example] == []


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


def test_an_own_selection_keeps_the_largest_losses_of_all(tmp_path: Path) -> None:
    offered: list[float] = []

    class Noting(KeepHardest):
        def choose(self, offers: Any) -> Any:
            offered.extend(offers.losses.tolist())
            return super().choose(offers)

    run = build(tmp_path, "ERACE", memory=ReplayBuffer(5, Noting()), methods=[])
    run.run()
    for _ in range(2):
        assert sorted(run.memory.selection.losses) == sorted(offered)[-5:]
        run.memory.load(run.folder / "03-task_3" / "end" / "memory")
