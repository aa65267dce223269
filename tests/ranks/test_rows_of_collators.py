"""Collators that return another number of rows, on two ranks, of which perhaps one alone has such rows."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.helpers import build_model
from tests.mixer.losses.test_rows_of_collators import marked_twice, streams, trained, without_marked
from tests.ranks.warm import Results, launched

COLLATORS = {"fewer": without_marked, "more": marked_twice}


def one_step(name: str, folder: Path) -> list[Any]:
    trainer, gradients = trained(folder / name, COLLATORS[name], "bert-tokens", max_steps=1, size=7)
    return [gradients[0], trainer.state.log_history[0]["loss"]]


results = launched(*(partial(one_step, name) for name in COLLATORS))


@pytest.mark.parametrize("name", COLLATORS)
def test_a_step_is_that_of_one_process(results: Results, name: str) -> None:
    plain: Any = build_model("bert-tokens")
    loss = plain(**COLLATORS[name]([row for stream in streams("token-classification").values() for row in stream])).loss
    loss.backward()
    expected = torch.cat([parameter.grad.flatten() for parameter in plain.parameters()])
    for gradient, logged in (of_rank[name] for of_rank in results):
        torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-6)
        assert logged == pytest.approx(loss.item(), rel=1e-5)
