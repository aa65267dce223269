"""Files that cannot be written: the run ends and says what is safe, and goes on from there once there is room."""

import errno
import os
import shutil
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import PreTrainedModel, Trainer, TrainerState

from mixer.checkpoint import checkpoint_files
from mixer.checkpoint.checkpoint_files import find_problem
from mixer.checkpoint.write_errors import write_error
from mixer.ledger.append_table import Table
from mixer.ledger.ledger import Ledger
from mixer.trainer import save
from mixer.utils.files import WriteError
from tests.helpers import On
from tests.mixer.checkpoint.test_resume import FULL, _names, assert_same, build, go_on


def _full(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(
    ("owner", "name", "part"),
    [
        (checkpoint_files, "begin_writing", "its folder"),
        pytest.param(PreTrainedModel, "save_pretrained", "its model", marks=FULL),
        pytest.param(Trainer, "_save_optimizer_and_scheduler", "its optimizer", marks=FULL),
        pytest.param(save, "write_json", "the state of its mixture", marks=FULL),
        pytest.param(TrainerState, "save_to_json", "it,", marks=FULL),
        (checkpoint_files, "write_json", "the list of its files"),
    ],
)
def test_a_checkpoint_without_room_ends_the_run_losing_nothing(owner, name, part, tmp_path, monkeypatch, whole) -> None:
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
    assert f"the run resumes from {tmp_path / 'checkpoint-4'} with train(resume_from_checkpoint=True)" in str(
        error.value
    )
    assert _names(tmp_path) == ["checkpoint-4"]
    assert find_problem(tmp_path / "checkpoint-4") is None
    assert_same(go_on(build(tmp_path)), expected)


@pytest.mark.parametrize(("step", "table"), [(6, "streams"), pytest.param(10, "timings", marks=FULL)])
def test_a_ledger_without_room_ends_the_run_losing_nothing(step, table, tmp_path, monkeypatch, whole) -> None:
    expected, flush, minutes = whole("steps")[0], Table._flush, iter(range(0, 10**9, 60))

    def full(self: Table) -> None:
        if self.folder.name == table and any(int(max(rows["step"])) >= step for rows in self._buffer):
            _full()
        flush(self)

    with monkeypatch.context() as patch:
        patch.setattr(Table, "_flush", full)
        patch.setattr("mixer.ledger.append_table.time.monotonic", lambda: float(next(minutes)))  # every row at once
        with pytest.raises(WriteError, match=rf"No space left on device: .*{table}.*resumes from .*checkpoint-"):
            build(tmp_path).train()
    assert_same(go_on(build(tmp_path)), expected)


@pytest.mark.parametrize(("step", "left"), [(4, []), (5, ["checkpoint-4"])])
def test_no_checkpoint_lacks_what_a_failed_policy_decides(tmp_path, step, left, whole) -> None:
    def failing(folder: Path, **changes: Any) -> Any:
        trainer = build(folder, **changes)
        control = trainer._parts.plan.policy
        update = control.update
        control.update = lambda observation: update(observation) if observation.step != step else 1 // 0
        return trainer

    with pytest.raises(ZeroDivisionError):
        failing(tmp_path).train()
    assert _names(tmp_path) == left
    assert_same(go_on(build(tmp_path)), whole("steps")[0])
    failing(tmp_path / "short", max_steps=step).train()  # after the last step it rules nothing any more
    assert f"checkpoint-{step - step % 4}" in _names(tmp_path / "short")


@pytest.mark.parametrize("what", ["ledger removed", "tail removed", "folder renamed"])
def test_a_ledger_that_vanishes_ends_the_run_and_its_rows_are_saved(what: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    trainer = build(run)

    def meddle(state: Any, **_: Any) -> None:
        if state.global_step != 6:
            return
        trainer.ledger.flush()
        if what == "folder renamed":
            run.rename(tmp_path / "renamed")
        for path in [run / "ledger"] if what == "ledger removed" else (run / "ledger").glob("streams/tail-*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    trainer.add_callback(On(step_end=meddle))
    with pytest.raises(WriteError):
        trainer.train()
    assert set(range(5, 7)) <= set(Ledger(run / "ledger").to_pandas()["step"])  # since the last checkpoint


@pytest.mark.parametrize("kinds", [{"folders"}, {"folders", "files"}])
def test_a_file_system_that_does_not_sync_is_told_once(kinds: set[str], tmp_path: Path, monkeypatch) -> None:
    def refuse(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode) or "files" in kinds:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr("mixer.utils.files.os.fsync", refuse)
    monkeypatch.setattr("mixer.utils.files.warned_no_sync", set())
    with pytest.warns(UserWarning, match="does not sync") as warned:
        build(tmp_path).train()
    said = [str(one.message) for one in warned if "does not sync" in str(one.message)]
    assert sorted(next(kind for kind in kinds if f"sync {kind}" in text) for text in said) == sorted(kinds)
    assert all(str(tmp_path) in text for text in said)
    assert find_problem(tmp_path / "checkpoint-4") is None


def test_the_disk_that_is_full_is_the_one_described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of the file, and by what it lacks: space, or files."""
    disks = {"run": (2, 5), "rows": (3, 0)}  # free MiB and files
    (tmp_path / "rows").mkdir()
    (tmp_path / "run").mkdir()
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=disks[path.name][0] * 2**20))
    monkeypatch.setattr("os.statvfs", lambda path: SimpleNamespace(f_files=9, f_favail=disks[path.name][1]))
    full = (errno.ENOSPC, os.strerror(errno.ENOSPC))
    own = write_error("A file", OSError(*full, str(tmp_path / "run" / "ledger" / "part")), tmp_path / "run")
    nameless = write_error("A file", RuntimeError("torch's own"), tmp_path / "run")
    other = write_error("A file", OSError(*full, str(tmp_path / "rows" / "one")), tmp_path / "run")
    for error in (own, nameless):
        assert f"2 MiB are free on the disk of {tmp_path / 'run'}" in str(error)
    assert f"the disk of {tmp_path / 'rows'} has no room for another file: all 9 inodes are taken" in str(other)
    assert "MiB" not in str(other)
