"""A memory on a disk that is full ends the run and loses nothing; what is no file of the run's is told as it is."""

import errno
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from mixer.trainer.checkpointing.choose import WriteError
from replay.feeding.feeding import BufferFeeding
from tests.mixer.trainer.checkpointing.test_resume import assert_same
from tests.replay.test_resuming import build, end


def test_a_memory_that_finds_no_room_ends_the_run_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, folder = build(tmp_path / "whole", "disk"), tmp_path / "run"
    whole.train()
    new_file = pa.ipc.new_file

    def full(*args: Any, **kwargs: Any) -> Any:
        if (folder / "checkpoint-3" / "complete.json").exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return new_file(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(pa.ipc, "new_file", full)
        with pytest.raises(WriteError) as error:
            build(folder, "disk").train()
    told = str(error.value)
    assert f"A file of the run could not be written (No space left on device: {folder / 'rows' / 'rows-'}" in told
    assert f"the run resumes from {folder / 'checkpoint-3'} with --resume auto" in told
    again = build(folder, "disk")
    again.train(resume_from_checkpoint=True)
    assert_same(end(again), end(whole))


def test_an_error_of_another_file_after_a_step_is_told_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*_: Any) -> None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), "features.npy")

    monkeypatch.setattr(BufferFeeding, "close", lost)
    with pytest.raises(FileNotFoundError, match=r"No such file or directory: 'features.npy'$"):
        build(tmp_path, "disk").train()
