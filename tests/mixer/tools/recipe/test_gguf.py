"""What is made of files of weights: once for a content, wherever it lies, and by one process at a time."""

import threading
from pathlib import Path

import huggingface_hub
import pytest
from filelock import FileLock

from mixer.tools.recipe import gguf


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "adaptive-mixer"


def test_copies_of_a_file_share_a_folder_and_other_bytes_have_their_own(tmp_path: Path, cache: Path) -> None:
    made = []
    for name, content in (("a", b"weights"), ("b", b"weights"), ("c", b"Weights")):
        (tmp_path / name).write_bytes(content)
        made.append(gguf.cached_folder("model", tmp_path / name, Path.mkdir))
    assert made[0] == made[1]
    assert {path.name for path in cache.iterdir() if path.is_dir()} == {made[0].name, made[2].name}


def test_a_process_that_waits_says_for_what(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "source").write_bytes(b"weights")
    folder = gguf.cached_folder("model", tmp_path / "source", Path.mkdir)
    folder.rmdir()
    said, waits = list[str](), threading.Event()

    def tell(text: str, *values: object) -> None:
        said.append(text % values)
        waits.set()

    monkeypatch.setattr(gguf.logger, "warning", tell)
    results = list[Path]()
    waiting = threading.Thread(
        target=lambda: results.append(gguf.cached_folder("model", tmp_path / "source", Path.mkdir))
    )
    with FileLock(f"{folder}.lock"):
        waiting.start()
        assert waits.wait(60)
        folder.mkdir()
    waiting.join(60)
    assert results == [folder]
    (only,) = said  # it makes nothing
    assert str(folder) in only
