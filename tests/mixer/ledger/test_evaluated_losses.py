"""The figures over all evaluation sets are the same for runs of any mixture, wherever they stand."""

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import EvalPrediction

from mixer import MixingTrainer
from mixer.analysis.report.contents import read_report
from mixer.analysis.watch.gathered import WatchedRun
from mixer.analysis.watch.view import as_document
from mixer.cli.entry import main
from mixer.ledger.evaluated_losses import check_eval_weights, mean_loss, metrics_by_set, recorded_weights, worst_loss
from mixer.ledger.summary import comparison, summarise
from mixer.utils.console import console
from tests.helpers import Tokens, arguments, build_model

LOSSES = {"a": 1.0, "b": 2.0, "c": 6.0}
SETS = ("a", "b", "held out")


class TestMean:
    @pytest.mark.parametrize(
        ("weights", "mean"),
        [
            (None, 3.0),
            ({"a": 2, "b": 1, "c": 1}, 2.5),
            ({"a": 2, "b": 1, "c": 1, "d": 9}, 2.5),
            ({"a": 0, "b": 0, "c": 0}, 3.0),
            ({"a": 2, "b": 1}, 3.0),
        ],
    )
    def test_only_weights_of_all_sets_weigh(self, weights: dict[str, float] | None, mean: float) -> None:
        assert mean_loss(LOSSES, weights) == mean

    def test_no_number_is_worse_than_any_and_leaves_no_mean(self) -> None:
        for losses in ({"a": math.nan, "b": 1.0}, {"b": 1.0, "a": math.nan}):
            assert math.isnan(worst_loss(losses))
            assert math.isnan(mean_loss(losses))
            assert mean_loss(losses, {"a": 0, "b": 1}) == 1.0

    def test_of_no_set_there_is_none(self) -> None:
        assert math.isnan(mean_loss({}))
        assert math.isnan(worst_loss({}))


