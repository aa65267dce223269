"""What is read of a run's folder: limits, and one kind of error."""

import functools
import itertools
import json
import math
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from mixer.checkpoint.checkpoint_files import MARKER_FILE, STATE_FILE, complete, find_problem
from mixer.ledger.append_table import Table
from mixer.ledger.schemas import STREAMS
from mixer.ledger.table_files import open_tail, read_part, read_tail, write_rows
from mixer.tools.recipe.yaml_files import load_yaml
from mixer.utils.files import digests_of, find_damaged, folder_name
from mixer.utils.validation import finite_number, finite_numbers, load_json, refusing_damage, whole_number
from tests.refusals import refused


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[" * 100_000, "levels"),
        ('{"a": NaN}', "NaN"),
        ("[-Infinity]", "Infinity"),
        ("9" * 5_000, "digits"),
        ("{", "Expecting"),
        ('{"a": {"step": 1, "x": 2, "step": 3}}', "'step' appears twice"),
    ],
)
def test_json_that_is_refused(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(ValueError, match=said):
        load_json(tmp_path / "a.json")


def test_a_file_that_is_too_large_or_a_pipe_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mixer.utils.validation.MOST_JSON_BYTES", 50)
    (tmp_path / "a.json").write_text(json.dumps("x" * 100))
    os.mkfifo(tmp_path / "pipe")
    for name, message in (("a.json", "50 bytes"), ("pipe", "not a regular file")):
        with pytest.raises(ValueError, match=message):
            load_json(tmp_path / name)


def test_damage_is_one_error_and_those_of_the_system_are_none() -> None:
    for error in (KeyError("a"), IndexError(), RecursionError(), MemoryError(), ZeroDivisionError()):
        with refused("the state"), refusing_damage("the state"):
            raise error
    with pytest.raises(BlockingIOError), refusing_damage("the state"):
        raise BlockingIOError


def test_what_is_no_number_is_refused() -> None:
    two, pairs = functools.partial(finite_numbers, length=2), ([1.0, None], [1.0, math.nan])
    wrong: list[tuple[Any, tuple[Any, ...]]] = [
        (whole_number, (True, 1.0, "1", None, -1, 2**70)),
        (finite_number, (True, "1", None, math.nan, math.inf, 10**400, -(10**400), [1.0])),
        (two, ("12", {"a": 1}, 3, None, [1.0], *pairs)),
        (functools.partial(finite_number, least=0.0, most=1.0), (-1e-9, 1.1)),
        (functools.partial(whole_number, least=1, most=2), (3,)),
    ]
    for read, values in wrong:
        for value in values:
            with refused("x"):
                read(value, "x")
    assert [finite_number(value, "x", 0.0, 1.0) for value in (0, 1)] == [0.0, 1.0]
    assert [whole_number(value, "x", 1, 2) for value in (1, 2)] == [1, 2]
    for read in (whole_number, finite_number, finite_numbers):
        with refused("it") as info:
            read("x" * 10_000, "it")
        assert len(str(info.value)) < 400


BILLIONS = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
BILLIONS += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 34567890", "longer than the limit of 10 characters"),
        ("[&a [x, x], *a, *a]", "more than 9 parts once aliases are expanded"),
        ("\n".join(BILLIONS), "parts once aliases are expanded"),
        ("a: &a [*a]", "contains itself"),
        ("[" * 1_500, "too many nested levels"),
    ],
)
def test_yaml_that_is_refused(text: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if "characters" in said:
        monkeypatch.setattr("mixer.tools.recipe.yaml_files.MOST_CHARACTERS", 10)
    if "than 9" in said:
        monkeypatch.setattr("mixer.tools.recipe.yaml_files.MOST_PARTS", 9)
        assert load_yaml("[&a [x, x], *a]") == [["x", "x"]] * 2
    with pytest.raises(ValueError, match=said):
        load_yaml(text)


def test_yaml_is_read_and_its_tags_make_nothing() -> None:
    assert load_yaml("") is None
    assert load_yaml("a: &a {x: 1}\nb: {<<: *a, y: 2}") == {"a": {"x": 1}, "b": {"x": 1, "y": 2}}
    for tag in ("!!python/object/apply:os.system ['true']", "!!python/name:os.system x"):
        with pytest.raises(yaml.YAMLError):
            load_yaml(tag)


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"step": [1, None], "value": [0.5, 0.5]}, "its column 'step' has rows without a value"),
        ({"step": [1]}, "it has no column 'value'"),
        ({"step": [1], "value": ["x"]}, "its column 'value' is of string instead of double"),
    ],
)
def test_columns_that_do_not_fit(tmp_path: Path, columns: dict[str, list[object]], reason: str) -> None:
    schema, rows = pa.schema({"step": pa.int64(), "value": pa.float64()}), pa.table(columns)
    pq.write_table(rows, tmp_path / "part")
    with pa.OSFile(str(tmp_path / "tail"), "wb") as file, pa.ipc.new_stream(file, rows.schema) as writer:
        writer.write_table(rows)
    for name, read in (("part", read_part), ("tail", read_tail)):
        with refused(name, found=reason):
            read(tmp_path / name, schema)


