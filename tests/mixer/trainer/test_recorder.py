import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mixer import Decision, Fixed, Floor, LossChange, MixingTrainer, Observation, Stream, Uniform
from mixer.gradients.records import gradient_entries
from mixer.ledger.folder import read_description
from mixer.ledger.recorder import Recorder
from mixer.trainer import training
from tests.helpers import arguments, build_model, three_streams
from tests.mixer.measurements import measured


class _ReadingLate(MixingTrainer):
    """Reads losses late, as on a GPU."""

    recorder: type[Recorder] = Recorder

    def train(self, *args: Any, **kwargs: Any) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(training, "new_recorder", lambda _, __, *known: self.recorder(*known, reads_at_once=False))
            return super().train(*args, **kwargs)


def _run(trainer_class: type[MixingTrainer], tmp_path: Path, num_steps: int) -> MixingTrainer:
    args = arguments(tmp_path / trainer_class.__name__, max_steps=num_steps, logging_steps=5)
    trainer = trainer_class(build_model("llama"), args, train_dataset=three_streams(), mixing=Uniform(), batch_size=6)
    trainer.train()
    return trainer


@pytest.mark.parametrize("num_steps", [3, 5, 70])
def test_losses_read_late_are_the_losses_read_at_once(tmp_path: Path, num_steps: int) -> None:
    late, at_once = _run(_ReadingLate, tmp_path, num_steps), _run(MixingTrainer, tmp_path, num_steps)
    assert late.ledger.to_pandas().equals(at_once.ledger.to_pandas())
    for mine, theirs in zip(late.state.log_history[:-1], at_once.state.log_history[:-1], strict=True):
        assert mine == theirs


def test_losses_wait_until_they_are_needed(tmp_path: Path) -> None:
    trainer = _ReadingLate(
        build_model("llama"), arguments(tmp_path, max_steps=9, logging_steps=9), None, three_streams()
    )
    waiting = []
    record = Recorder.record

    class Watching(Recorder):
        def record(self, batch: object, *compared: object) -> None:
            record(self, batch, *compared)
            waiting.append(len(self._waiting))

    trainer.recorder = Watching
    trainer.train()
    assert waiting == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert trainer.ledger.to_pandas()["step"].nunique() == 9


