"""Files that cannot be written: the run ends and says what is safe, and goes on from there once there is room."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedModel, Trainer, TrainerState

from mixer.ledger.table import Table
from mixer.trainer.checkpointing import files, save
from mixer.trainer.checkpointing.choose import WriteError
from mixer.trainer.checkpointing.files import find_problem
from tests.mixer.trainer.checkpointing.test_resume import FULL, Whole, _names, assert_same, build, go_on


def _full(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(
    ("owner", "name", "part"),
    [
        (save, "begin_writing", "its folder"),
        pytest.param(PreTrainedModel, "save_pretrained", "its model", marks=FULL),
        (Trainer, "_save_optimizer_and_scheduler", "its optimizer"),
        pytest.param(save, "write_json", "the state of its mixture", marks=FULL),
        pytest.param(TrainerState, "save_to_json", "it,", marks=FULL),
        (files, "write_json", "the list of its files"),
    ],
)
def test_a_checkpoint_that_finds_no_room_ends_the_run_and_nothing_is_lost(
    owner: Any, name: str, part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: Whole
) -> None:
    expected, write = whole("steps")[0], getattr(owner, name)

    def second_is_full(*args: Any, **kwargs: Any) -> Any:
        is_active = (tmp_path / "checkpoint-4" / "complete.json").exists()
        return _full() if is_active else write(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, second_is_full)
        with pytest.raises(WriteError) as error:
            build(tmp_path).train()
    assert f"checkpoint-8, {part}" in str(error.value)
    assert "No space left on device" in str(error.value)
    assert f"the run resumes from {tmp_path / 'checkpoint-4'} with --resume auto" in str(error.value)
    assert _names(tmp_path) == ["checkpoint-4"]
    assert find_problem(tmp_path / "checkpoint-4") is None
    assert_same(go_on(build(tmp_path)), expected)


@pytest.mark.parametrize(("step", "table"), [(6, "streams"), pytest.param(10, "timings", marks=FULL)])
def test_a_ledger_that_finds_no_room_ends_the_run_and_nothing_is_lost(
    step: int, table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: Whole
) -> None:
    expected, flush, minutes = whole("steps")[0], Table._flush, iter(range(0, 10**9, 60))

    def full(self: Table) -> None:
        if self.folder.name == table and any(int(max(rows["step"])) >= step for rows in self._buffer):
            _full()
        flush(self)

    with monkeypatch.context() as patch:
        patch.setattr(Table, "_flush", full)
        patch.setattr("mixer.ledger.table.time.monotonic", lambda: float(next(minutes)))  # every row at once
        with pytest.raises(WriteError, match=rf"No space left on device: .*{table}.*resumes from .*checkpoint-"):
            build(tmp_path).train()
    assert_same(go_on(build(tmp_path)), expected)


@pytest.mark.parametrize(("step", "left"), [(4, []), (5, ["checkpoint-4"])])
def test_no_checkpoint_lacks_what_a_policy_that_failed_would_have_decided(
    tmp_path: Path, step: int, left: list[str], whole: Whole
) -> None:
    def failing(folder: Path, **changes: Any) -> Any:
        trainer = build(folder, **changes)
        control = trainer._parts.run.options.policy
        update = control.update
        control.update = lambda observation: update(observation) if observation.step != step else 1 // 0
        return trainer

    with pytest.raises(ZeroDivisionError):
        failing(tmp_path).train()
    assert _names(tmp_path) == left
    assert_same(go_on(build(tmp_path)), whole("steps")[0])
    failing(tmp_path / "short", max_steps=step).train()  # after the last step it rules nothing any more
    assert f"checkpoint-{step - step % 4}" in _names(tmp_path / "short")
