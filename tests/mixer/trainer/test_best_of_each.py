"""The best weights of each evaluation set, and less of what overfits, in a run."""

import json
from pathlib import Path
from typing import Any

import pytest

from mixer import MixingTrainer, OverfitGuard, Uniform
from mixer.tools.records.run import Run
from mixer.tools.report.findings import findings_of
from tests.helpers import Tokens
from tests.mixer.trainer.runs import make, train
from tests.refusals import refused


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
