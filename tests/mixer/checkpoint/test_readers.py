"""Who does not hold the folder of a run writes nothing there, whatever is left to be put back."""

import shutil
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from mixer import Fixed
from mixer.checkpoint.checkpoint_files import begin_writing
from mixer.checkpoint.lock import LOCK_FILE
from mixer.tools.analysis.value import source_values
from tests.mixer.checkpoint.test_folder_lock import held_elsewhere
from tests.mixer.tools.analysis.test_value import AT, STEPS, build, train_parent

Read = Callable[[Path, Path], object]


def contents(folder: Path) -> dict[str, tuple[bytes, int] | None]:
    """All files and folders but for the lock, and when they were written."""
    paths = [path for path in folder.rglob("*") if path.name != LOCK_FILE]
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns) if path.is_file() else None
        for path in paths
    }


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    train_parent(folder)
    return folder


def _fork(run: Path, own: Path) -> None:
    build(Fixed(), own).fork(run, at=AT)


def _resume(run: Path, own: Path) -> None:
    build(Fixed(), own).train(resume_from_checkpoint=str(run / f"checkpoint-{2 * AT}"))


def _value(run: Path, own: Path) -> None:
    source_values(build, run, AT, STEPS, repeats=2)


@pytest.mark.parametrize("is_held", [True, False])
@pytest.mark.parametrize("read", [_fork, _resume, _value])
def test_the_folder_stays_as_it_is(read: Read, is_held: bool, whole: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    begin_writing(run / f"checkpoint-{AT}")  # the run is about to replace it, or was killed as it was
    (run / f"checkpoint-{AT}" / "optimizer.pt").write_bytes(b"half of it")
    with held_elsewhere(run) if is_held else nullcontext():
        before = contents(run)
        read(run, tmp_path / "own")
        after = contents(run)
    if read is _value and not is_held:  # which it holds for that
        del after["value.json"]
    assert after == before
    assert read is not _value or not list(tmp_path.glob("run-value-*")), "its forks are gone"
