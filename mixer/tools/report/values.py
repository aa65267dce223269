"""What sources are worth for evaluation sets, as `mixer value` leaves it in the folder of a run."""

import json
from pathlib import Path

import pandas as pd

from mixer.utils.files import write_json
from mixer.utils.validation import load_json

_FILE = "value.json"


def write_values(run: Path, at: int, values: pd.DataFrame) -> None:
    """Writes what sources are worth, for reports.

    Args:
        run: Output folder of the run.
        at: The step.
        values: Result of `mixer.source_values`.
    """
    rows = json.loads(values.to_json(orient="records", double_precision=15))
    write_json(run / _FILE, {"at": at, "values": rows})


def read_values(run: Path) -> tuple[int, pd.DataFrame] | None:
    """Reads what was measured last.

    Args:
        run: Output folder of a run.

    Returns:
        The step and the table; `None` if nothing was measured.
    """
    path = run / _FILE
    if not path.is_file():
        return None
    found = load_json(path)
    return int(found["at"]), pd.DataFrame(found["values"])


def shown_values(values: pd.DataFrame) -> pd.DataFrame:
    """Picks the columns that people read.

    Args:
        values: Result of `mixer.source_values`.
    """
    unit = "by_thousand_samples" if values["by_million_tokens"].isna().all() else "by_million_tokens"
    return values[["source", "samples", "target", "change", "low", "high", unit, "verdict"]]
