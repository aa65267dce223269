import argparse
from typing import Any

import pytest
import torch
from benchmarks.speed.probe_steps import GRAPH, IDLE, PASSES, PLAIN, PROBED, Subject, new_step
from torch import nn

from benchmarks.speed import probe_steps

MEBIBYTE = 2**20


def arguments(**changes: Any) -> argparse.Namespace:
    defaults = {"model": "llama", "vocabulary": 64, "layers": 1, "hidden": 32, "length": 8, "batch": 6}
    others = {"device": "cpu", "dtype": "fp32", "alternating": True, "sketch_size": 8}
    return argparse.Namespace(**{**defaults, **others, **changes})


class TestSteps:
    @pytest.mark.parametrize("name", [IDLE, *PROBED, PASSES, GRAPH])
    def test_every_way_does_the_same_step(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        models: list[nn.Module] = []

        class Kept(Subject):
            def __init__(self, *args: Any):
                super().__init__(*args)
                models.append(self.model)
                self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1.0)

        monkeypatch.setattr(probe_steps, "Subject", Kept)
        args = arguments()
        steps = {PLAIN: new_step(PLAIN, args, 2), name: new_step(name, args, 2)}
        for step in steps.values():
            step()
        if name == IDLE:  # has done one before
            steps[PLAIN]()
        for plain, other in zip(*(model.parameters() for model in models), strict=True):
            torch.testing.assert_close(other, plain, rtol=1e-4, atol=1e-5)
