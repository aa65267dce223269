"""Files that cannot be written: the run ends and says what is safe, and goes on from there once there is room."""

import errno
import os
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedModel, Trainer, TrainerState

import mixer.trainer.checkpointing.files
import mixer.trainer.checkpointing.save
from mixer.ledger.folder import read_note
from mixer.ledger.table import Table
from mixer.trainer.checkpointing.choose import WriteError
from mixer.trainer.checkpointing.files import find_problem, list_checkpoints
from tests.mixer.trainer.checkpointing.test_resume import assert_same, build, end_of, go_on


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    trainer = build(tmp_path_factory.mktemp("whole"))
    trainer.train()
    return end_of(trainer)


def _full(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


# What writes a part of a checkpoint, and what that part is called.
WRITERS: dict[str, tuple[Any, str, str]] = {
    "folder": (mixer.trainer.checkpointing.save, "begin_writing", "its folder"),
    "model": (PreTrainedModel, "save_pretrained", "its model"),
    "optimizer": (Trainer, "_save_optimizer_and_scheduler", "its optimizer"),
    "mixture": (mixer.trainer.checkpointing.save, "write_json", "the state of its mixture"),
    "trainer": (TrainerState, "save_to_json", "it,"),
    "marker": (mixer.trainer.checkpointing.files, "write_json", "the list of its files"),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_a_checkpoint_that_finds_no_room_ends_the_run_and_nothing_is_lost(
    writer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expected: dict[str, Any]
) -> None:
    owner, name, part = WRITERS[writer]
    whole = getattr(owner, name)

    def second_is_full(*args: Any, **kwargs: Any) -> Any:
        is_active = (tmp_path / "checkpoint-4" / "complete.json").exists()
        return _full() if is_active else whole(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, second_is_full)
        with pytest.raises(WriteError) as error:
            build(tmp_path).train()
    assert f"checkpoint-8, {part}" in str(error.value)
    assert "No space left on device" in str(error.value)
    assert f"the run resumes from {tmp_path / 'checkpoint-4'} with --resume auto" in str(error.value)
    assert [path.name for path in list_checkpoints(tmp_path)] == ["checkpoint-4"]
    assert find_problem(tmp_path / "checkpoint-4") is None
    assert_same(go_on(build(tmp_path)), expected)


@contextmanager
def _largest_file(num_bytes: int) -> Iterator[None]:
    """Lets no file grow beyond a size, as a quota would; what is larger already stays."""
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_the_systems_own_refusal_of_large_files_is_told_whatever_library_meets_it(tmp_path: Path) -> None:
    with _largest_file(20_000), pytest.raises(WriteError, match=r"checkpoint-4, its model, could not be written"):
        build(tmp_path).train()
    assert not list_checkpoints(tmp_path)
    assert read_note(tmp_path)["reason"].startswith("WriteError")


def _fails_from(monkeypatch: pytest.MonkeyPatch, step: int, table: str) -> None:
    """Has a table's tail find a full disk from some step on."""
    flush = Table._flush

    def full(self: Table) -> None:
        if self.folder.name == table and any(int(max(rows["step"])) >= step for rows in self._buffer):
            _full()
        flush(self)

    monkeypatch.setattr(Table, "_flush", full)


@pytest.mark.parametrize("step", [6, 10])
@pytest.mark.parametrize("table", ["streams", "timings"])
def test_a_ledger_that_finds_no_room_ends_the_run_and_nothing_is_lost(
    step: int, table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expected: dict[str, Any]
) -> None:
    with monkeypatch.context() as patch:
        _fails_from(patch, step, table)
        patch.setattr("mixer.ledger.table.time.monotonic", _minutes())
        with pytest.raises(WriteError, match=rf"No space left on device: .*{table}.*resumes from .*checkpoint-"):
            build(tmp_path).train()
    assert_same(go_on(build(tmp_path)), expected)


def _minutes() -> Callable[[], float]:
    """A clock by which every row is written at once."""
    now = iter(range(0, 10**9, 60))
    return lambda: float(next(now))
