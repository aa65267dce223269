"""Adaptive mixtures: by the ledger of a run, exactly where it is the same one, or by losses that are assumed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mixer
from mixer import Ledger, schedules
from mixer.analysis.explain.explanation import explain
from mixer.analysis.simulate import AssumedLosses
from mixer.cli.entry import main
from mixer.recipe.stream_recipe import StreamRecipe
from mixer.utils.files import read_json
from tests.mixer.simulation.runs import assert_same, plan, three, train

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


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gc.collect", lambda *_: 0)


@pytest.mark.parametrize("case", CASES)
def test_from_its_own_ledger_it_is_the_trained_run(tmp_path: Path, case: str) -> None:
    train(tmp_path / "run", **CASES[case])
    found = plan(tmp_path / "other", tmp_path / "simulated", losses=tmp_path / "run", **CASES[case])
    assert_same(tmp_path / "run", tmp_path / "simulated")
    assert "step by step" in found.source
    weights = Ledger(tmp_path / "run" / "ledger").to_pandas().groupby("stream")[["policy_weight", "loss_weight"]]
    assert np.ptp(weights.agg(np.ptp).to_numpy()) > 0 or case.startswith("batches")  # something was decided
    assert explain(tmp_path / "simulated", found.steps).is_decided


def assumed(folder: Path, by_stream: Any, policy: Callable[[], mixer.Policy] | None = None, **fields: Any) -> Any:
    mixing = policy or (lambda: mixer.LossChange(num_warmup_observations=1, fast_decay=0.5))
    return plan(folder / "other", folder / "simulated", assumed_losses=by_stream, mixing=mixing, **fields)


def test_by_assumed_losses_the_stream_that_falls_most_is_mixed_in_most(tmp_path: Path) -> None:
    flat, steep = {"start": 2.0, "end": 2.0}, {"start": 9.0, "end": 1.0, "scale": 20.0}
    found = assumed(tmp_path, {"default": flat, "c": steep}, training={"max_steps": 30})
    shares = dict(zip("abc", found.counts[10:].sum(axis=0) / found.counts[10:].sum(), strict=True))
    assert shares["c"] > 0.4 > 0.35 > shares["a"]
    assert "assumed" in found.source
    losses = Ledger(tmp_path / "simulated" / "ledger").to_pandas()
    of_c = losses[(losses["stream"] == "c") & (losses["count"] > 0)]
    np.testing.assert_allclose(of_c["loss"], 1 + 8 * (1 + of_c["seen"] / 20) ** -0.5)


def test_off_the_record_losses_go_by_what_streams_have_seen(tmp_path: Path) -> None:
    train(tmp_path / "run", **CASES["LossChange"])
    given = {**CASES["LossChange"], "batch_size": 13}
    found = plan(tmp_path / "other", tmp_path / "simulated", losses=tmp_path / "run", **given)
    assert "before step 1, which has other samples" in found.source
    assert read_json(tmp_path / "simulated" / "ledger" / "ledger.json")["simulated"] == found.source
    recorded, simulated = (Ledger(tmp_path / name / "ledger").to_pandas() for name in ("run", "simulated"))
    for name in "abc":
        own, other = (table[(table["stream"] == name) & (table["count"] > 0)] for table in (recorded, simulated))
        expected = np.interp(other["seen"], own["seen"], own["loss"])
        np.testing.assert_allclose(other["loss"], expected, rtol=1e-12)


def test_evaluations_off_the_record_too(tmp_path: Path) -> None:
    case = CASES["LossChange by evaluations"]
    train(tmp_path / "run", **case)
    plan(tmp_path / "other", tmp_path / "simulated", losses=tmp_path / "run", **{**case, "batch_size": 16})
    recorded, simulated = (Ledger(tmp_path / name / "ledger") for name in ("run", "simulated"))
    for name in "abc":
        rows = recorded.to_pandas()
        seen = {0: 0, **rows[rows["stream"] == name].set_index("step")["seen"]}
        own = recorded.evaluations().query("stream == @name")
        counts = simulated.to_pandas()
        now = {0: 0, **counts[counts["stream"] == name].set_index("step")["seen"]}
        other = simulated.evaluations().query("stream == @name")
        assert other["step"].tolist() == [0, 3, 6, 9, 12]
        expected = np.interp([now[step] for step in other["step"]], [seen[step] for step in own["step"]], own["loss"])
        np.testing.assert_allclose(other["loss"], expected)


def test_a_policy_by_gradients_takes_a_run_of_another_policy_that_measured_them(tmp_path: Path) -> None:
    given = {"training": {"max_steps": 12}, "batch_size": 12}
    train(tmp_path / "run", mixing="Uniform", probe=mixer.Probing(interval_steps=2), **given)
    policy = CASES["PiKE"]["mixing"]
    found = plan(tmp_path / "other", tmp_path / "simulated", losses=tmp_path / "run", mixing=policy, **given)
    assert "before step" in found.source  # it leaves the uniform mixture
    measured = Ledger(tmp_path / "simulated" / "ledger").gradients()
    assert measured["step"].unique().tolist() == [2, 4, 6, 8, 10, 12]
    assert np.ptp(found.weights, axis=0).max() > 0.01


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "nothing is observed": ({"mixing": "LossChange"}, r"mixing=LossChange goes by \['loss'\].*--losses RUN"),
    "gradients cannot be assumed": (
        {"mixing": "PiKE", "assumed_losses": {}},
        r"mixing=PiKE goes by \['gradient_variance'\], which is not in what was given. .*--losses RUN",
    ),
    "both": ({"mixing": "LossChange", "assumed_losses": {}, "losses": "x"}, "give one of the two"),
    "another stream": (
        {"mixing": "LossChange", "assumed_losses": {"d": {}}},
        r"the streams are \['a', 'b', 'c'\].*'d'",
    ),
    "another number": ({"mixing": "LossChange", "assumed_losses": {"a": {"stop": 1}}}, "'a' must be a mapping with"),
    "out of range": ({"mixing": "LossChange", "assumed_losses": {"a": {"scale": 0}}}, "scale must be above 0"),
    "no folder": ({"mixing": "LossChange", "losses": "nowhere"}, "There is no folder nowhere"),
    "no rank": ({"num_ranks": 0}, "num_ranks must be at least 1, got 0"),
    "more ranks than samples": ({"num_ranks": 9, "batch_size": 8}, "fewer than the 9 ranks"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_it_says_what_is_missing_and_the_way_out(tmp_path: Path, case: str) -> None:
    fields, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        plan(tmp_path / "other", tmp_path / "simulated", **fields)


def test_default_cannot_mean_a_stream_and_all_of_them() -> None:
    with pytest.raises(ValueError, match="'default' stands for all streams, and one is called so too"):
        AssumedLosses(("a", "default"), {"default": {"end": 0.5}})
    assert AssumedLosses(("a", "default"), {"a": {"start": 2.0}}).evaluation(0, np.zeros(2, dtype=np.int64)) == {
        "a": 2.0,
        "default": 4.0,
    }


@pytest.mark.parametrize("text", ["nojson", "[1]", "3", '{"a":'])
def test_assumed_losses_that_are_no_mapping_are_told_with_the_form(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["simulate", "recipes/demo.yaml", "--assumed_losses", text])
    assert stop.value.code == 2
    assert "--assumed_losses must be a JSON mapping of streams, such as '{" in capsys.readouterr().err


def test_courses_are_defaults_of_streams() -> None:
    courses = AssumedLosses(("a", "b"), {"default": {"end": 0.5}, "b": {"start": 3.0}})
    assert courses.evaluation(0, np.zeros(2, dtype=np.int64)) == {"a": 4.0, "b": 3.0}
    assert courses.evaluation(0, np.array([3000, 0]))["a"] == pytest.approx(0.5 + 3.5 / 2)
