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
CASES: dict[str, dict[str, Any]] = {
    "LossChange": {"mixing": lambda: mixer.LossChange(num_warmup_observations=1), "training": {"max_steps": 12}},
    "LossChange by evaluations": {
        "mixing": lambda: mixer.LossChange(num_warmup_observations=1, loss="evaluation"),
        "training": STEPS,
    },
    "PiKE": {"mixing": lambda: mixer.PiKE(2, signal_rate=2.0), "training": {"max_steps": 12}, "batch_size": 12},
    "TargetLoss in a wrapper": {
        "mixing": lambda: mixer.Smoothed(mixer.TargetLoss({"a": 4.0, "b": 3.9, "c": 3.5})),
        "training": EVALUATED,
    },
    "Aioli": {"mixing": lambda: mixer.Aioli(1.0, 2, 1, 1), "training": EVALUATED},
    "groups and a replay memory": {
        "streams": {
            **three(a={"groups": {"k": "x"}}, b={"groups": {"k": "y"}}, c={"groups": {"k": "y"}}),
            "memory": StreamRecipe("replay.ReplayBuffer", {"capacity": 12}, groups={"k": "y"}),
        },
        "groupings": [mixer.Grouping("k", max_shares={"x": 0.2})],
        "mixing": lambda: mixer.LossChange(num_warmup_observations=1, fast_decay=0.5),
        "training": {"max_steps": 12},
    },
    "factors on losses": {"mixing": "GroupDRO", "training": {"max_steps": 6}},
    "update norms": {"mixing": lambda: mixer.GradNorm(interval_steps=1, acts_on="sampling"), "training": EVALUATED},
    "batches that follow the loss": {
        "mixing": "ODM",
        "batch_size": lambda: schedules.LossChange(maximum=40),
        "training": {"num_train_epochs": 3},
    },
}


QUICK = ("LossChange by evaluations", "PiKE", "groups and a replay memory", "batches that follow the loss")


@pytest.mark.parametrize("case", [pytest.param(one, marks=() if one in QUICK else pytest.mark.full) for one in CASES])
def test_from_its_own_ledger_it_is_the_trained_run(tmp_path: Path, case: str) -> None:
    train(tmp_path / "run", **CASES[case])
    found = plan(tmp_path / "other", tmp_path / "simulated", losses=tmp_path / "run", **CASES[case])
    assert_same(tmp_path / "run", tmp_path / "simulated")
    assert "step by step" in found.source
    weights = Ledger(tmp_path / "run" / "ledger").to_pandas().groupby("stream")[["policy_weight", "loss_weight"]]
    assert np.ptp(weights.agg(np.ptp).to_numpy()) > 0 or case.startswith("batches")  # something was decided
    assert explain(tmp_path / "simulated", found.steps).is_decided


HELD: dict[str, dict[str, Any]] = {
    "a policy": {"mixing": "LossChange"},
    "a policy in a wrapper": {"mixing": lambda: mixer.Floor(mixer.PiKE(), 0.1)},
    "a policy and a batch size": {"mixing": "ODM", "batch_size": lambda: schedules.LossChange(maximum=40)},
    "a batch size": {"mixing": {"a": 2, "b": 1, "c": 1}, "batch_size": lambda: schedules.LossChange(maximum=40)},
}


@pytest.mark.parametrize("case", HELD)
def test_without_losses_rules_hold_their_start_and_that_is_said(tmp_path: Path, case: str) -> None:
    found = plan(tmp_path / "other", tmp_path / "simulated", **HELD[case])
    assert found.source.startswith("Held at its start, as only training shows the losses: ")
    assert ("mixing=" in found.source) == (case != "a batch size")
    assert ("batch_size=LossChange (it needs loss)" in found.source) == ("batch size" in case)
    assert "--losses RUN" in found.source
    assert found.progress == 1.0
    np.testing.assert_array_equal(found.weights, np.broadcast_to(found.weights[0], found.weights.shape))
    assert np.ptp(found.batch_sizes) == 0
    assert read_json(tmp_path / "simulated" / "ledger" / "ledger.json")["simulated"] == found.source


