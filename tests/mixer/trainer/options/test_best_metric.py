"""`metric_for_best_model` that names a stream: the best model by it is kept, loaded, and waited for."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import EarlyStoppingCallback

from mixer import MixingTrainer, OverfitGuard, Uniform
from mixer.tools.records.run import Run
from mixer.tools.report.findings import findings_of
from mixer.utils.errors import InvalidValueError
from tests.helpers import On, Tokens
from tests.mixer.trainer.runs import logged, make, train
from tests.refusals import refused

KIND = "sequence-classification"
SAVES = {"save_strategy": "steps", "save_steps": 1, "load_best_model_at_end": True}


def _share_right(prediction: Any) -> dict[str, float]:
    scores, labels = torch.as_tensor(prediction.predictions), torch.as_tensor(prediction.label_ids)
    # By the scores too, so that hardly any two evaluations give the same.
    return {"accuracy": float((scores.argmax(-1) == labels).double().mean() + scores[:, 0].double().mean())}


def _trainer(folder: Path, metric: str, **changes: Any) -> Any:
    options: dict[str, Any] = {"max_steps": 6, "learning_rate": 0.5, "eval_strategy": "steps", "eval_steps": 1, **SAVES}
    options["train_dataset"] = {"math": Tokens(20, 1, KIND), "code": Tokens(11, 2, KIND)}
    options["eval_dataset"] = {"math": Tokens(7, 8, KIND), "code": Tokens(6, 9, KIND)}
    options |= {"compute_metrics": _share_right, "metric_for_best_model": metric, **changes}
    return make(folder, "bert-classifier", **options)


@pytest.mark.parametrize(
    ("metric", "greater"),
    [("eval_math_loss", None), ("eval_worst_loss", None), ("code_loss", True), ("code_accuracy", None)],
)
def test_the_best_model_by_it_is_loaded(metric: str, greater: bool | None, tmp_path: Path) -> None:
    trainer = _trainer(tmp_path, metric, greater_is_better=greater, save_total_limit=1)
    trainer.train()
    values = logged(trainer, f"eval_{metric.removeprefix('eval_')}")
    is_greater = not metric.endswith("loss") if greater is None else greater
    best = max(values) if is_greater else min(values)
    assert len(values) == 6
    assert trainer.state.best_metric == best
    assert trainer.state.best_global_step == values.index(best) + 1
    metrics = trainer.evaluate()
    assert metrics[f"eval_{metric.removeprefix('eval_')}"] == pytest.approx(best, abs=1e-6)


def _worsen(state: Any, model: Any, **_: Any) -> None:
    for parameter in model.parameters() if state.global_step >= 2 else ():
        parameter.grad.neg_()


@pytest.mark.parametrize("metric", ["eval_math_loss", "worst_loss", "loss"])
def test_a_run_stops_once_it_does_not_improve(metric, tmp_path, caplog, monkeypatch) -> None:
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    callbacks = [On(pre_optimizer_step=_worsen), EarlyStoppingCallback(early_stopping_patience=2)]
    trainer = _trainer(tmp_path, metric, callbacks=callbacks, learning_rate=0.1, max_steps=12)
    trainer.train()
    values = logged(trainer, f"eval_{metric.removeprefix('eval_')}")
    best = values.index(min(values))
    assert len(values) == best + 3 < 12  # two evaluations that are no better, of that metric alone
    assert trainer.state.best_global_step == best + 1
    assert "early stopping" not in caplog.text  # "is disabled"


LOSSES = ["eval_loss", "eval_worst_loss", "eval_math_loss", "eval_code_loss"]


@pytest.mark.parametrize(
    ("metric", "changes", "known"),
    [
        ("eval_mth_loss", {}, LOSSES),
        ("mth_loss", {}, LOSSES),
        ("eval_math_aux_loss", {"compute_metrics": None}, LOSSES),
        ("eval_math_loss", {"compute_metrics": None, "eval_dataset": Tokens(7, 8, KIND)}, ["eval_loss"]),
    ],
)
def test_a_loss_of_no_set_is_refused_early(metric: str, changes: Any, known: list[str], tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError) as refused:
        _trainer(tmp_path, metric, **changes)
    assert (refused.value.option, refused.value.found) == ("metric_for_best_model", metric)
    assert refused.value.expected.endswith(", ".join(known))


@pytest.mark.parametrize(
    ("metric", "changes"),
    [
        ("eval_mth_accuracy", {}),
        ("eval_math_aux_loss", {}),
        ("acuracy", {"lr_scheduler_type": "reduce_lr_on_plateau"}),  # which looks for it before
        ("acuracy", {"callbacks": [EarlyStoppingCallback()]}),
    ],
)
def test_another_metric_that_there_is_not_ends_the_first_evaluation(metric, changes, tmp_path, caplog) -> None:
    trainer = _trainer(tmp_path, metric, **changes)
    assert "metric_for_best_model" not in caplog.text  # what compute_metrics returns is not known yet
    with pytest.raises(InvalidValueError) as refused:
        trainer.train()
    assert (refused.value.option, refused.value.found) == ("metric_for_best_model", metric)
    assert {"eval_math_accuracy", "eval_code_accuracy", *LOSSES} <= set(refused.value.expected.split(", "))
    assert trainer.state.global_step == 1


@pytest.mark.parametrize("metric", ["eval_org/a_loss", "org/a_f1/macro", "org--a_loss"])
def test_a_set_may_be_named_as_it_was_given(metric: str, tmp_path: Path) -> None:
    sets = {"org/a": Tokens(7, 8, KIND), "b_c": Tokens(6, 9, KIND)}
    options = {"compute_metrics": lambda prediction: {"f1/macro": _share_right(prediction)["accuracy"]}}
    trainer = _trainer(tmp_path, metric, eval_dataset=sets, max_steps=2, **options)
    trainer.train()
    key = f"eval_{metric.removeprefix('eval_').replace('org/a', 'org--a')}"
    values = logged(trainer, key)
    assert trainer.state.best_metric == (min if key.endswith("loss") else max)(values)


def test_a_small_stream_loses_share_and_the_best_of_each_is_kept(tmp_path, caplog) -> None:
    kind, rates = "sequence-classification", {"optim": "adamw_torch", "learning_rate": 0.01}
    sets = {"small": Tokens(16, 7, kind), "large": Tokens(32, 8, kind)}
    options = {"max_steps": 40, "eval_strategy": "steps", "eval_steps": 5, "mixing": OverfitGuard(Uniform()), **rates}
    data = {"small": Tokens(4, 1, kind), "large": Tokens(400, 2, kind)}
    options |= {"train_dataset": data, "eval_dataset": sets, "save_best_of_each": True}
    trainer = train(tmp_path, "bert-classifier", **options)
    assert "small overfits" in caplog.text
    weights = trainer.ledger.to_pandas().query("stream == 'small'")["weight"].tolist()
    assert weights[0] == 0.5
    assert weights[-1] < 0.4
    finding = next(finding for finding in findings_of([Run(tmp_path, "run")]) if finding.kind == "held back")
    assert "small (down to 0." in finding.text
    for name, rows in sets.items():
        note = json.loads((tmp_path / "best" / name / "best.json").read_text())
        losses = {e["step"]: e[f"eval_{name}_loss"] for e in trainer.state.log_history if f"eval_{name}_loss" in e}
        assert note == {"set": name, "metric": "loss", "value": min(losses.values()), "step": note["step"]}
        assert losses[note["step"]] == min(losses.values())
        best = type(trainer.model).from_pretrained(tmp_path / "best" / name)
        other = MixingTrainer(best, trainer.args, eval_dataset=rows)
        assert other.evaluate()["eval_loss"] == pytest.approx(note["value"], rel=1e-5)


@pytest.mark.parametrize(
    ("sets", "strategy"), [(Tokens(4, 1), "epoch"), ({"a": Tokens(4, 1)}, "no")], ids=["no dict", "no evaluations"]
)
def test_best_weights_of_each_need_evaluations_by_name(tmp_path: Path, sets: Any, strategy: str) -> None:
    with refused("save_best_of_each"):
        make(tmp_path, eval_strategy=strategy, save_best_of_each=True, eval_dataset=sets)
