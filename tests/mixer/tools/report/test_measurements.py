from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from mixer.tools.records.run import Run
from mixer.tools.records.runs import read_runs
from mixer.tools.report.measurements import log_axis
from mixer.tools.report.plot import Plot
from mixer.tools.report.plots import gradient_cosines, gradient_norms, whole_gradient
from tests.mixer.made_measurements import measured
from tests.mixer.tools.report.ledgers import made_run, write_run

NAMES = ("math", "code", "chat")


def y_of(plot: Plot, panel: int, name: str) -> np.ndarray:
    return next(line.y for line in plot.panels[panel].figure.data if line.name == name)


@pytest.fixture
def runs(tmp_path: Path) -> list[Run]:
    first = made_run(tmp_path / "first", NAMES, measure_every=2)
    return [first, made_run(tmp_path / "second", ("code", "math"), 4, measure_every=4), made_run(tmp_path / "third")]


def test_of_a_running_run_nothing_is_shown_that_came_too_early(tmp_path: Path) -> None:
    ledger = write_run(tmp_path / "run", is_done=False, measure_every=4)
    ledger.record_gradients(6, ("math", "code", "web"), measured(3))  # no other rows of web are written yet
    ledger.record_gradients(7, ("math", "code"), measured(2))
    ledger.flush()
    (run,) = read_runs([tmp_path / "run"])
    assert list(run.gradients) == ["math", "code"]
    assert all(rows["step"].tolist() == [4, 6] for rows in run.gradients.values())
    assert run.noise["step"].tolist() == [4, 6]
    assert run.cosines is not None
    assert run.cosines.counts.tolist() == [[2, 2, 1], [2, 2, 1], [1, 1, 1]]
    assert len(gradient_cosines([run], 100).panels[0].figure.data[0].z) == 3


def test_norms_and_noise_scales_are_a_row_of_panels_a_run(runs: list[Run]) -> None:
    rows = runs[0].gradients["math"]
    rows["squared_norm"], rows["variance"] = [4.0, -1.0, 9.0], [8.0, 5.0, 45.0]
    plot = gradient_norms(runs, 100)
    kinds = ("norm", "noise scale, samples")
    assert [panel.title for panel in plot.panels] == [f"{run}: {kind}" for run in ("first", "second") for kind in kinds]
    assert y_of(plot, 0, "math, this step").tolist() == [2.0, 3.0]
    assert y_of(plot, 1, "math, this step").tolist() == [2.0, 5.0]
    assert {panel.figure.layout.yaxis.type for panel in plot.panels} == {"log"}
    ranges = [panel.figure.layout.yaxis.range for panel in plot.panels]
    assert ranges[:2] == ranges[2:]
    assert {line.mode for line in plot.panels[1].figure.data} == {"lines", "lines+markers"}  # where points are few
    assert list(plot.colours) == list(NAMES)


def test_cosines_are_a_heat_map_of_pairs_over_the_run(runs: list[Run], tmp_path: Path) -> None:
    cosines = runs[0].cosines
    assert cosines is not None
    each = np.stack([measured(seed=at).cosines for at in (2, 4, 6)])
    assert cosines.names == list(NAMES)
    assert cosines.edges == pytest.approx([0.0, 0.042, 0.084, 0.126])
    assert cosines.stretches == pytest.approx(each)
    assert cosines.mean == pytest.approx(each.mean(0))
    off_diagonal = ~np.eye(3, dtype=bool)
    assert cosines.error[off_diagonal] == pytest.approx((each.std(0, ddof=1) / np.sqrt(3))[off_diagonal])
    assert (cosines.counts == 3).all()
    plot = gradient_cosines(runs, 100)
    assert [panel.title for panel in plot.panels] == ["first: over the run", "second: over the run"]
    over_run, _ = (panel.figure.data[0] for panel in plot.panels)
    pairs = sorted([(0, 1), (0, 2), (1, 2)], key=lambda pair: each[:, pair[0], pair[1]].mean())
    assert over_run.z == pytest.approx(np.stack([each[:, i, j] for i, j in pairs]), rel=1e-6)
    assert over_run.customdata[0][0] == " · ".join(NAMES[place] for place in pairs[0])
    assert over_run.zmin == -over_run.zmax
    names = tuple(f"stream {place}" for place in range(45))
    plot = gradient_cosines([made_run(tmp_path / "run", names, 3, measure_every=3)], 100)
    means = np.sort(measured(45, seed=3).cosines[np.triu_indices(45, 1)])
    drawn = plot.panels[0].figure.data[0].z[:, 0]
    assert drawn == pytest.approx(np.concatenate([means[:12], means[-12:]]), rel=1e-6)
    assert "Only the pairs with the least and the greatest mean are drawn" in plot.caption


def test_the_whole_gradient_has_a_norm_of_every_step_and_a_noise_scale_where_it_was_measured(runs: list[Run]) -> None:
    plot = whole_gradient(runs, 100)
    assert [panel.title for panel in plot.panels] == ["Norm, before clipping", "Noise scale, samples"]
    assert y_of(plot, 0, "first, this step") == pytest.approx([1 / np.sqrt(step) for step in range(1, 7)], rel=1e-6)
    expected = [noise / signal for signal, noise in (measured(seed=at).noise for at in (2, 4, 6)) if signal > 0]
    assert y_of(plot, 1, "first, this step") == pytest.approx(expected, rel=1e-6)
    runs[2].clock["gradient_norm"] = np.nan
    nothing = whole_gradient(runs[2:], 100)
    assert nothing.panels == []


@pytest.mark.parametrize(
    ("columns", "least_and_greatest"),
    [
        ([[0.01, np.nan, 1000.0]], (-2.25, 3.25)),
        ([[10.0]], (0.9, 1.1)),
        ([[np.nan]], None),
    ],
)
def test_an_axis_holds_all_values(columns: list[list[float]], least_and_greatest: Any) -> None:
    found = log_axis([pd.Series(values) for values in columns]).get("range")
    assert found == (None if least_and_greatest is None else pytest.approx(least_and_greatest))
