"""Runs that were cut short and resumed go on to the bit."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from replay import ReplayBuffer
from replay.methods import AGEM, DERPlusPlus
from tests.replay.methods.runs import make_trainer, states_of

CASES: dict[str, Any] = {
    "DER++": lambda: {"methods": [DERPlusPlus()]},
    "DER++ twice": lambda: {"methods": [DERPlusPlus(second="second")], "second": True, "batch_size": 9},
    "A-GEM": lambda: {"methods": [AGEM()], "learning_rate": 0.5},
    "MIR": lambda: {"buffer": ReplayBuffer(12, retrieval="MIR")},
    "gradients": lambda: {"buffer": ReplayBuffer(6, "GradientDiversity")},
}


@pytest.mark.parametrize("name", CASES)
def test_a_resumed_run_goes_on_to_the_bit(tmp_path: Path, name: str) -> None:
    options = {"max_steps": 8, "optim": "adamw_torch", "learning_rate": 0.05}
    whole = make_trainer(tmp_path / "whole", **{**options, **CASES[name]()})
    whole.train()
    make_trainer(tmp_path / "cut", **{**options, **CASES[name](), "save_strategy": "steps", "save_steps": 4}).train()
    resumed = make_trainer(tmp_path / "resumed", **{**options, **CASES[name]()})
    resumed.train(resume_from_checkpoint=str(tmp_path / "cut" / "checkpoint-4"))
    expected, found = states_of(whole), states_of(resumed)
    for key in expected:
        assert np.array_equal(found[key], expected[key]), key
    if name.startswith("DER"):
        for first, second in zip(
            *(t.buffer.payloads(np.arange(len(t.buffer)), "logits") for t in (whole, resumed)), strict=True
        ):
            assert np.array_equal(first, second)


def test_a_second_draw_is_another_draw_and_goes_on_where_it_was(tmp_path: Path) -> None:
    buffer = ReplayBuffer(20)
    trainer = make_trainer(tmp_path, buffer=buffer, second=True, batch_size=12)
    trainer.train()
    draw = trainer.streams[2].dataset
    assert repr(draw).startswith("SecondDraw(ReplayBuffer(")
    assert len(draw) == len(buffer)
    assert draw.num_drawn == trainer.mixing.planner.seen[2] > 0
    assert draw.retrieval.slots(5, 6, 20).tolist() != buffer.retrieval.slots(5, 6, 20).tolist()
    position = draw.num_drawn
    again = make_trainer(tmp_path / "next", buffer=buffer, new=trainer.streams[0].dataset)
    assert again.streams[1].dataset is buffer
    assert draw.new_cursor(99).advance(0) == position
