"""The tables of runs as files for other programs."""

import json
from collections.abc import Mapping
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from mixer.analysis.report.exporting import file_name, made_folder
from mixer.ledger.ledger import Ledger

TABLE_FORMATS = ("csv", "parquet")

# What spreadsheets take for the beginning of a formula.
_FORMULA = r"^[=+\-@\t\r]"


def check_tables(table_format: str) -> None:
    """Checks the format of tables.

    Args:
        table_format: One of `TABLE_FORMATS`.

    Raises:
        ValueError: If it is another.
    """
    if table_format not in TABLE_FORMATS:
        raise ValueError(f"table_format must be one of {', '.join(TABLE_FORMATS)}, found {table_format!r}.")


def write_tables(
    ledgers: Mapping[str, Ledger], own: Mapping[str, pd.DataFrame], folder: str | Path, table_format: str = "csv"
) -> list[Path]:
    """Writes all tables.

    Args:
        ledgers: Ledgers by name of the run: each of their tables that has rows becomes a file.
        own: The report's own tables, by name.
        folder: Where they go; made if it is not there. Files of the same name are replaced.
        table_format: One of `TABLE_FORMATS`. In CSV an apostrophe stands before texts that begin as formulas do.

    Returns:
        Paths of the tables, named after run and table.

    Raises:
        ValueError: If the format is unknown, or the folder is a file.
    """
    check_tables(table_format)
    target = made_folder(folder, "tables")
    written: dict[str, Path] = {}

    def write(name: str, table: pa.Table) -> None:
        name = file_name(name, written)
        written[name] = target / f"{name}.{table_format}"
        _write(table, written[name])

    for name, frame in own.items():
        write(name, pa.Table.from_pandas(frame, preserve_index=False))
    for run, ledger in ledgers.items():
        for kept in ledger.tables():
            table = ledger.read(kept)
            if table.num_rows:
                write(f"{run} {kept}", table)
    return list(written.values())


def _write(table: pa.Table, path: Path) -> None:
    if path.suffix == ".parquet":
        pq.write_table(table, path)
    else:
        pyarrow.csv.write_csv(_flat(table), path)


def _flat(table: pa.Table) -> pa.Table:
    """Writes lists as JSON, as a cell of a CSV file holds one text, and texts so that no spreadsheet computes them."""
    for place, field in enumerate(table.schema):
        column = table.column(place)
        if pa.types.is_list(field.type):
            texts = [json.dumps(values) for values in column.to_pylist()]
            table = table.set_column(place, field.name, pa.array(texts, pa.string()))
        elif pa.types.is_string(field.type) or pa.types.is_large_string(field.type):
            table = table.set_column(place, field.name, pc.replace_substring_regex(column, _FORMULA, r"'\0"))
    return table
