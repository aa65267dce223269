"""Files of a checkpoint: written whole or not at all, and known again by their content."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from mixer.checkpoint import checkpoint_files
from mixer.checkpoint.checkpoint_files import MARKER_FILE, STATE_FILE, complete, find_problem, read_state
from mixer.utils.files import read_json, synced_later, write_json
from tests.refusals import refused


class TestWrite:
    def test_what_cannot_be_written_leaves_the_old_file_whole(self, tmp_path, monkeypatch) -> None:
        def crash(descriptor: int) -> None:
            raise OSError("no space left on device")

        write_json(tmp_path / STATE_FILE, {"step": 1})
        (tmp_path / f"{STATE_FILE}.tmp").write_text("torn and much longer than what comes then")
        with monkeypatch.context() as patch:
            patch.setattr("os.fsync", crash)
            with pytest.raises(OSError, match="no space left"):
                write_json(tmp_path / STATE_FILE, {"step": 2})
        for bad in (float("nan"), float("inf"), object()):
            with pytest.raises((ValueError, TypeError)):
                write_json(tmp_path / STATE_FILE, {"step": 2, "bad": bad})
        assert read_state(tmp_path) == {"step": 1}
        write_json(tmp_path / STATE_FILE, {"step": 2})
        assert read_state(tmp_path) == {"step": 2}


def test_what_was_not_synced_is_synced_before_the_checkpoint_counts(tmp_path, monkeypatch) -> None:
    synced: list[str] = []

    def note(path: Path) -> None:
        is_complete = (tmp_path / "end" / MARKER_FILE).exists()
        name = re.sub(r"\.[0-9a-f]{16}\.tmp$", ".tmp", str(path.relative_to(tmp_path)))
        synced.append(f"{name}{' after' if is_complete else ''}")

    monkeypatch.setattr("mixer.utils.files.sync_to_disk", note)
    monkeypatch.setattr("mixer.checkpoint.checkpoint_files.sync_to_disk", note)
    with synced_later():
        write_json(tmp_path / "end" / STATE_FILE, {"step": 2})
        write_json(tmp_path / "end" / "deep" / "more.json", {})
    assert not synced
    complete(tmp_path / "end")
    files = [f"end/{MARKER_FILE}.tmp", f"end/{STATE_FILE}", "end/deep/more.json"]
    assert sorted(synced) == sorted([".", "end", "end/deep", "end after", *files])


class TestRead:
    def test_a_file_that_is_missing_or_torn_at_any_length_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError):
            read_state(tmp_path)
        whole = json.dumps({"format": 1, "clock": {"step": 12, "batch_size": 8}}).encode()
        for content in [*(whole[:length] for length in range(len(whole))), b"\xff\xfe\x00"]:
            (tmp_path / STATE_FILE).write_bytes(content)
            with refused("mixing.json"):
                read_state(tmp_path)
        for other in ("[]", "3", "null", '"text"'):
            (tmp_path / STATE_FILE).write_text(other)
            with refused("mixing.json"):
                read_state(tmp_path)


@given(place=st.integers(0, 10**6), bit=st.integers(0, 7))
def test_a_flipped_bit_is_told_or_changes_nothing(tmp_path_factory, place, bit) -> None:
    path = tmp_path_factory.getbasetemp() / "sealed.json"
    content = {"step": 12, "weights": [0.25, 1e-17], "é": "a b", "done": True}
    write_json(path, content, sealed=True)
    assert read_json(path) == content
    text = bytearray(path.read_bytes())
    text[place % len(text)] ^= 1 << bit
    path.write_bytes(text)
    found, told = content, f"{path} Resume from an earlier checkpoint"
    try:
        found = read_json(path)
    except ValueError as error:
        told = str(error)
    assert re.search(rf"{path}.*Resume from an earlier checkpoint", told)
    assert {name: found[name] for name in content} == content  # what changed is a name that is none of ours, or white


class TestDigests:
    def _checkpoint(self, folder: Path) -> Path:
        checkpoint = folder / "checkpoint-4"
        checkpoint_files.begin_writing(checkpoint)
        write_json(checkpoint / STATE_FILE, {"clock": {"step": 4}})
        (checkpoint / "methods" / "memory").mkdir(parents=True)
        (checkpoint / "methods" / "memory" / "buffer.npz").write_bytes(bytes(range(256)))
        checkpoint_files.complete(checkpoint)
        return checkpoint

    @pytest.mark.parametrize("name", [STATE_FILE, "methods/memory/buffer.npz"])
    def test_every_flipped_byte_of_the_same_size_is_found_and_named(self, tmp_path: Path, name: str) -> None:
        checkpoint = self._checkpoint(tmp_path)
        whole = (checkpoint / name).read_bytes()
        assert find_problem(checkpoint) is None
        for place in range(len(whole)):
            changed = bytearray(whole)
            changed[place] ^= 1
            (checkpoint / name).write_bytes(changed)
            assert find_problem(checkpoint) == f"{name} is damaged: its content has changed"


def test_a_checkpoint_that_is_a_link_is_abandoned_without_what_it_points_to(tmp_path: Path) -> None:
    target = tmp_path / "elsewhere"
    target.mkdir()
    (target / MARKER_FILE).write_text("kept")
    checkpoint = tmp_path / "checkpoint-4"
    checkpoint.symlink_to(target)
    checkpoint_files.abandon(checkpoint)
    assert not checkpoint.is_symlink()
    assert (target / MARKER_FILE).read_text() == "kept"
