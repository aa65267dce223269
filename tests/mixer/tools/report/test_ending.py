"""Losses that end with what is no number, wherever a report tells the last ones."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from mixer.policies.objective import Objective
from mixer.tools.records.comparison import comparison_table, metrics_table
from mixer.tools.records.summary import summarise
from mixer.tools.report.clocked import not_finite_since
from tests.mixer.tools.report.ledgers import write_run


def test_the_worst_is_what_is_no_number(tmp_path: Path) -> None:
    ledger = write_run(tmp_path, eval_every=9)  # losses of 9 and 10 before the first step
    ledger.record_evaluation(6, {"math": 1.0, "code": np.nan})
    ledger.finish()
    summary = summarise(tmp_path)
    assert np.isnan(summary.streams.loc["code", "last_loss"])
    table = comparison_table([summary])
    course = dict(zip(table.columns[0].cells, table.columns[1].cells, strict=True))
    assert (course["worst"], course["average"], course["code"][-5:]) == ("10.000 → nan", "9.500 → nan", "→ nan")


def test_a_number_stands_once_where_one_target_is_the_objective(tmp_path: Path) -> None:
    summaries = []
    for name, last in (("plain", 4.0), ("auto", 3.0)):
        ledger = write_run(tmp_path / name)
        ledger.record_evaluation(6, {"math": last, "code": 7.0}, {"math": {"f1": 1 / last, "num_tokens": 218.0}})
        ledger.finish()
        summaries.append(replace(summarise(tmp_path / name), objective=Objective(["math"])))
    table = comparison_table(summaries)
    names, plain, auto = ([*table.columns[place].cells] for place in (0, 1, 5))
    assert names == ["objective:\nmath", "code", "average", "worst"]
    assert (plain[0], auto[0]) == ("9.000 → 4.000", "9.000 → 3.000\n-25.0 %")
    assert [*metrics_table(summaries).columns[2].cells] == ["0.250 → 0.250", "218 → 218"]
    by_metric = [replace(one, objective=Objective(["math"], metric="f1", greater_is_better=True)) for one in summaries]
    assert [*comparison_table(by_metric).columns[0].cells][:3] == ["objective:\nmath, f1", "math", "code"]
    assert [*metrics_table(by_metric).columns[1].cells] == ["num_tokens"]
    alone = replace(summaries[0], evaluated=frozenset({"math"}))
    (names, losses, samples) = ([*comparison_table([alone]).columns[place].cells] for place in range(3))
    assert (names[-1], losses[-1], samples[-1]) == ("all", "", "(84)")


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
    rows = pd.DataFrame({"step": np.arange(1, len(values) + 1), "items": items, "loss": values})
    assert not_finite_since(rows) == since
    if all(items):
        assert not_finite_since(rows.drop(columns="items")) == since