def test_a_recipe_is_as_it_was_after_a_simulation(tmp_path: Path) -> None:
    made = recipe(tmp_path, mixing=mixer.LossChange(num_warmup_observations=1), training={"max_steps": 6})
    simulate(made)
    assert not made.mixing.is_static
    trainer = made.build()
    trainer.train()
    assert trainer.ledger.to_pandas().groupby("stream")["policy_weight"].agg(np.ptp).max() > 0


def test_off_the_record_losses_are_those_of_the_recorded_steps(tmp_path: Path) -> None:
    train(tmp_path / "run", **CASES["LossChange"])
    given = {**CASES["LossChange"], "batch_size": 13, "training": {"max_steps": 14}}
    found = plan(tmp_path / "other", tmp_path / "simulated", losses=tmp_path / "run", **given)
    assert "before step 1, which has other samples" in found.source
    assert read_json(tmp_path / "simulated" / "ledger" / "ledger.json")["simulated"] == found.source
    recorded, simulated = (Ledger(tmp_path / name / "ledger").to_pandas() for name in ("run", "simulated"))
    for name in "abc":
        own, other = (table[table["stream"] == name].set_index("step") for table in (recorded, simulated))
        expected = own["loss"].ffill().reindex(other.index, method="ffill").where(other["count"] > 0)
        np.testing.assert_array_equal(other["loss"], expected)


def test_a_policy_by_gradients_takes_a_run_of_another_policy_that_measured_them(tmp_path: Path) -> None:
    given = {"training": {"max_steps": 12}, "batch_size": 12}
    train(tmp_path / "run", mixing="Uniform", probe=mixer.Probing(interval_steps=2), **given)
    policy = CASES["PiKE"]["mixing"]
    found = plan(tmp_path / "other", tmp_path / "simulated", losses=tmp_path / "run", mixing=policy, **given)
    assert "before step" in found.source  # it leaves the uniform mixture
    measured = Ledger(tmp_path / "simulated" / "ledger").gradients()
    assert measured["step"].unique().tolist() == [2, 4, 6, 8, 10, 12]
    assert np.ptp(found.weights, axis=0).max() > 0.01
    longer = {**given, "training": {"max_steps": 18}, "mixing": lambda: mixer.PiKE(3, signal_rate=2.0)}
    plan(tmp_path / "other", tmp_path / "longer", losses=tmp_path / "run", **longer)
    measured = Ledger(tmp_path / "longer" / "ledger").gradients()
    assert {9, 12, 15, 18} <= set(measured["step"])  # where it is due once the plans differ, beyond the record too


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "another policy's losses": (
        {"mixing": "PiKE"},
        r"mixing=PiKE with .* needs \['gradient_variance'\], which the run in .* did not record",
    ),
    "other streams": (
        {"mixing": "LossChange", "streams": {"a": stream(8, 1), "d": stream(8, 2)}},
        r"has the streams \['a', 'b', 'c'\], and nothing of \['d'\]",
    ),
    "no folder": ({"mixing": "LossChange", "losses": "nowhere"}, "Folder nowhere does not exist"),
    "no rank": ({"num_ranks": 0, "losses": None}, "num_ranks must be at least 1, got 0"),
    "more ranks than samples": ({"num_ranks": 9, "batch_size": 8, "losses": None}, "fewer than the 9 ranks"),
}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recorded")
    train(folder, training={"max_steps": 2})
    return folder


@pytest.mark.parametrize("case", REFUSED)
def test_errors_name_the_problem_and_the_way_out(tmp_path: Path, recorded: Path, case: str) -> None:
    fields, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        plan(tmp_path / "other", tmp_path / "simulated", **{"losses": recorded, **fields})
