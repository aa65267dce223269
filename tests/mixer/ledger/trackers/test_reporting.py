"""Which callbacks are told what, and what becomes of a tracker that fails."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tensorboard", reason="the extra `trackers` is not installed")

from unittest.mock import Mock

from transformers import Trainer
from transformers.integrations.integration_utils import TensorBoardCallback

from mixer import MixingTrainer
from mixer.ledger.trackers import reporting
from tests.helpers import On, Tokens, three_streams
from tests.mixer.trainer.runs import make, train


def _scalars(writer: Mock) -> list[Any]:
    """What was told to a writer of TensorBoard: names, values and steps."""
    return [call.args for call in writer.add_scalar.call_args_list]


def _names(writer: Mock) -> set[str]:
    return {name for name, _, _ in _scalars(writer)}


def _run(folder: Path, data: Any, callback: Any, resumed: str | None = None, **more: Any) -> Any:
    options = {"eval_strategy": "steps", "eval_steps": 2, "max_steps": 4, "save_strategy": "steps", "save_steps": 2}
    options |= {"train_dataset": data, "eval_dataset": data, "callbacks": [callback], **more}
    return train(folder, resume=resumed, **options)


def test_one_data_set_is_told_as_the_trainer_tells_it_unless_its_batches_grow(tmp_path: Path) -> None:
    plain, mixed, growing = Mock(), Mock(), Mock()
    for writer, kind in ((plain, Trainer), (mixed, MixingTrainer)):
        _run(tmp_path, Tokens(40, 1), TensorBoardCallback(tb_writer=writer), kind=kind)
    assert [(name, step) for name, _, step in _scalars(mixed)] == [(name, step) for name, _, step in _scalars(plain)]
    texts = [[call.args[0] for call in writer.add_text.call_args_list] for writer in (mixed, plain)]
    assert texts == [["args", "model_config"]] * 2
    _run(tmp_path, Tokens(40, 1), TensorBoardCallback(tb_writer=growing), batch_size=lambda step, size: 4 + step)
    assert [value for name, value, step in _scalars(growing) if name == "clock/batch_size"][:2] == [4, 5]


def test_a_tracker_that_fails_is_a_warning(tmp_path, monkeypatch, caplog) -> None:
    def fail(name: str, *_: Any) -> None:
        if not name.startswith(("train/", "eval/")):
            raise RuntimeError("the disk is full")

    writer = Mock(add_scalar=Mock(side_effect=fail))
    monkeypatch.setattr(reporting, "config_of", lambda description, recipe: 1 / 0)
    assert _run(tmp_path, three_streams(), TensorBoardCallback(tb_writer=writer)).state.global_step == 4
    assert "train/loss" in _names(writer)
    failed = [f"TensorBoard could not log the {what}" for what in ("description", "streams' metrics")]
    assert [text.split(": ")[0] for text in caplog.messages if "could not log" in text] == failed


def test_other_callbacks_see_all_entries_and_one_that_moves_to_another_trainer_tells_of_that(tmp_path: Path) -> None:
    seen: set[str] = set()

    writer = Mock()
    callback = TensorBoardCallback(tb_writer=writer)
    trainer = make(tmp_path)
    for added in (callback, On(log=lambda _, logs, **__: seen.update(logs))):  # after construction
        trainer.add_callback(added)
    trainer.train()
    assert {"loss", "loss/a", "weight/b", "batch_size"} <= seen
    assert {"train/loss", "loss/a", "clock/batch_size"} <= _names(writer)
    writer.reset_mock()
    callback.tb_writer = writer
    _run(tmp_path / "two", {"x": Tokens(9, 1), "y": Tokens(9, 2)}, callback)
    assert {"loss/x", "loss/y", "eval_loss/x"} <= _names(writer)
    assert "loss/a" not in _names(writer)


def test_a_resumed_run_goes_on_and_a_class_with_a_way_of_its_own_is_left_alone(tmp_path: Path) -> None:
    class Own(TensorBoardCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
            super().on_log(args, state, control, logs=logs, **kwargs)

    first, second, own = Mock(), Mock(), Mock()
    _run(tmp_path, three_streams(), TensorBoardCallback(tb_writer=first))
    _run(tmp_path, three_streams(), Own(tb_writer=own), resumed=str(tmp_path / "checkpoint-2"))
    assert "train/loss/a" in _names(own)
    assert "loss/a" not in _names(own)
    _run(tmp_path, three_streams(), TensorBoardCallback(tb_writer=second), resumed=str(tmp_path / "checkpoint-2"))
    groups = ("clock/", "loss/", "weight/", "coverage/", "count/")
    told = [[one for one in _scalars(writer) if one[0].startswith(groups) and one[2] > 2] for writer in (first, second)]
    assert told[0] == told[1] != []
    second.reset_mock()
    callback = TensorBoardCallback(tb_writer=second)
    make(tmp_path, eval_dataset=three_streams(), callbacks=[callback]).evaluate()
    assert {"eval_loss/a", "eval_loss/b", "eval/a_loss", "clock/samples"} <= _names(second)
