"""Adaptive mixtures: by the ledger of a run, exactly if it is the same one, or held at their start."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mixer
from mixer import Ledger, schedules
from mixer.analysis.explain.explanation import explain
from mixer.analysis.simulate import simulate
from mixer.recipe.streams import StreamRecipe
from mixer.utils.files import read_json
from tests.mixer.analysis.simulate.runs import assert_same, plan, recipe, stream, three, train

EVALUATED = {"eval_strategy": "steps", "eval_steps": 2, "max_steps": 12}
STEPS = {"max_steps": 12, "eval_strategy": "steps", "eval_steps": 0.25, "eval_on_start": True}
TWELVE = {"max_steps": 12}
BY_LOSS = {"mixing": lambda: mixer.LossChange(num_warmup_observations=1), "training": TWELVE}
BY_GRADIENTS = {"mixing": lambda: mixer.PiKE(2, signal_rate=2.0), "training": TWELVE, "batch_size": 12}
QUICK: dict[str, dict[str, Any]] = {
    "LossChange by evaluations": {
        "mixing": lambda: mixer.LossChange(num_warmup_observations=1, loss="evaluation"),
        "training": STEPS,
    },
    "PiKE": BY_GRADIENTS,
    "batches that follow the loss": {
        "mixing": "ODM",
        "batch_size": lambda: schedules.LossChange(maximum=40),
        "training": TWELVE,
    },
}
SLOW: dict[str, dict[str, Any]] = {
    "a replay memory": {
        **BY_LOSS,
        "streams": {**three(), "memory": StreamRecipe("replay.ReplayBuffer", {"capacity": 12})},
    },
    "TargetLoss in a wrapper": {
        "mixing": lambda: mixer.Smoothed(mixer.TargetLoss({"a": 4.0, "b": 3.9, "c": 3.5})),
        "training": EVALUATED,
    },
    "factors on losses": {"mixing": "GroupDRO", "training": {"max_steps": 6}},
    "update norms": {"mixing": lambda: mixer.GradNorm(interval_steps=1, acts_on="sampling"), "training": EVALUATED},
}


@pytest.mark.parametrize("case", [*QUICK, *(pytest.param(one, marks=pytest.mark.full) for one in SLOW)])
def test_from_its_own_ledger_it_is_the_trained_run(tmp_path: Path, case: str) -> None:
    fields = {**QUICK, **SLOW}[case]
    train(tmp_path / "run", **fields)
    found = plan(tmp_path / "other", tmp_path / "simulated", losses=tmp_path / "run", **fields)
    assert_same(tmp_path / "run", tmp_path / "simulated")
    assert "step by step" in found.source
    assert found.evaluation_steps == ([0, 3, 6, 9, 12] if fields["training"] is STEPS else found.evaluation_steps)
    weights = Ledger(tmp_path / "run" / "ledger").to_pandas().groupby("stream")[["policy_weight", "loss_weight"]]
    assert np.ptp(weights.agg(np.ptp).to_numpy()) > 0 or case.startswith("batches")  # something was decided
    assert explain(tmp_path / "simulated", found.steps).is_decided


@pytest.mark.parametrize(
    ("fields", "held"),
    [
        ({"mixing": lambda: mixer.Floor(mixer.PiKE(), 0.1)}, ["mixing="]),
        ({"mixing": "ODM", "batch_size": lambda: schedules.LossChange(maximum=40)}, ["mixing=", "batch_size="]),
        ({"mixing": [2, 1, 1], "batch_size": lambda: schedules.LossChange(maximum=40)}, ["batch_size="]),
    ],
)
def test_without_losses_rules_hold_and_that_is_said(tmp_path: Path, fields: dict[str, Any], held: list[str]) -> None:
    found = plan(tmp_path / "other", tmp_path / "simulated", **fields)
    assert found.source.startswith("Held at its start, as only training shows the losses: ")
    assert [name for name in ("mixing=", "batch_size=") if name in found.source] == held
    assert "--losses RUN" in found.source
    assert found.progress == 1.0
    np.testing.assert_array_equal(found.weights, np.broadcast_to(found.weights[0], found.weights.shape))
    assert np.ptp(found.batch_sizes) == 0
    assert read_json(tmp_path / "simulated" / "ledger" / "ledger.json")["simulated"] == found.source


def test_a_recipe_is_as_it_was_after_a_simulation(tmp_path: Path) -> None:
    made = recipe(tmp_path, mixing=mixer.LossChange(num_warmup_observations=1), training={"max_steps": 6})
    simulate(made)
    trainer = made.build()
    trainer.train()
    assert trainer.ledger.to_pandas().groupby("stream")["policy_weight"].agg(np.ptp).max() > 0


def test_off_the_record_losses_are_those_of_the_recorded_steps(tmp_path: Path) -> None:
    train(tmp_path / "run", **BY_LOSS)
    given = {**BY_LOSS, "batch_size": 13, "training": {"max_steps": 14}}
    found = plan(tmp_path / "other", tmp_path / "simulated", losses=tmp_path / "run", **given)
    assert "before step 1, which has other samples" in found.source
    assert read_json(tmp_path / "simulated" / "ledger" / "ledger.json")["simulated"] == found.source
    recorded, simulated = (Ledger(tmp_path / name / "ledger").to_pandas() for name in ("run", "simulated"))
    for name in "abc":
        own, other = (table[table["stream"] == name].set_index("step") for table in (recorded, simulated))
        expected = own["loss"].ffill().reindex(other.index, method="ffill").where(other["count"] > 0)
        np.testing.assert_array_equal(other["loss"], expected)


def test_a_policy_by_gradients_takes_a_run_of_another_policy_that_measured_them(tmp_path: Path) -> None:
    given: dict[str, Any] = {"training": TWELVE, "batch_size": 12}
    train(tmp_path / "run", mixing="Uniform", probe=mixer.Probing(interval_steps=2), **given)
    given["training"] = {"max_steps": 18}
    longer = lambda: mixer.PiKE(3, signal_rate=2.0)  # noqa: E731
    found = plan(tmp_path / "other", tmp_path / "longer", losses=tmp_path / "run", mixing=longer, **given)
    assert "before step" in found.source  # it leaves the uniform mixture
    assert np.ptp(found.weights, axis=0).max() > 0.01
    measured = Ledger(tmp_path / "longer" / "ledger").gradients()
    assert {9, 12, 15, 18} <= set(measured["step"])  # where it is due once the plans differ, beyond the record too


def test_errors_name_the_problem_and_the_way_out(tmp_path: Path) -> None:
    train(tmp_path / "run", training={"max_steps": 2})
    other_streams = {"mixing": "LossChange", "streams": {"a": stream(8, 1), "d": stream(8, 2)}}
    cases: list[tuple[dict[str, Any], str]] = [
        ({"mixing": "PiKE"}, r"needs \['Gradients'\], which the run in .* did not record"),
        (other_streams, r"has the streams \['a', 'b', 'c'\], and nothing of \['d'\]"),
        ({"mixing": "LossChange", "losses": "nowhere"}, "Folder nowhere does not exist"),
        ({"num_ranks": 0, "losses": None}, "num_ranks must be at least 1, got 0"),
        ({"num_ranks": 9, "batch_size": 8, "losses": None}, "fewer than the 9 ranks"),
    ]
    for fields, message in cases:
        with pytest.raises(ValueError, match=message):
            plan(tmp_path / "other", tmp_path / "simulated", **{"losses": tmp_path / "run", **fields})
