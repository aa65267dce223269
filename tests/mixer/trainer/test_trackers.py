"""What the Trainer's callbacks for trackers are told."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tensorboard", reason="the extra `trackers` is not installed")

from unittest.mock import Mock

from transformers import Trainer
from transformers.integrations.integration_utils import MLflowCallback, TensorBoardCallback

from mixer import MixingTrainer
from mixer.trainer.log import tell_of_merged_names
from tests.helpers import Tokens, three_streams
from tests.mixer.trainer.runs import logged, train


def told(folder: Path, data: Any, **options: Any) -> tuple[MixingTrainer, list[Any]]:
    """A run, and the names, values and steps that a writer of TensorBoard got."""
    writer = Mock()
    options |= {"eval_strategy": "steps", "eval_steps": 2, "max_steps": 4, "train_dataset": data, "eval_dataset": data}
    trainer = train(folder, callbacks=[TensorBoardCallback(tb_writer=writer)], **options)
    return trainer, [call.args for call in writer.add_scalar.call_args_list]


def test_one_data_set_is_told_as_the_trainer_tells_it_unless_its_batches_grow(tmp_path: Path) -> None:
    plain, mixed = (told(tmp_path, Tokens(40, 1), kind=kind) for kind in (Trainer, MixingTrainer))
    assert [(name, step) for name, _, step in mixed[1]] == [(name, step) for name, _, step in plain[1]]
    assert [entry.keys() for entry in mixed[0].state.log_history] == [
        entry.keys() for entry in plain[0].state.log_history
    ]
    _, growing = told(tmp_path, Tokens(40, 1), batch_size=lambda step, size: 4 + step)
    assert [value for name, value, step in growing if name == "train/batch_size"][:2] == [4, 5]


def test_streams_are_told_by_the_names_of_the_log(tmp_path: Path) -> None:
    trainer, entries = told(tmp_path, three_streams())
    assert [value for name, value, _ in entries if name == "train/loss/a"] == logged(trainer, "loss/a")
    assert {"train/weight/b", "train/count/c", "train/coverage/c", "eval/a_loss"} <= {name for name, *_ in entries}


def test_streams_that_mlflow_merges_are_told(caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("mlflow", reason="the extra `trackers` is not installed")
    names = ["math (en)", "math [en]", "math_en", "c"]
    callback, seen = MLflowCallback(), Mock()
    callback._initialized, callback._ml_flow, callback._async_log = True, seen, False
    callback.on_log(None, Mock(is_world_process_zero=True), None, logs={f"loss/{name}": 1.0 for name in names})
    callback._initialized = False
    assert len(seen.log_metrics.call_args.kwargs["metrics"]) == 3
    tell_of_merged_names(names, ["tensorboard"])
    assert not caplog.messages
    tell_of_merged_names(names, ["mlflow"])
    assert len(caplog.messages) == 1
    assert all(name in caplog.messages[0] for name in names[:2])
