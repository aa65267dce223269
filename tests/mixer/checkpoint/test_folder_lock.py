"""One run at a time in an output folder."""

import errno
import json
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import Mock

import pytest
from transformers import TrainerCallback

from mixer import MixingTrainer
from mixer.checkpoint.lock import LOCK_FILE, FolderLock
from tests.helpers import On
from tests.mixer.trainer import runs
from tests.refusals import refused


@contextmanager
def held_elsewhere(
    folder: Path, hold: Callable[[Path], object] = lambda path: FolderLock(path).acquire()
) -> Iterator[int]:
    """Has another process hold the folder; gives its number, and kills it as suddenly as can be."""
    reading, writing = os.pipe()
    process = os.fork()
    if not process:
        kept = hold(folder)
        os.write(writing, b"x")
        assert kept is not writing, "it lasts as long as the process"
        signal.pause()
    os.read(reading, 1)
    try:
        yield process
    finally:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)


def new_trainer(folder: Path, *callbacks: TrainerCallback) -> MixingTrainer:
    return runs.make(folder, max_steps=2, save_strategy="steps", save_steps=1, callbacks=list(callbacks))


def test_a_second_run_is_refused_by_name_and_spoils_nothing(tmp_path: Path) -> None:
    first = new_trainer(tmp_path)
    first.train()
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    with held_elsewhere(tmp_path) as process:
        owner = rf"in use by another run \(process {process} on {socket.gethostname()}, since 20"
        for attempt in (first.train, lambda: first.train(resume_from_checkpoint=True), first.newest_checkpoint):
            with pytest.raises(ValueError, match=owner):
                attempt()
        changed = {path for path in tmp_path.rglob("*") if path.stat().st_mtime_ns != before.get(path)}
        assert changed <= {tmp_path / LOCK_FILE}
        (tmp_path / LOCK_FILE).write_text("")
        with refused("output_dir"):
            FolderLock(tmp_path).acquire()
    first.train(resume_from_checkpoint=True)  # the other one was killed, and left nothing that is in the way
    assert not (tmp_path / LOCK_FILE).exists()


def test_the_lock_is_there_while_a_run_lasts_and_gone_after_an_error_too(tmp_path: Path) -> None:
    def look(*_: object, **__: object) -> None:
        assert json.loads((tmp_path / LOCK_FILE).read_text())["pid"] == os.getpid()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        new_trainer(tmp_path, On(step_end=look)).train()
    assert not (tmp_path / LOCK_FILE).exists()


def test_a_folder_that_cannot_be_written_is_refused_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, folder = new_trainer(tmp_path / "run"), tmp_path / "run"
    opened = os.open

    def read_only(path: object, flags: int, *args: int, **options: int) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return opened(path, flags, *args, **options)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr("os.open", read_only)
        with pytest.raises(OSError, match=r"output_dir: the run cannot write.*Read-only file system.*another") as error:
            trainer.train()
    assert error.value.filename == str(folder)
    assert os.listdir(folder) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError):
        FolderLock(tmp_path / "file" / "run").acquire()


def test_a_file_system_without_locks_is_said_and_gone_on_with(tmp_path, monkeypatch, caplog) -> None:
    monkeypatch.setattr("fcntl.lockf", Mock(side_effect=OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))))
    FolderLock(tmp_path).acquire()
    assert "has no locks" in caplog.text
