"""Files of rows: damage is refused with the name of the file."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from replay.storage.row_file import RowFile, write_rows

SCHEMA = pa.schema([pa.field("number", pa.int64(), False), pa.field("row", pa.large_binary(), False)])


def write(path: Path, batches: Sequence[tuple[Any, Any]], note: str = "9") -> None:
    schema = SCHEMA.with_metadata({"next_number": note})
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, schema) as writer:
        for numbers, rows in batches:
            columns = [pa.array(numbers, pa.int64()), pa.array(rows, pa.large_binary())]
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))


def test_what_is_written_is_read(tmp_path: Path) -> None:
    write_rows(tmp_path / "rows", ((number, b"x%d" % number) for number in range(3_000)), next_number=3_001)
    file = RowFile(tmp_path / "rows")
    assert file.next_number == 3_001
    assert file.numbers.tolist() == list(range(3_000))
    assert bytes(file.find(2_999)) == b"x2999"


@pytest.mark.parametrize("note", ["1.5", "x", "", "9" * 5_000, "²"])
def test_a_next_number_that_is_none_is_refused(tmp_path: Path, note: str) -> None:
    write(tmp_path / "rows", [([0], [b"a"])], note)
    with pytest.raises(ValueError, match=r"rows is torn \(.*int"):
        RowFile(tmp_path / "rows")


@pytest.mark.parametrize(
    "batches",
    [
        [([1, 0], [b"a", b"b"])],
        [([0, 0], [b"a", b"b"])],
        [([-1, 0], [b"a", b"b"])],
        [([0], [b"a"]), ([1], [b"b"])],
        [([0, 1], [b"a", None])],
    ],
)
def test_rows_that_are_not_in_their_order_are_refused(tmp_path: Path, batches: Any) -> None:
    write(tmp_path / "rows", batches)
    with pytest.raises(ValueError, match=r"rows is torn \("):
        RowFile(tmp_path / "rows")
