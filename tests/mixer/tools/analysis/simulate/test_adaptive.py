"""Adaptive mixtures are held at their start."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mixer
from mixer import schedules
from mixer.tools.analysis.simulate import simulate
from tests.mixer.tools.analysis.simulate.runs import plan, recipe


@pytest.mark.parametrize(
    ("fields", "held"),
    [
        ({"mixing": lambda: mixer.Floor(mixer.PiKE(), 0.1)}, ["mixing="]),
        ({"mixing": "ODM", "batch_size": lambda: schedules.LossChange(maximum=40)}, ["mixing=", "batch_size="]),
        ({"mixing": [2, 1, 1], "batch_size": lambda: schedules.LossChange(maximum=40)}, ["batch_size="]),
    ],
)
def test_without_losses_rules_hold_and_that_is_said(tmp_path: Path, fields: dict[str, Any], held: list[str]) -> None:
    found = plan(tmp_path / "other", **fields)
    assert found.source.startswith("Held at its start, as only training shows the losses: ")
    assert [name for name in ("mixing=", "batch_size=") if name in found.source] == held
    assert found.progress == 1.0
    np.testing.assert_array_equal(found.weights, np.broadcast_to(found.weights[0], found.weights.shape))
    assert np.ptp(found.batch_sizes) == 0


def test_a_recipe_is_as_it_was_after_a_simulation(tmp_path: Path) -> None:
    made = recipe(tmp_path, mixing=mixer.LossChange(num_warmup_observations=1), training={"max_steps": 6})
    simulate(made)
    trainer = made.build()
    trainer.train()
    assert trainer.ledger.to_pandas().groupby("stream")["policy_weight"].agg(np.ptp).max() > 0


@pytest.mark.parametrize(
    ("fields", "named"),
    [({"num_ranks": 0}, "num_ranks"), ({"num_ranks": 9, "batch_size": 8}, "9 ranks")],
)
def test_wrong_input_is_refused(tmp_path: Path, fields: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011 the next line
        plan(tmp_path / "other", **fields)
    assert named in str(error.value)