class _Measuring(MixingTrainer):
    """Has measurements after steps 1, 2, 6 and 10."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        steps = self._parts.steps
        result = steps._result

        def with_gradients(batch: Any, sums: Any) -> Any:
            is_measured = batch.plan.step in (1, 2, 6, 10)
            return replace(result(batch, sums), gradients=measured(3, seed=batch.plan.step) if is_measured else None)

        steps._result = with_gradients  # type: ignore[method-assign]


def _measuring(folder: Path, **changes: Any) -> MixingTrainer:
    args = arguments(folder, max_steps=12, logging_steps=4, save_strategy="steps", save_steps=3, **changes)
    return _Measuring(build_model("llama"), args, train_dataset=three_streams(), mixing=Uniform(), batch_size=6)


def _logs(trainer: MixingTrainer) -> list[dict[str, float]]:
    return [entry for entry in trainer.state.log_history if "train_coverage" in entry and "loss" in entry]


def test_a_log_entry_says_what_was_measured_last_since_the_one_before(tmp_path: Path) -> None:
    trainer = _measuring(tmp_path)
    trainer.train()
    names = trainer.mixing.names
    for entry, step in zip(_logs(trainer), (2, 6, 10), strict=True):
        said = {name: value for name, value in entry.items() if name.startswith("gradient_")}
        assert said == gradient_entries(names, measured(3, seed=step))
    gradients = trainer.ledger.gradients()
    assert gradients["step"].tolist() == [step for step in (1, 2, 6, 10) for _ in names]
    assert gradients["squared_norm"].tolist()[:3] == measured(3, seed=1).squared_norm.tolist()
    assert not [name for name in trainer._parts.run.recorder.log_entries() if name.startswith("gradient_")]


@pytest.mark.parametrize("step", [3, 6, 9])
def test_a_resumed_run_says_what_an_unbroken_one_says(tmp_path: Path, step: int) -> None:
    whole, resumed = _measuring(tmp_path), _measuring(tmp_path)
    whole.train()
    gradients, cosines = whole.ledger.gradients(), whole.ledger.cosines()
    resumed.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{step}"))
    assert _logs(resumed) == _logs(whole)
    lists = {"gram": str, "gram_error": str}
    assert resumed.ledger.gradients().astype(lists).equals(gradients.astype(lists))
    assert resumed.ledger.cosines().equals(cosines)


def test_what_explains_the_decisions_is_recorded(tmp_path: Path) -> None:
    sets = three_streams()
    streams = [
        Stream(name, one, leaves_at=0.5 if number == 2 else 1.0) for number, (name, one) in enumerate(sets.items())
    ]
    args = arguments(tmp_path, max_steps=4, max_grad_norm=1.0)
    policy = Fixed([0.5, 0.3, 0.2])
    trainer = MixingTrainer(build_model("llama"), args, train_dataset=streams, mixing=policy, batch_size=7)
    trainer.train()
    rows, clock = trainer.ledger.to_pandas(), trainer.ledger.clock()
    last = streams[2].name
    assert rows["policy_weight"].tolist() == [0.5, 0.3, 0.2] * 4
    assert rows[rows["step"] > 2]["weight"].tolist() == pytest.approx([0.625, 0.375, 0.0] * 2)
    assert rows[rows["stream"] == last]["active"].tolist() == [True, False, False, False]  # in the step after
    assert rows["loss_weight"].eq(1.0).all()
    owed = dict.fromkeys(sets, 0.0)
    for _, row in rows[rows["step"] <= 2].iterrows():
        owed[row["stream"]] += 7 * row["weight"] - row["count"]
        assert row["owed"] == pytest.approx(owed[row["stream"]])
    assert rows.groupby("step")["owed"].sum().to_numpy() == pytest.approx(0.0)
    logged = [entry for entry in trainer.state.log_history if "grad_norm" in entry]
    assert clock.set_index("step").loc[[entry["step"] for entry in logged], "gradient_norm"].tolist() == pytest.approx(
        [entry["grad_norm"] for entry in logged]
    )
    means = (rows["loss"] * rows["items"]).groupby(rows["step"]).sum() / rows.groupby("step")["items"].sum()
    assert clock["loss"].tolist() == pytest.approx(means.tolist(), rel=1e-5)
    assert clock["update_norm"].isna().all()


def test_how_far_steps_moved_is_recorded_where_a_policy_needs_it(tmp_path: Path) -> None:
    class Watching(Uniform):
        is_static = False
        needs = frozenset({"update_norm"})

        def update(self, observation: Observation) -> Decision:
            norms.append(observation.update_norm)
            return Decision(observation.weights)

    norms: list[float] = []
    args = arguments(tmp_path, max_steps=3)
    trainer = MixingTrainer(build_model("llama"), args, train_dataset=three_streams(), mixing=Watching(), batch_size=6)
    trainer.train()
    assert trainer.ledger.clock()["update_norm"].tolist() == norms
    assert all(norm > 0 for norm in norms)


def test_the_ledger_says_what_the_run_is(tmp_path: Path) -> None:
    sets = three_streams()
    args = arguments(tmp_path, max_steps=2)
    policy = Floor(LossChange(temperature=0.5), minimum=0.1)
    trainer = MixingTrainer(build_model("llama"), args, train_dataset=sets, mixing=policy, batch_size=6)
    trainer.train()
    run = read_description(tmp_path)
    assert run == json.loads(json.dumps(trainer.describe_run()))
    assert [stream["name"] for stream in run["streams"]] == list(sets)
    assert [stream["num_samples"] for stream in run["streams"]] == [len(one) for one in sets.values()]
    assert run["mixing"]["init_args"] == {
        "policy": {"class_path": "LossChange", "init_args": {"temperature": 0.5}},
        "minimum": 0.1,
    }
    assert run["batch_size"]["init_args"] == {"batch_size": 6}
    expected = {"budget": {"steps": 2}, "initial_batch_size": 6, "world_size": 1, "drawing": "exact", "methods": []}
    assert {name: run[name] for name in expected} == expected
