"""Losses that end with what is no number, wherever a report tells the last ones."""

from pathlib import Path

import numpy as np
import pytest

from mixer.tools.records.comparison import comparison
from mixer.tools.records.run import Run
from mixer.tools.report.tables import not_finite_since
from tests.mixer.tools.report.ledgers import write_run


def test_the_worst_is_what_is_no_number(tmp_path: Path) -> None:
    ledger = write_run(tmp_path, eval_every=9)  # losses of 9 and 10 before the first step
    ledger.record_evaluation(6, {"math": 1.0, "code": np.nan})
    ledger.finish()
    summary = Run(tmp_path)
    assert np.isnan(summary.figures.loc["code", "last_loss"])
    table = comparison([summary])
    course = dict(zip(table.columns[0].cells, table.columns[1].cells, strict=True))
    assert (course["worst"], course["average"], course["code"][-5:]) == ("10.000 → nan", "9.500 → nan", "→ nan")


@pytest.mark.parametrize(
    ("values", "items", "since"),
    [
        ([1.0, np.nan, np.nan], [1, 1, 1], 2),
        ([1.0, np.nan, np.nan, np.inf], [1, 1, 0, 1], 2),
        ([1.0, np.nan, np.nan], [1, 0, 1], 3),
        ([1.0, np.nan, 2.0], [1, 1, 1], None),
        ([np.nan, np.nan], [1, 1], 1),
        ([np.nan], [0], None),
        ([], [], None),
    ],
)
def test_since_when_losses_are_not_finite(values: list[float], items: list[int], since: int | None) -> None:
    evaluations = {"step": np.arange(1, len(values) + 1), "loss": np.array(values, dtype=np.float64)}
    assert not_finite_since({**evaluations, "items": np.array(items, dtype=np.int64)}) == since
    if all(items):
        assert not_finite_since(evaluations) == since