def test_a_part_that_is_larger_than_one_ever_is_and_files_of_other_names(tmp_path: Path) -> None:
    for name in ("part-x.parquet", "tail-.arrow"):
        (tmp_path / name).write_bytes(b"")
    assert Table(tmp_path, STREAMS).read().num_rows == 0
    path = tmp_path / "part-000000.parquet"
    with path.open("wb") as file:
        file.truncate(2**31 + 1)
    with refused("part-000000.parquet"):
        read_part(path, STREAMS)


def test_a_tail_whose_columns_have_other_names_than_were_written(tmp_path: Path) -> None:
    path, schema = tmp_path / "tail-000000.arrow", pa.schema({"step": pa.int64(), "owed": pa.int64()})
    with path.open("wb") as file:
        writer = open_tail(file, schema)
        write_rows(writer, pa.record_batch([pa.array([1]), pa.array([2])], schema=schema))
        writer.close()
    assert read_tail(path, schema).to_pydict() == {"step": [1], "owed": [2]}
    path.write_bytes(path.read_bytes().replace(b"owed", b"owee"))
    with refused("tail-000000.arrow"):
        read_tail(path, schema)


HOSTILE = ("..", ".", "../../x", "/etc/x", "a/b", "a\\b", "\x00", "CON", "nul.txt", "x" * 5_000, "\u202ea", "a\n")


def test_a_name_is_one_step_down_and_no_two_share_a_folder(tmp_path: Path) -> None:
    for name in (*HOSTILE, "\ud800"):
        folder = tmp_path / folder_name(name)
        folder.mkdir()
        assert folder.resolve().parent == tmp_path.resolve()
        assert folder_name(name) != name
    for name in ("math", "01-math", "数学", "a b", "v1.5", ".hidden"):
        assert folder_name(name) == name
    names = ["a/b", "a%2Fb", "a%2fb", "A" * 300, "A" * 301, ".", "%2E", "con", "%63on"]
    assert len({folder_name(name) for name in names}) == len(names)


def test_a_marker_lists_nothing_outside_its_checkpoint(tmp_path: Path) -> None:
    for entry, name in itertools.product(("files", "digests"), ("../secret", "/etc/passwd", "a/../../b")):
        checkpoint = tmp_path / f"checkpoint-{len(list(tmp_path.iterdir()))}"
        checkpoint.mkdir()
        (checkpoint / STATE_FILE).write_text("{}")
        complete(checkpoint)
        marker = json.loads((checkpoint / MARKER_FILE).read_text())
        marker.pop("crc32", None)
        marker[entry][name] = 1
        (checkpoint / MARKER_FILE).write_text(json.dumps(marker))
        assert "not in the checkpoint" in (find_problem(checkpoint) or "")


def test_changed_files_are_found_missing_large_and_linked_ones_are_not_spoken_of(tmp_path: Path) -> None:
    for name in ("a", "b", "linked"):
        (tmp_path / name).write_bytes(name.encode() * 100)
    for name, size in (("large", 64 * 2**20 + 1), ("largest", 64 * 2**20)):
        with (tmp_path / name).open("wb") as file:
            file.truncate(size)
    os.link(tmp_path / "linked", tmp_path / "second")
    digests = digests_of(tmp_path, ["a", "b", "large", "largest", "linked"])
    assert set(digests) == {"a", "b", "largest"}
    assert find_damaged(tmp_path, digests) is None
    (tmp_path / "b").write_bytes(b"b" * 99 + b"c")
    assert find_damaged(tmp_path, digests) == "b"
    (tmp_path / "b").unlink()
    assert find_damaged(tmp_path, digests) is None
