"""The figures over all evaluation sets are the same for runs of any mixture, wherever they stand."""

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mixer.ledger.evaluated_losses import (
    check_eval_weights,
    mean_loss,
    metrics_by_set,
    recorded_objective,
    recorded_weights,
    worst_loss,
)
from mixer.tools.records.run import Run
from tests.refusals import refused

LOSSES = {"a": 1.0, "b": 2.0, "c": 6.0}
SETS = ("a", "b", "held out")


def test_only_weights_of_all_sets_weigh_and_no_number_is_worse_than_any_and_leaves_no_mean() -> None:
    by_four = {"a": 2, "b": 1, "c": 1}
    for weights in (by_four, {**by_four, "d": 9}):
        assert mean_loss(LOSSES, weights) == 2.5
    for weights in (None, {"a": 2, "b": 1}, dict.fromkeys(LOSSES, 0)):
        assert mean_loss(LOSSES, weights) == 3.0
    for losses in ({"a": math.nan, "b": 1.0}, {"b": 1.0, "a": math.nan}, {}):
        assert math.isnan(worst_loss(losses))
        assert math.isnan(mean_loss(losses))
    assert mean_loss({"a": math.nan, "b": 1.0}, {"a": 0, "b": 1}) == 1.0


@pytest.mark.parametrize(
    ("error", "weights", "sets"),
    [
        (ValueError, {"a": 1}, SETS),
        (ValueError, {"a": 1}, None),
        (ValueError, {"a": -1, "b": 1, "held out": 1}, SETS),
        (ValueError, dict.fromkeys(SETS, 0), SETS),
        (TypeError, [1, 2], SETS),
    ],
)
def test_weights_that_do_not_fit_are_refused(error: type[Exception], weights: Any, sets: Any) -> None:
    with refused("eval_weights", kind=error):
        check_eval_weights(weights, None if sets is None else dict.fromkeys(sets))
    for damaged in ([1.0], {"a": -1}, {"a": "1"}, {"a": math.inf}, "a"):
        with refused("eval_weights"):
            recorded_weights(Path("run"), {"run": {"eval_weights": damaged}})


@pytest.mark.parametrize("damaged", [3, {"targets": 3}, {"kind": "x"}, {"bounds": {"a": "b"}}, {"metric": 1}, {"x": 1}])
def test_a_damaged_objective_is_named(damaged: Any) -> None:
    with refused("objective"):
        recorded_objective(Path("run"), {"run": {"objective": damaged}})
    assert recorded_weights(Path("run"), {"run": 3}) is None


def test_metrics_are_told_apart_by_the_longest_name_of_a_set() -> None:
    of_a = {"loss": 1.0, "runtime": 2.0, "samples_per_second": 3.0, "steps_per_second": 4.0, "b_f1": 5.0}
    of_a |= {"response_time": 6, "words": ["x"], "b_loss": 7.0, "model_preparation_time": 10.0, "f1": np.float32(0.5)}
    metrics = {f"eval_a_{name}": value for name, value in of_a.items()}
    metrics |= {"epoch": 8.0, "eval_model_preparation_time": 9.0}
    assert metrics_by_set(metrics, "eval", {"a", "a_b"}) == {"a_b": {"f1": 5.0}, "a": {"response_time": 6.0, "f1": 0.5}}


def _measured(prediction: Any) -> dict[str, Any]:
    return {"accuracy": float(np.mean(prediction.predictions)), "kinds": len(prediction.label_ids), "text": "no number"}


def _train(folder: Path, resumed_from: str | None = None, **options: Any) -> Any:
    from tests.helpers import Tokens
    from tests.mixer.trainer.runs import train

    saves = {"save_strategy": "steps", "save_steps": 2, "eval_strategy": "steps", "eval_steps": 2}
    options |= {"train_dataset": {"a": Tokens(20, 1), "b": Tokens(20, 2)}, "mixing": {"a": 9, "b": 1}, **saves}
    options |= {"eval_dataset": {name: Tokens(4, seed) for seed, name in enumerate(SETS)}}
    return train(folder, resume=resumed_from, max_steps=4, compute_metrics=_measured, **options)


@pytest.mark.parametrize("weights", [None, {"a": 1.0, "b": 3.0, "held out": 0.0}])
def test_it_is_the_same_wherever_it_stands(tmp_path, weights, printed) -> None:
    from mixer.tools.report.contents import read_report

    trainer = _train(tmp_path, eval_weights=weights)
    history = trainer.state.log_history
    logs = [entry for entry in history if "eval_loss" in entry]
    losses = [[entry[f"eval_{name}_loss"] for entry in history if f"eval_{name}_loss" in entry] for name in SETS]
    first, last = (mean_loss({name: own[at] for name, own in zip(SETS, losses, strict=True)}, weights) for at in (0, 1))
    assert [entry["eval_loss"] for entry in logs] == [first, last]

    summary = Run(tmp_path)
    assert (summary.mean_loss(0), summary.mean_loss()) == (first, last)
    assert [summary.worst_loss(0), summary.worst_loss()] == [entry["eval_worst_loss"] for entry in logs]
    metrics = trainer.ledger.metrics()
    expected = [(step, name, metric) for step in (2, 4) for name in SETS for metric in ("accuracy", "kinds")]
    assert [tuple(row) for row in metrics[["step", "stream", "metric"]].to_numpy()] == expected
    logged = [entry["eval_b_accuracy"] for entry in trainer.state.log_history if "eval_b_accuracy" in entry]
    assert metrics[(metrics["stream"] == "b") & (metrics["metric"] == "accuracy")]["value"].tolist() == logged

    (told,) = json.loads(printed("compare", tmp_path, "--json"))
    assert told["eval_loss"] == {"first": first, "last": last}
    assert [row["samples"] for row in told["streams"] if row["stream"] == "held out"] == [None]
    assert {"stream": "b", "metric": "accuracy", "first": logged[0], "last": logged[1]} in told["metrics"]
    table = printed("compare", tmp_path)
    assert re.search(rf"average +│ +{first:.3f} → {last:.3f}", table)
    assert re.search(rf"accuracy.*{logged[0]:.3f} → {logged[1]:.3f}", table)

    report = read_report([tmp_path])
    assert dict(report.summary)["Validation loss, last, average"] == [f"{last:.3f}"]
    assert f"{first:.3f} to {last:.3f}" in report.answer.sentences[0]
    (plot,) = [plot for plot in report.plots if plot.title == "Metrics"]
    assert [panel.title for panel in plot.panels] == [f"{tmp_path.name}: accuracy", f"{tmp_path.name}: kinds"]
    assert len(plot.panels[0].figure.data) == 3
    row = report.as_data()["streams"][tmp_path.name].set_index("stream").loc["b"]
    assert row[["first_validation_accuracy", "last_validation_accuracy"]].tolist() == logged
    assert trainer.ledger.evaluations()["loss"].tolist() == [own[at] for at in (0, 1) for own in losses]
    resumed = _train(tmp_path, str(tmp_path / "checkpoint-2"), eval_weights=weights)
    assert resumed.ledger.metrics().equals(metrics)
