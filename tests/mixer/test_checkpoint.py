import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mixer.checkpoint import STATE_FILE, read_state, write_json


class TestWrite:
    def test_what_is_written_is_read(self, tmp_path: Path) -> None:
        content = {"a": [1, 2.5, None], "b": {"c": "é", "d": True}}
        write_json(tmp_path / STATE_FILE, content)
        assert read_state(tmp_path) == content

    @given(value=st.floats(allow_nan=False, allow_infinity=False))
    def test_floats_are_kept_to_the_bit(self, tmp_path_factory: pytest.TempPathFactory, value: float) -> None:
        folder = tmp_path_factory.getbasetemp()
        write_json(folder / STATE_FILE, {"value": value})
        assert read_state(folder)["value"].hex() == value.hex()

    def test_folders_are_made(self, tmp_path: Path) -> None:
        write_json(tmp_path / "x" / "y" / "z.json", {})
        assert (tmp_path / "x" / "y" / "z.json").is_file()

    def test_nothing_else_is_left_beside_it(self, tmp_path: Path) -> None:
        write_json(tmp_path / STATE_FILE, {})
        assert [path.name for path in tmp_path.iterdir()] == [STATE_FILE]

    @pytest.mark.parametrize("bad", [float("nan"), float("inf"), object()])
    def test_content_that_json_cannot_hold_leaves_the_old_file_whole(self, tmp_path: Path, bad: object) -> None:
        write_json(tmp_path / STATE_FILE, {"step": 1})
        with pytest.raises((ValueError, TypeError)):
            write_json(tmp_path / STATE_FILE, {"step": 2, "bad": bad})
        assert read_state(tmp_path) == {"step": 1}

    def test_a_crash_before_the_end_leaves_the_old_file_whole(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def crash(descriptor: int) -> None:
            raise OSError("no space left on device")

        write_json(tmp_path / STATE_FILE, {"step": 1})
        monkeypatch.setattr("os.fsync", crash)
        with pytest.raises(OSError, match="no space left"):
            write_json(tmp_path / STATE_FILE, {"step": 2})
        assert read_state(tmp_path) == {"step": 1}

    def test_what_a_crash_left_behind_does_no_harm(self, tmp_path: Path) -> None:
        (tmp_path / f"{STATE_FILE}.tmp").write_text("torn and much longer than what comes then")
        write_json(tmp_path / STATE_FILE, {"step": 2})
        assert read_state(tmp_path) == {"step": 2}


class TestRead:
    def test_a_checkpoint_without_the_file_says_what_to_do(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError, match=rf"{STATE_FILE}.*save_only_model=True.*without resume"):
            read_state(tmp_path)

    def test_a_torn_file_is_refused_at_every_length(self, tmp_path: Path) -> None:
        whole = json.dumps({"format": 1, "clock": {"step": 12, "batch_size": 8}})
        for length in range(len(whole)):
            (tmp_path / STATE_FILE).write_text(whole[:length])
            with pytest.raises(ValueError, match=r"is torn .*Resume from an earlier checkpoint"):
                read_state(tmp_path)

    def test_a_file_that_is_no_text_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / STATE_FILE).write_bytes(b"\xff\xfe\x00")
        with pytest.raises(ValueError, match="is torn"):
            read_state(tmp_path)

    @pytest.mark.parametrize("content", ["[]", "3", "null", '"text"'])
    def test_other_content_is_refused(self, tmp_path: Path, content: str) -> None:
        (tmp_path / STATE_FILE).write_text(content)
        with pytest.raises(ValueError, match="holds something else than it should"):
            read_state(tmp_path)
