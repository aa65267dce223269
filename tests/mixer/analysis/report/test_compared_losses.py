from pathlib import Path

import numpy as np
import pytest

from mixer.analysis.report.plot import Plot
from mixer.analysis.report.plots import compared_losses
from tests.mixer.analysis.report.ledgers import made_run


def y_of(plot: Plot, panel: int, name: str) -> np.ndarray:
    return next(line.y for line in plot.panels[panel].figure.data if line.name == name)


def test_excess_and_fall_are_a_panel_each_a_run_where_they_were_measured(tmp_path: Path) -> None:
    runs = [made_run(tmp_path / "first", ("math", "code"), measure_every=1)]
    runs += [made_run(tmp_path / "second", ("code", "chat"), 4, measure_every=2), made_run(tmp_path / "third")]
    plot = compared_losses(runs, 100)
    kinds = ("above the reference", "fall by the step")
    assert [panel.title for panel in plot.panels] == [f"{run}: {kind}" for run in ("first", "second") for kind in kinds]
    assert list(plot.colours) == ["math", "code", "chat"]
    expected = [2 / step for step in range(1, 7)]
    assert y_of(plot, 0, "code, this step") == pytest.approx(expected, rel=1e-6)
    assert y_of(plot, 1, "code, this step") == pytest.approx([0.5] * 6, rel=1e-6)
    smooth = y_of(plot, 0, "code")
    assert smooth[0] == 2.0
    assert (smooth[1:] >= np.float32(expected[1:])).all()
    ranges = [panel.figure.layout.yaxis.range for panel in plot.panels]
    assert ranges[:2] == ranges[2:]
    assert ranges[0] == pytest.approx((-0.1, 2.1))
    assert "In second the last excess (smoothed) is 0.5" in plot.caption
    assert "the last fall (smoothed) is between 0 (code) and 0.5 (chat)." in plot.caption
    assert plot.caption.endswith("In third losses were not compared.")
    runs[0].comparisons["math"]["excess_loss"] = np.nan
    for rows in runs[1].comparisons.values():
        rows["loss_after"] = np.nan
    plot = compared_losses(runs, 100)
    titles = ["first: above the reference", "first: fall by the step", "second: above the reference"]
    assert [panel.title for panel in plot.panels] == titles
    assert {line.legendgroup for line in plot.panels[0].figure.data} == {"code"}
    assert compared_losses(runs[2:], 100).panels == []
