"""An append-only table on disk: a tail that can be read while it is written, sealed into Parquet parts."""

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

_TAIL = "tail.arrow"


class Table:
    """Rows in the order of a `step` column, appended by one process and read by any.

    New rows gather in memory for some seconds, then go to the tail (an Arrow IPC stream). When the tail holds
    enough of them it is sealed into a Parquet part.

    Args:
        folder: Where the table is kept; made when the first row is written.
        schema: Columns and types; one is `step`.
        rows_per_part: Size at which the tail is sealed.
        flush_interval_seconds: Longest time that a row stays in memory while others come.
    """

    def __init__(
        self, folder: Path, schema: pa.Schema, rows_per_part: int = 200_000, flush_interval_seconds: float = 2.0
    ):
        self.folder = folder
        self.schema = schema
        self._rows_per_part = rows_per_part
        self._flush_interval_seconds = flush_interval_seconds
        self._buffer: list[Mapping[str, Any]] = []
        self._num_tail_rows = 0
        self._last_flush = time.monotonic()
        self._file: Any = None
        self._writer: Any = None

    def append(self, columns: Mapping[str, Sequence[Any] | np.ndarray]) -> None:
        """Adds rows.

        Args:
            columns: One sequence a column, of equal lengths.
        """
        self._buffer.append(columns)
        if time.monotonic() - self._last_flush >= self._flush_interval_seconds:
            self.flush()

    def flush(self) -> None:
        """Writes what is in memory to the tail, so that readers see it."""
        self._last_flush = time.monotonic()
        if not self._buffer:
            return
        if self._writer is None:
            self._open_tail()
        batch = pa.record_batch(
            [np.concatenate([np.asarray(rows[name]) for rows in self._buffer]) for name in self.schema.names],
            schema=self.schema,
        )
        self._writer.write_batch(batch)
        self._file.flush()
        self._buffer.clear()
        self._num_tail_rows += batch.num_rows
        if self._num_tail_rows >= self._rows_per_part:
            self.seal()

    def seal(self) -> None:
        """Turns the tail into a Parquet part."""
        self.flush()
        self.close()
        self._num_tail_rows = 0
        tail = self._read_tail(self._last_sealed_step())
        if tail.num_rows:
            self._write_part(tail)
        (self.folder / _TAIL).unlink(missing_ok=True)

    def close(self) -> None:
        """Writes everything out and closes the file; appending opens it again."""
        self.flush()
        if self._writer is not None:
            os.fsync(self._file.fileno())
            self._writer.close()
            self._file.close()
            self._writer = self._file = None

    def truncate(self, step: int) -> None:
        """Drops the rows after a step, to go on from there.

        Args:
            step: The last step that stays.
        """
        self._buffer.clear()
        self.seal()
        kept = None
        for path in reversed(self._parts()):
            part = pq.read_table(path)
            steps = part.column("step").to_numpy()
            if steps[-1] <= step:
                break
            kept = part.filter(steps <= step)
            path.unlink()
        if kept is not None and kept.num_rows:
            self._write_part(kept)

    def read(self) -> pa.Table:
        """Reads all rows, those in memory too.

        Returns:
            The table; empty if there is none yet.
        """
        self.flush()
        parts = [pq.read_table(path, schema=self.schema) for path in self._parts()]
        return pa.concat_tables([*parts, self._read_tail(self._last_sealed_step())])

    def _parts(self) -> list[Path]:
        return sorted(self.folder.glob("part-*.parquet"))

    def _last_sealed_step(self) -> int:
        parts = self._parts()
        return int(pq.read_table(parts[-1], columns=["step"]).column("step")[-1].as_py()) if parts else -1

    def _write_part(self, rows: pa.Table) -> None:
        parts = self._parts()
        number = int(parts[-1].stem.split("-")[1]) + 1 if parts else 0
        path = self.folder / f"part-{number:06d}.parquet"
        temporary = path.with_suffix(".tmp")
        with temporary.open("wb") as file:
            pq.write_table(rows, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)

    def _read_tail(self, after_step: int) -> pa.Table:
        """Reads the tail up to where it is whole, without what was sealed before a crash could remove it."""
        path, batches = self.folder / _TAIL, []
        if path.is_file():
            try:
                with path.open("rb") as file, pa.ipc.open_stream(file) as reader:
                    for batch in reader:
                        batches.append(batch)  # noqa: PERF402  # what was read before a torn end is kept
            except (pa.ArrowInvalid, OSError):
                pass
        table = pa.Table.from_batches(batches, schema=self.schema)
        return table.filter(table.column("step").to_numpy() > after_step)

    def _open_tail(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        if (self.folder / _TAIL).exists():
            self._buffer, buffer = [], self._buffer
            self.seal()
            self._buffer = buffer
        self._file = (self.folder / _TAIL).open("wb")
        self._writer = pa.ipc.new_stream(self._file, self.schema)
