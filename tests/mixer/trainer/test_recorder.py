from pathlib import Path
from typing import Any

import pytest

from mixer import Fixed, MixingTrainer, Stream, Uniform
from mixer.gradients.records import gradient_entries
from mixer.ledger.recorder import Recorder
from mixer.loading.loaded_step import StepResult
from mixer.measurements import Gradients, Results
from mixer.run.hooks import Observer
from mixer.trainer import resume
from tests.helpers import three_streams
from tests.mixer.made_measurements import measured
from tests.mixer.trainer.runs import make, train


@pytest.mark.parametrize(("num_steps", "interval_steps"), [(3, 1), (70, 8)])
def test_losses_read_late_are_the_losses_read_at_once(tmp_path, num_steps, interval_steps, monkeypatch) -> None:
    waiting = []

    class Watching(Recorder):
        def record(self, batch: object, *compared: object) -> None:
            super().record(batch, *compared)
            waiting.append(len(self._waiting))

    options = {"max_steps": num_steps, "logging_steps": 5, "mixing": Uniform(), "batch_size": 6}
    options["ledger_interval_steps"] = interval_steps
    at_once = train(tmp_path / "at once", **options)
    monkeypatch.setattr(resume, "Recorder", lambda *known: Watching(*known[:2], reads_at_once=False))
    late = train(tmp_path / "late", **options)  # as on a GPU
    assert waiting[:4] == [1, 2, 3, 4][:num_steps]
    assert late.ledger.to_pandas().equals(at_once.ledger.to_pandas())
    assert late.state.log_history[:-1] == at_once.state.log_history[:-1]


class _Measuring(MixingTrainer):
    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._parts.hooks.insert(0, _MadeUp())


class _MadeUp(Observer):
    def observe(self, result: StepResult) -> Results:
        is_measured = result.plan.step in (1, 2, 6, 10)
        return {Gradients: measured(3, seed=result.plan.step)} if is_measured else {}


def test_a_log_entry_says_what_was_measured_last_since_the_one_before_also_when_resumed(tmp_path: Path) -> None:
    options = {"max_steps": 12, "logging_steps": 4, "save_strategy": "steps", "save_steps": 3}
    trainer, *resumed = (make(tmp_path, kind=_Measuring, mixing=Uniform(), batch_size=6, **options) for _ in range(4))
    trainer.train()
    names = trainer.mixing.names
    logs = [entry for entry in trainer.state.log_history if "train_coverage" in entry and "loss" in entry]
    for entry, step in zip(logs, (2, 6, 10), strict=True):
        said = {name: value for name, value in entry.items() if name.startswith("gradient_")}
        assert said == gradient_entries(names, measured(3, seed=step))
    gradients, cosines = trainer.ledger.gradients(), trainer.ledger.cosines()
    assert gradients["step"].tolist() == [step for step in (1, 2, 6, 10) for _ in names]
    assert gradients["squared_norm"].tolist()[:3] == measured(3, seed=1).squared_norm.tolist()
    assert not [name for name in trainer._parts.run.recorder.log_entries() if name.startswith("gradient_")]
    lists = {"gram": str, "gram_error": str}
    for other, step in zip(resumed, (3, 6, 9), strict=True):
        other.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{step}"))
        assert [entry for entry in other.state.log_history if "train_coverage" in entry and "loss" in entry] == logs
        assert other.ledger.gradients().astype(lists).equals(gradients.astype(lists))
        assert other.ledger.cosines().equals(cosines)


def test_what_explains_the_decisions_is_recorded(tmp_path: Path) -> None:
    streams = [Stream(name, one, leaves_at=0.5 if name == "c" else 1.0) for name, one in three_streams().items()]
    policy = Fixed([0.5, 0.3, 0.2])
    trainer = train(tmp_path, max_steps=4, max_grad_norm=1.0, train_dataset=streams, mixing=policy, batch_size=7)
    rows, clock = trainer.ledger.to_pandas(), trainer.ledger.clock()
    assert rows["policy_weight"].tolist() == [0.5, 0.3, 0.2] * 4
    assert rows[rows["step"] > 2]["weight"].tolist() == pytest.approx([0.625, 0.375, 0.0] * 2)
    assert rows[rows["stream"] == "c"]["active"].tolist() == [True, False, False, False]  # in the step after
    assert rows["loss_weight"].eq(1.0).all()
    owed = dict.fromkeys("abc", 0.0)
    for _, row in rows[rows["step"] <= 2].iterrows():
        owed[row["stream"]] += 7 * row["weight"] - row["count"]
        assert row["owed"] == pytest.approx(owed[row["stream"]])
    assert rows.groupby("step")["owed"].sum().to_numpy() == pytest.approx(0.0)
    norms = [entry["grad_norm"] for entry in trainer.state.log_history if "grad_norm" in entry]
    assert clock["gradient_norm"].tolist() == pytest.approx(norms)
    means = (rows["loss"] * rows["items"]).groupby(rows["step"]).sum() / rows.groupby("step")["items"].sum()
    assert clock["loss"].tolist() == pytest.approx(means.tolist(), rel=1e-5)
