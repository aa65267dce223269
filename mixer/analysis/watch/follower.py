"""A table of a ledger that another process writes, read piece by piece: each row once."""

import contextlib
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from mixer.ledger.arrow_messages import next_batch
from mixer.ledger.table_files import files_of, find_misfit, naming, opened, read_columns, read_part


class Follower:
    """Reads what came to a table since it was asked last.

    It remembers where in which file it stands; a tail that was sealed meanwhile is gone on with in its part. What is
    not whole yet is left for the next time.

    Args:
        folder: The table's folder.
        schema: Its columns and types.
        columns: Names of the columns to read.
    """

    def __init__(self, folder: Path, schema: pa.Schema, columns: Sequence[str]):
        self._folder = folder
        self._empty = pa.schema([schema.field(name) for name in columns]).empty_table()
        self._number = self._num_rows = 0  # of the file, and how many of its rows were given
        self._offset = 0
        self._tail_schema: pa.Schema | None = None

    def new_rows(self) -> pa.Table:
        """Gives the rows that came since the last call.

        Returns:
            The table, empty if there is none.

        Raises:
            ValueError: If a part is damaged; its file is named.
        """
        pieces = [self._empty]
        tails = {_number(path): path for path in files_of(self._folder, "tail-*.arrow")}
        parts = {_number(path): path for path in files_of(self._folder, "part-*.parquet")}  # after: one may be sealed
        for number in sorted(number for number in tails.keys() | parts.keys() if number >= self._number):
            if number > self._number:
                self._stand_at(number)
            if number in parts:
                pieces.append(self._of_part(parts[number]))
                self._stand_at(number + 1)
            else:
                pieces += self._of_tail(tails[number])
        return pa.concat_tables(pieces, promote_options="default").select(self._empty.column_names)

    def _stand_at(self, number: int) -> None:
        self._number, self._num_rows, self._offset, self._tail_schema = number, 0, 0, None

    def _of_part(self, path: Path) -> pa.Table:
        if not path.exists():  # a run that goes on from a checkpoint has dropped it
            return self._empty
        return read_part(path, self._empty.schema).slice(self._num_rows)

    def _of_tail(self, path: Path) -> list[pa.Table]:
        pieces = []
        torn = contextlib.suppress(pa.ArrowException, OSError, EOFError)  # its end: more will come, or a part
        with naming(path), torn, opened(path) as file:
            file.seek(self._offset)
            if self._tail_schema is None:
                self._tail_schema = read_columns(file)
                self._offset = file.tell()
            while (batch := next_batch(file, self._tail_schema)) is not None:
                self._offset = file.tell()
                self._num_rows += batch.num_rows
                names = [name for name in self._empty.column_names if name in self._tail_schema.names]
                pieces.append(pa.Table.from_batches([batch]).select(names))
                problem = find_misfit(pieces[-1], self._empty.schema)
                if problem is not None:
                    raise ValueError(problem)
        return pieces


def _number(path: Path) -> int:
    return int(path.stem.split("-")[1])
