"""What is read of a run's folder: limits, and one kind of error."""

import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from mixer.ledger.schemas import STREAMS
from mixer.ledger.table import Table
from mixer.ledger.table_files import next_batch, open_tail, read_part, read_tail, write_rows
from mixer.trainer.checkpointing.files import MARKER_FILE, STATE_FILE, complete, find_problem
from mixer.utils.files import folder_name
from mixer.utils.validation import finite_number, finite_numbers, load_json, parse_json, refusing_damage, whole_number
from mixer.utils.yaml_files import load_yaml


class TestJson:
    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("[" * 100_000, "levels"),
            ('{"a": NaN}', "NaN"),
            ("[-Infinity]", "Infinity"),
            ("9" * 5_000, "digits"),
            ("{", "Expecting"),
        ],
    )
    def test_what_is_refused(self, text: str, said: str) -> None:
        with pytest.raises(ValueError, match=said):
            parse_json(text)

    def test_too_large_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "a.json").write_text(json.dumps("x" * 100))
        with pytest.raises(ValueError, match="50 bytes"):
            load_json(tmp_path / "a.json", most_bytes=50)

    def test_a_pipe_is_not_waited_for(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(ValueError, match="not a regular file"):
            load_json(tmp_path / "pipe")

    @pytest.mark.parametrize(
        "error", [KeyError("a"), IndexError(), RecursionError(), MemoryError(), ZeroDivisionError()]
    )
    def test_damage_is_one_error(self, error: Exception) -> None:
        with pytest.raises(ValueError, match=r"the state is damaged \("), refusing_damage("the state"):
            raise error

    @pytest.mark.parametrize("value", [True, 1.0, "1", None, -1, 2**70])
    def test_what_is_no_count(self, value: object) -> None:
        with pytest.raises(ValueError, match="position must be a whole number"):
            whole_number(value, "position")

    @pytest.mark.parametrize("value", [True, "1", None, float("nan"), float("inf"), 10**400, -(10**400), [1.0]])
    def test_what_is_no_finite_number(self, value: object) -> None:
        with pytest.raises(ValueError, match="share must be a number"):
            finite_number(value, "share")

    def test_numbers_keep_to_their_limits(self) -> None:
        assert (finite_number(0, "x", 0.0, 1.0), finite_number(1, "x", 0.0, 1.0)) == (0.0, 1.0)
        for value in (-1e-9, 1.1):
            with pytest.raises(ValueError, match=r"x must be a number from 0\.0 to 1\.0"):
                finite_number(value, "x", 0.0, 1.0)
        assert (whole_number(1, "x", 1, 2), whole_number(2, "x", 1, 2)) == (1, 2)
        with pytest.raises(ValueError, match="from 1 to 2, but 3"):
            whole_number(3, "x", 1, 2)

    @pytest.mark.parametrize("values", ["12", {"a": 1}, 3, None, [1.0], [1.0, None], [1.0, float("nan")]])
    def test_what_is_no_list_of_numbers(self, values: object) -> None:
        with pytest.raises(ValueError, match="weights must be a"):
            finite_numbers(values, "weights", 2)

    def test_what_is_shown_of_it_is_short(self) -> None:
        for read in (whole_number, finite_number, finite_numbers):
            with pytest.raises(ValueError, match="…") as info:
                read("x" * 10_000, "it")
            assert len(str(info.value)) < 400

    def test_errors_of_the_system_are_no_damage(self) -> None:
        with pytest.raises(OSError, match="full"), refusing_damage("the state"):
            raise OSError("full")


class TestYaml:
    def test_too_long_a_text(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("mixer.utils.yaml_files.MOST_CHARACTERS", 10)
        assert load_yaml("a: 3456789") == {"a": 3456789}
        with pytest.raises(ValueError, match="longer than the limit of 10 characters"):
            load_yaml("a: 34567890")

    def test_nothing_at_all_is_nothing(self) -> None:
        assert load_yaml("") is None

    def test_parts_are_counted_with_what_aliases_stand_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("mixer.utils.yaml_files.MOST_PARTS", 9)
        assert load_yaml("[&a [x, x], *a]") == [["x", "x"]] * 2
        with pytest.raises(ValueError, match="more than 9 parts once aliases are expanded"):
            load_yaml("[&a [x, x], *a, *a]")

    def test_few_lines_that_stand_for_billions(self) -> None:
        lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
        lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
        with pytest.raises(ValueError, match="parts once aliases are expanded"):
            load_yaml("\n".join(lines))

    def test_what_is_part_of_itself(self) -> None:
        with pytest.raises(ValueError, match="contains itself"):
            load_yaml("a: &a [*a]")

    def test_levels(self) -> None:
        with pytest.raises(ValueError, match="too many nested levels"):
            load_yaml("[" * 5_000)

    @pytest.mark.parametrize("tag", ["!!python/object/apply:os.system ['true']", "!!python/name:os.system x"])
    def test_tags_make_nothing(self, tag: str) -> None:
        with pytest.raises(yaml.YAMLError):
            load_yaml(tag)

    def test_aliases_are_read(self) -> None:
        assert load_yaml("a: &a {x: 1}\nb: {<<: *a, y: 2}") == {"a": {"x": 1}, "b": {"x": 1, "y": 2}}


class TestArrow:
    def _stream(self) -> pa.BufferReader:
        sink, schema = pa.BufferOutputStream(), pa.schema({"a": pa.int64()})
        with pa.ipc.new_stream(sink, schema) as writer:
            writer.write_batch(pa.record_batch([pa.array([1] * 1_000)], schema=schema))
        return pa.BufferReader(sink.getvalue())

    def test_plain_batches_are_read(self) -> None:
        file = self._stream()
        schema = pa.ipc.read_schema(file)
        batch = next_batch(file, schema)
        assert batch is not None
        assert batch.num_rows == 1_000
        assert next_batch(file, schema) is None

    def test_columns_of_another_type(self, tmp_path: Path) -> None:
        path = tmp_path / "part-000000.parquet"
        pq.write_table(pa.table({"step": ["1"], "stream": ["a"]}), path)
        with pytest.raises(ValueError, match="its column 'step' is of string instead of int64"):
            read_part(path, STREAMS)

    def _write(self, path: Path, rows: pa.Table) -> None:
        if path.suffix == ".parquet":
            pq.write_table(rows, path)
        else:
            with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, rows.schema) as writer:
                writer.write_table(rows)

    @pytest.mark.parametrize("suffix", ["parquet", "arrow"])
    @pytest.mark.parametrize(
        ("columns", "said"),
        [
            ({"step": [1, None], "value": [0.5, 0.5]}, "its column 'step' has rows without a value"),
            ({"step": [1]}, "it has no column 'value'"),
            ({"step": [1], "value": ["x"]}, "its column 'value' is of string instead of double"),
        ],
    )
    def test_columns_that_do_not_fit(
        self, tmp_path: Path, suffix: str, columns: dict[str, list[object]], said: str
    ) -> None:
        path = tmp_path / f"x-000000.{suffix}"
        self._write(path, pa.table(columns))
        schema = pa.schema({"step": pa.int64(), "value": pa.float64()})
        with pytest.raises(ValueError, match=f"is damaged .{said}.: the rows in it are lost"):
            read_part(path, schema) if suffix == "parquet" else read_tail(path, schema)

    def test_a_part_that_is_larger_than_one_ever_is(self, tmp_path: Path) -> None:
        path = tmp_path / "part-000000.parquet"
        with path.open("wb") as file:
            file.truncate(2**31 + 1)
        with pytest.raises(ValueError, match="larger than the limit of 2,147,483,648 bytes"):
            read_part(path, STREAMS)

    def test_a_tail_whose_columns_have_other_names_than_were_written(self, tmp_path: Path) -> None:
        path, schema = tmp_path / "tail-000000.arrow", pa.schema({"step": pa.int64(), "owed": pa.int64()})
        with path.open("wb") as file:
            writer = open_tail(file, schema)
            write_rows(writer, pa.record_batch([pa.array([1]), pa.array([2])], schema=schema))
            writer.close()
        assert read_tail(path, schema).to_pydict() == {"step": [1], "owed": [2]}
        path.write_bytes(path.read_bytes().replace(b"owed", b"owee"))
        with pytest.raises(ValueError, match="its columns are not what was written"):
            read_tail(path, schema)

    def test_files_of_other_names_are_left_alone(self, tmp_path: Path) -> None:
        (tmp_path / "part-x.parquet").write_bytes(b"")
        (tmp_path / "tail-.arrow").write_bytes(b"")
        assert Table(tmp_path, STREAMS).read().num_rows == 0


class TestFolders:
    @pytest.mark.parametrize(
        "name",
        [
            "..",
            ".",
            "../../x",
            "/etc/x",
            "a/b",
            "a\\b",
            "\x00",
            "CON",
            "nul.txt",
            "x" * 5_000,
            "\u202ea",
            "a\n",
            "\ud800",
        ],
    )
    def test_a_name_is_one_step_down(self, name: str, tmp_path: Path) -> None:
        folder = tmp_path / folder_name(name)
        folder.mkdir()
        assert folder.resolve().parent == tmp_path.resolve()
        assert folder_name(name) != name

    @pytest.mark.parametrize("name", ["math", "01-math", "数学", "a b", "v1.5", "..."[:1] + "hidden"])
    def test_usual_names_stay(self, name: str) -> None:
        assert folder_name(name) == name

    def test_two_names_never_share_one(self) -> None:
        names = ["a/b", "a%2Fb", "a%2fb", "A" * 300, "A" * 301, ".", "%2E", "con", "%63on"]
        assert len({folder_name(name) for name in names}) == len(names)


class TestMarker:
    def _checkpoint(self, folder: Path) -> Path:
        checkpoint = folder / "checkpoint-1"
        checkpoint.mkdir()
        (checkpoint / STATE_FILE).write_text("{}")
        complete(checkpoint)
        return checkpoint

    @pytest.mark.parametrize("entry", ["files", "digests"])
    @pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "a/../../b"])
    def test_it_lists_nothing_outside(self, entry: str, name: str, tmp_path: Path) -> None:
        checkpoint = self._checkpoint(tmp_path)
        marker = json.loads((checkpoint / MARKER_FILE).read_text())
        marker.pop("crc32", None)
        marker[entry][name] = 1
        (checkpoint / MARKER_FILE).write_text(json.dumps(marker))
        assert "not in the checkpoint" in (find_problem(checkpoint) or "")
