"""Which callbacks are told what, and what becomes of a tracker that fails."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tensorboard", reason="the extra `trackers` is not installed")

from transformers import Trainer, TrainerCallback
from transformers.integrations.integration_utils import TensorBoardCallback

from mixer import MixingTrainer
from mixer.ledger.trackers import reporting
from tests.helpers import Tokens, arguments, build_model, three_streams


class Writer:
    """A writer of TensorBoard that only remembers."""

    def __init__(self, failing: bool = False) -> None:
        self.scalars: list[tuple[str, float, int]] = []
        self.texts: list[str] = []
        self.failing = failing

    def add_scalar(self, name: str, value: float, step: int) -> None:
        if self.failing and not name.startswith(("train/", "eval/")):
            raise RuntimeError("the disk is full")
        self.scalars.append((name, value, step))

    def add_text(self, name: str, text: str, step: int | None = None) -> None:
        self.texts.append(name)

    def add_custom_scalars(self, layout: dict[str, Any]) -> None:
        self.texts.append("layout")

    def flush(self) -> None: ...

    def close(self) -> None: ...

    @property
    def names(self) -> set[str]:
        return {name for name, _, _ in self.scalars}


def _run(folder: Path, trainer_class: Any, data: Any, writer: Writer, callback: Any = None, **options: Any) -> Any:
    args = arguments(folder, **{"eval_strategy": "steps", "eval_steps": 2, "max_steps": 4, **options})
    callback = TensorBoardCallback(tb_writer=writer) if callback is None else callback
    trainer = trainer_class(build_model("llama"), args, train_dataset=data, eval_dataset=data, callbacks=[callback])
    trainer.train()
    return trainer


def test_one_data_set_is_told_as_the_trainer_tells_it(tmp_path: Path) -> None:
    plain, mixed = Writer(), Writer()
    _run(tmp_path / "plain", Trainer, Tokens(40, 1), plain)
    _run(tmp_path / "mixed", MixingTrainer, Tokens(40, 1), mixed)
    assert [(name, step) for name, _, step in mixed.scalars] == [(name, step) for name, _, step in plain.scalars]
    assert mixed.texts == plain.texts == ["args", "model_config"]


def test_one_data_set_whose_batches_grow_is_a_mixture(tmp_path: Path) -> None:
    writer = Writer()
    args = arguments(tmp_path, max_steps=3)
    callback = TensorBoardCallback(tb_writer=writer)
    MixingTrainer(
        build_model("llama"),
        args,
        train_dataset=Tokens(40, 1),
        batch_size=lambda step, size: 4 + step,
        callbacks=[callback],
    ).train()
    assert [value for name, value, _ in writer.scalars if name == "clock/batch_size"] == [4, 5, 6]


def test_a_class_with_a_way_of_its_own_is_left_alone(tmp_path: Path) -> None:
    class Own(TensorBoardCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
            super().on_log(args, state, control, logs=logs, **kwargs)

    writer = Writer()
    _run(tmp_path, MixingTrainer, three_streams(), writer, Own(tb_writer=writer))
    assert "train/loss/a" in writer.names
    assert "loss/a" not in writer.names


def test_a_tracker_that_fails_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    warned: list[str] = []
    monkeypatch.setattr(reporting.logger, "warning", lambda message, *parts: warned.append(message % parts))
    writer = Writer(failing=True)
    monkeypatch.setattr(Writer, "add_custom_scalars", lambda self, layout: 1 / 0)
    monkeypatch.setattr(reporting, "summarise", lambda folder: 1 / 0)
    trainer = _run(tmp_path, MixingTrainer, three_streams(), writer)
    assert trainer.state.global_step == 4
    assert "train/loss" in writer.names
    assert [text.split(": ")[0] for text in warned] == [
        "TensorBoard could not log the description",
        "TensorBoard could not log the streams' metrics",
        "TensorBoard could not log the results",
    ]


def test_other_callbacks_see_all_entries(tmp_path: Path) -> None:
    seen: set[str] = set()

    class Seeing(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
            seen.update(logs)

    writer = Writer()
    trainer = MixingTrainer(build_model("llama"), arguments(tmp_path), train_dataset=three_streams())
    trainer.add_callback(TensorBoardCallback(tb_writer=writer))  # after construction
    trainer.add_callback(Seeing())
    trainer.train()
    assert {"loss", "loss/a", "weight/b", "batch_size"} <= seen
    assert {"train/loss", "loss/a", "clock/batch_size"} <= writer.names


def test_an_evaluation_before_training_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "events"))
    callback = TensorBoardCallback()
    data = three_streams()
    trainer = MixingTrainer(
        build_model("llama"), arguments(tmp_path), train_dataset=data, eval_dataset=data, callbacks=[callback]
    )
    trainer.evaluate()
    assert callback.tb_writer is not None
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    callback.tb_writer.flush()
    scalars = EventAccumulator(str(tmp_path / "events")).Reload().Tags()["scalars"]
    assert {"eval_loss/a", "eval_loss/b", "eval/a_loss", "clock/samples"} <= set(scalars)


def test_a_callback_that_moves_to_another_trainer_tells_of_that_one(tmp_path: Path) -> None:
    writer = Writer()
    callback = TensorBoardCallback(tb_writer=writer)
    _run(tmp_path / "one", MixingTrainer, three_streams(), writer, callback)
    writer.scalars.clear()
    callback.tb_writer = writer
    _run(tmp_path / "two", MixingTrainer, {"x": Tokens(9, 1), "y": Tokens(9, 2)}, writer, callback)
    assert {"loss/x", "loss/y", "eval_loss/x"} <= writer.names
    assert "loss/a" not in writer.names


def test_a_resumed_run_goes_on(tmp_path: Path) -> None:
    first, second = Writer(), Writer()
    options = {"save_strategy": "steps", "save_steps": 2}
    _run(tmp_path, MixingTrainer, three_streams(), first, **options)
    args = arguments(tmp_path, eval_strategy="steps", eval_steps=2, max_steps=4, **options)
    trainer = MixingTrainer(
        build_model("llama"),
        args,
        train_dataset=three_streams(),
        eval_dataset=three_streams(),
        callbacks=[TensorBoardCallback(tb_writer=second)],
    )
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))

    def told(writer: Writer) -> list[tuple[str, float, int]]:
        groups = ("clock/", "loss/", "weight/", "coverage/", "count/")
        return [one for one in writer.scalars if one[0].startswith(groups) and one[2] > 2]

    assert told(second) == told(first)


def test_trials_of_a_search_are_told_apart(tmp_path: Path) -> None:
    pytest.importorskip("optuna", reason="the extra `optuna` is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    args = arguments(tmp_path, eval_strategy="steps", eval_steps=2, max_steps=2, report_to=["tensorboard"])
    trainer = MixingTrainer(
        args=args, model_init=lambda: build_model("llama"), train_dataset=three_streams(), eval_dataset=three_streams()
    )
    trainer.hyperparameter_search(
        lambda trial: {"learning_rate": trial.suggest_float("learning_rate", 0.1, 0.2)},
        n_trials=2,
        backend="optuna",
        hp_name=lambda trial: f"trial-{trial.number}",
    )
    folders = sorted(path.parent for path in (tmp_path / "runs").glob("*/trial-*/events.*"))
    assert len(folders) == 2
    for folder in folders:
        events = EventAccumulator(str(folder)).Reload()
        assert [event.step for event in events.Scalars("loss/a")] == [1, 2]
        assert "mixture/summary/text_summary" in events.Tags()["tensors"]