class TestWeights:
    @pytest.mark.parametrize(
        ("weights", "sets", "message"),
        [
            ({"a": 1}, SETS, r"names \['a'\], but eval_dataset has the sets \['a', 'b', 'held out'\]: set one"),
            ({"a": 1}, None, "but eval_dataset is not a dict"),
            ({"a": -1, "b": 1, "held out": 1}, SETS, "eval_weights: .* 'a' has -1.0"),
            (dict.fromkeys(SETS, 0), SETS, "the weights of all streams are 0"),
        ],
    )
    def test_those_that_do_not_fit_are_refused(self, weights: Any, sets: Any, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            check_eval_weights(weights, None if sets is None else dict.fromkeys(sets))

    def test_those_without_names_are_refused(self) -> None:
        with pytest.raises(TypeError, match="eval_weights must be a mapping"):
            check_eval_weights([1, 2], {"a": None, "b": None})  # type: ignore[arg-type]

    @pytest.mark.parametrize("weights", [[1.0], {"a": -1}, {"a": "1"}, {"a": math.inf}, "a"])
    def test_damaged_ones_are_named_with_their_file(self, weights: Any) -> None:
        with pytest.raises(ValueError, match=r"run/ledger/ledger\.json is damaged: its eval_weights"):
            recorded_weights(Path("run"), {"run": {"eval_weights": weights}})
        assert recorded_weights(Path("run"), {"run": 3}) is None


def test_metrics_are_told_apart_by_the_longest_name_of_a_set() -> None:
    metrics = {
        "eval_a_loss": 1.0,
        "eval_a_runtime": 2.0,
        "eval_a_samples_per_second": 3.0,
        "eval_a_steps_per_second": 4.0,
        "eval_a_b_f1": 5.0,
        "eval_a_response_time": 6,
        "eval_a_words": ["x"],
        "eval_a_b_loss": 7.0,
        "epoch": 8.0,
        "eval_model_preparation_time": 9.0,
        "eval_a_model_preparation_time": 10.0,
        "eval_a_f1": np.float32(0.5),
    }
    assert metrics_by_set(metrics, "eval", {"a", "a_b"}) == {"a_b": {"f1": 5.0}, "a": {"response_time": 6.0, "f1": 0.5}}


def _measured(prediction: EvalPrediction) -> dict[str, Any]:
    return {"accuracy": float(np.mean(prediction.predictions)), "kinds": len(prediction.label_ids), "text": "no number"}


def _train(folder: Path, **options: Any) -> MixingTrainer:
    trainer = MixingTrainer(
        build_model("llama"),
        arguments(folder, max_steps=4, eval_strategy="steps", eval_steps=2, logging_steps=1),
        train_dataset={"a": Tokens(20, 1), "b": Tokens(20, 2)},
        eval_dataset={name: Tokens(4, seed) for seed, name in enumerate(SETS)},
        mixing={"a": 9, "b": 1},
        compute_metrics=_measured,
        **options,
    )
    trainer.train()
    return trainer


@pytest.mark.parametrize("weights", [None, {"a": 1.0, "b": 3.0, "held out": 0.0}])
def test_it_is_the_same_wherever_it_stands(
    tmp_path: Path, weights: dict[str, float] | None, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = _train(tmp_path, eval_weights=weights)
    logs = [entry for entry in trainer.state.log_history if "eval_loss" in entry]
    losses = [[entry[f"eval_{name}_loss"] for entry in trainer.state.log_history if f"eval_{name}_loss" in entry] for
              name in SETS]  # fmt: skip
    first, last = (mean_loss({name: own[at] for name, own in zip(SETS, losses, strict=True)}, weights) for at in (0, 1))
    assert [entry["eval_loss"] for entry in logs] == [first, last]

    summary = summarise(tmp_path)
    assert summary.mean_losses == (first, last)
    assert summary.worst_losses == tuple(entry["eval_worst_loss"] for entry in logs)
    capsys.readouterr()
    main(["compare", str(tmp_path), "--json"])
    (told,) = json.loads(capsys.readouterr().out)
    assert told["eval_loss"] == {"first": first, "last": last}
    assert [row["samples"] for row in told["streams"] if row["stream"] == "held out"] == [None]
    main(["compare", str(tmp_path)])
    shown = capsys.readouterr().out
    assert re.search(rf"average +│ +{first:.3f} → {last:.3f}", shown)

    report = read_report([tmp_path])
    assert dict(report.summary)["Validation loss, last, average"] == [f"{last:.3f}"]
    assert f"{first:.3f} to {last:.3f}" in report.changes[tmp_path.name]
    watched = WatchedRun(tmp_path)
    watched.read()
    assert as_document(watched)["eval_loss"] == last
    assert trainer.ledger.evaluations()["loss"].tolist() == [own[at] for at in (0, 1) for own in losses]


def test_metrics_stand_beside_the_losses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = _train(tmp_path)
    metrics = trainer.ledger.metrics()
    assert metrics.columns.tolist() == ["step", "stream", "metric", "value"]
    expected = [(step, name, metric) for step in (2, 4) for name in SETS for metric in ("accuracy", "kinds")]
    assert [tuple(row) for row in metrics[["step", "stream", "metric"]].to_numpy()] == expected
    logged = [entry["eval_b_accuracy"] for entry in trainer.state.log_history if "eval_b_accuracy" in entry]
    own = metrics[(metrics["stream"] == "b") & (metrics["metric"] == "accuracy")]["value"].tolist()
    assert own == logged

    capsys.readouterr()
    main(["compare", str(tmp_path), "--json"])
    rows = json.loads(capsys.readouterr().out)[0]["metrics"]
    assert {"stream": "b", "metric": "accuracy", "first": logged[0], "last": logged[1]} in rows
    console().print(comparison([summarise(tmp_path)]))
    assert re.search(rf"b +│ accuracy │ +{logged[0]:.3f} → {logged[1]:.3f}", capsys.readouterr().out)

    report = read_report([tmp_path])
    (plot,) = [plot for plot in report.plots if plot.title == "Metrics"]
    assert [panel.title for panel in plot.panels] == [f"{tmp_path.name}: accuracy", f"{tmp_path.name}: kinds"]
    assert len(plot.panels[0].figure.data) == 3
    table = report.as_data()["streams"][tmp_path.name].set_index("stream")
    assert table.loc["b", "first_validation_accuracy"] == logged[0]
    assert table.loc["b", "last_validation_accuracy"] == logged[1]


def test_a_resumed_run_has_the_metrics_of_an_unbroken_one(tmp_path: Path) -> None:
    options = {"max_steps": 4, "eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2}
    found = []
    for is_resumed in (False, True):
        trainer = MixingTrainer(
            build_model("llama"),
            arguments(tmp_path, **options),
            train_dataset={"a": Tokens(20, 1), "b": Tokens(20, 2)},
            eval_dataset={"a": Tokens(4, 3)},
            compute_metrics=_measured,
        )
        trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2") if is_resumed else None)
        found.append(trainer.ledger.metrics())
    assert len(found[0]) == 4
    assert found[1].equals(found[0])
