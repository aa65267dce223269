"""A ledger whose rows cover several steps is the ledger of every step, added up."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from mixer.ledger.folder import open_ledger
from mixer.ledger.intervals import MOST_STREAMS
from mixer.ledger.ledger import Ledger
from mixer.ledger.schemas import STREAMS
from tests.refusals import refused

NAMES = ("math", "code", "web")
SUMS, WEIGHTS = ["count", "items", "tokens", "labels"], ["weight", "policy_weight", "loss_weight"]
LAST = [name for name in STREAMS.names if name not in ("step", "stream", "loss", *SUMS, *WEIGHTS)]


def columns_of(random: np.random.Generator) -> dict[str, Any]:
    """A step in which some streams have no item, and some a loss that is not finite."""
    columns: dict[str, Any] = {name: random.uniform(size=len(NAMES)) for name in STREAMS.names[2:]}
    whole = [*SUMS, "seen", "unique", "staleness", "undelivered", "skipped"]
    columns |= {name: random.integers(0, 2**50, len(NAMES)) for name in whole}
    columns["items"] = random.integers(0, 5, len(NAMES))
    unknown = (columns["items"] == 0) | (random.uniform(size=len(NAMES)) < 0.1)
    return {**columns, "loss": np.where(unknown, np.nan, columns["loss"]), "active": random.uniform(size=3) < 0.5}


def written(folder: Path, interval_steps: int, num_steps: int, saved: set[int], seed: int) -> Ledger:
    ledger, random = Ledger(folder, is_writer=True, interval_steps=interval_steps), np.random.default_rng(seed)
    ledger.begin(None, {"streams": list(NAMES)})
    for step in range(1, num_steps + 1):
        columns = columns_of(random)
        ledger.record_streams(step, NAMES, columns)
        if step in saved:
            ledger.sync()
    ledger.finish()
    return ledger


def added_up(rows: pd.DataFrame, interval_steps: int, saved: set[int]) -> dict[tuple[int, str], pd.DataFrame]:
    """The rows of every step, by the last step of their interval and their stream."""
    steps = rows["step"].unique().tolist()
    ends = np.array([step for step in steps if step % interval_steps == 0 or step in saved or step == steps[-1]])
    return dict(list(rows.groupby([ends[np.searchsorted(ends, rows["step"])], "stream"])))


def types_of(schema: pa.Schema) -> list[tuple[str, pa.DataType]]:
    return [(field.name, field.type) for field in schema if field.name not in ("step", "stream")]


def mean_of(rows: pd.DataFrame, column: str) -> float:
    known = rows[rows[column].notna() & (rows["items"] > 0)]
    return float(np.average(known[column], weights=known["items"])) if len(known) else np.nan


@given(st.integers(2, 5), st.integers(1, 14), st.sets(st.integers(1, 14)), st.integers(0, 2**32))
@settings(max_examples=8)
def test_rows_are_sums_means_and_last_values_of_steps(tmp_path_factory, interval_steps, num_steps, saved, seed) -> None:
    folder = tmp_path_factory.mktemp("ledgers")
    every = written(folder / "every", 1, num_steps, saved, seed)
    ledger = written(folder / "intervals", interval_steps, num_steps, saved, seed)
    found = ledger.to_pandas()
    parts = added_up(every.to_pandas(), interval_steps, saved)
    assert len(found) == len(parts)
    for _, row in found.iterrows():
        part = parts[row["step"], row["stream"]]
        assert row["step"] == part["step"].iloc[-1]
        assert row[SUMS].tolist() == part[SUMS].sum().tolist()
        assert row[LAST].tolist() == part[LAST].iloc[-1].tolist()
        assert row[WEIGHTS].tolist() == pytest.approx(part[WEIGHTS].mean().tolist(), rel=1e-12)
        assert row["loss"] == pytest.approx(mean_of(part, "loss"), rel=1e-12, nan_ok=True)


@pytest.mark.parametrize(
    ("num_streams", "requested", "interval_steps"),
    [(MOST_STREAMS, None, 1), (MOST_STREAMS + 1, None, 3), (MOST_STREAMS + 1, 1, 1), (2, 5, 5)],
)
def test_streams_decide_on_the_interval_and_the_format_says(tmp_path, num_streams, requested, interval_steps) -> None:
    names = tuple(map(str, range(num_streams)))
    columns = {name: np.ones(num_streams, dtype=kind.to_pandas_dtype()) for name, kind in types_of(STREAMS)}
    ledger = Ledger(tmp_path / "ledger", is_writer=True, interval_steps=requested)
    ledger.begin(None, {"streams": list(names)})
    for step in range(1, 2 * interval_steps + 1):
        ledger.record_streams(step, names, columns)
    assert ledger.to_pandas()["step"].value_counts().to_dict() == dict.fromkeys(
        (interval_steps, 2 * interval_steps), num_streams
    )
    note = json.loads((tmp_path / "ledger" / "ledger.json").read_text())
    of_interval = {"format": 2, "interval_steps": interval_steps} if interval_steps > 1 else {"format": 1}
    assert note == {**of_interval, "streams": list(names)}
    assert open_ledger(tmp_path).interval_steps == interval_steps


def test_a_run_that_goes_on_with_shorter_rows_keeps_saying_that_it_has_long_ones(tmp_path: Path) -> None:
    written(tmp_path / "ledger", 4, 8, set(), 0)
    ledger = Ledger(tmp_path / "ledger", is_writer=True)
    ledger.begin(8, {"streams": list(NAMES)})
    ledger.record_streams(9, NAMES, columns_of(np.random.default_rng(0)))
    ledger.finish()
    assert ledger.to_pandas()["step"].unique().tolist() == [4, 8, 9]
    assert open_ledger(tmp_path).interval_steps == 4


@pytest.mark.parametrize("interval_steps", [0, -1, 2.0, True])
def test_what_is_no_number_of_steps_is_refused(tmp_path: Path, interval_steps: Any) -> None:
    with refused("ledger_interval_steps"):
        Ledger(tmp_path, interval_steps=interval_steps)
    (tmp_path / "ledger").mkdir()
    (tmp_path / "ledger" / "ledger.json").write_text(json.dumps({"format": 2, "interval_steps": interval_steps}))
    with refused(f"interval_steps in {tmp_path / 'ledger' / 'ledger.json'}"):
        open_ledger(tmp_path)
