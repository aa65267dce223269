import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from benchmarks.quality.pike import main, summarise
from benchmarks.quality.pike_runs import PLACES, PROPORTIONAL, QUICK, UNIFORM, gradients_seen, policies, read_result
from mixer.gradients.records import rows_of
from tests.mixer.measurements import measured


def result(first: float, second: float, seconds: float = 10.0, conflict: float | None = None) -> dict[str, Any]:
    kinds = ("conflict", "alignment", "least_cosine", "mean_cosine", "largest_cosine", "share_negative")
    return {
        "losses": {"a": first, "b": second},
        "seconds": seconds,
        "probe_seconds": 1.0,
        "weights": {"a": [0.5] * len(PLACES), "b": [0.5] * len(PLACES)},
        "gradients": None if conflict is None else dict.fromkeys(kinds, conflict),
    }


def test_policies_are_compared_seed_by_seed() -> None:
    figures = summarise(
        {
            UNIFORM: [result(1.0, 3.0), result(2.0, 4.0)],
            PROPORTIONAL: [result(1.0, 5.0), result(2.0, 6.0)],
            "other": [result(2.0, 1.0, 20.0, 0.25), result(4.0, 3.0, 5.0, 0.75)],
        }
    )
    other = figures["other"]
    assert other["average"] == [1.5, 3.5]
    assert other["worst"] == [2.0, 4.0]
    assert other["average_over_Uniform"] == [-0.5, 0.5]
    assert other["worst_over_Proportional"] == [-3.0, -2.0]
    assert other["seconds_ratio"] == [2.0, 0.5]
    assert other["probe_share"] == [0.05, 0.2]
    assert other["losses"] == {"a": 3.0, "b": 2.0}
    assert other["gradients"]["conflict"] == 0.5
    assert figures[UNIFORM]["gradients"] is None


def test_conflict_and_alignment_are_those_of_the_averages() -> None:
    rows = []
    statistics = measured(num_streams=3, seed=1)
    for step in (1, 2):
        columns = rows_of(step, ("a", "b", "c"), statistics)
        rows.append(
            pd.DataFrame({name: list(values) if np.ndim(values) else values for name, values in columns.items()})
        )
    seen = gradients_seen(pd.concat(rows))
    assert seen is not None
    assert seen["num_measurements"] == 2
    assert seen["conflict"] == pytest.approx(statistics.conflict)
    assert seen["alignment"] == pytest.approx(statistics.alignment)
    assert seen["least_cosine"] == pytest.approx(statistics.cosines.min())


def test_a_run_without_measurements_has_seen_nothing() -> None:
    assert gradients_seen(pd.DataFrame()) is None


@pytest.mark.full
def test_a_quick_run_compares_all_and_keeps_the_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "figures.json"
    command = ["--quick", "--parallel", "1", "--folder", str(tmp_path / "runs"), "--json", str(file)]
    main(command)
    names = list(policies(QUICK.interval))
    figures = json.loads(file.read_text())
    assert list(figures["policies"]) == names
    for name, own in figures["policies"].items():
        assert np.isfinite(own["average"]).all(), name
        assert (own["gradients"] is None) == (name in (UNIFORM, PROPORTIONAL)), name
        assert np.sum(list(own["weights"].values()), axis=0) == pytest.approx(1.0), name
    kept = [read_result(path, QUICK) for path in (tmp_path / "runs").iterdir()]
    assert len(kept) == len(names)
    assert "1 of" in capsys.readouterr().out
    main(command)  # nothing is run anew
    assert "1 of" not in capsys.readouterr().out
