from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from mixer.tools.records.run import Run
from mixer.tools.records.runs import read_runs
from mixer.tools.report.plot import Plot
from mixer.tools.report.plots import PLOTS, coverage, losses, memory, rewards, schedules, terms, weights
from mixer.tools.report.plots.losses import last_smoothed, smoothed
from mixer.tools.report.plots.mixture import mixture, shares
from tests.mixer.tools.report.ledgers import made_run, write_run

EPOCHS = [0.004, 0.012, 0.024, 0.04, 0.06, 0.084]


@pytest.fixture
def runs(tmp_path: Path) -> list[Run]:
    second = made_run(tmp_path / "second", ("code", "chat"), num_steps=4)
    return [made_run(tmp_path / "first", ("math", "code")), second]


def lines_of(plot: Plot, panel: int = 0) -> list[tuple[str, list[float], list[float]]]:
    return [
        (line.name, line.x.astype(float).round(4).tolist(), line.y.astype(float).round(4).tolist())
        for line in plot.panels[panel].figure.data
    ]


def test_what_changes_of_batch_sizes_and_learning_rates_is_a_line_a_run_over_the_data_clock(runs: list[Run]) -> None:
    plot = schedules(runs, 100)
    sizes = [4.0, 8.0, 12.0, 16.0, 20.0, 24.0]
    assert lines_of(plot) == [("first", EPOCHS, sizes), ("second", EPOCHS[:4], sizes[:4])]
    assert plot.panels[0].figure.data[0].customdata.tolist() == [4, 12, 24, 40, 60, 84]  # samples, under the pointer
    assert [panel.title for panel in plot.panels] == ["Batch size, samples", "Learning rate"]
    for run in runs:
        run.clock["batch_size"] = 64
        run.clock["learning_rate_factor"] = np.arange(len(run.clock))
    runs[0].clock["samples"] *= 10**10
    plot = schedules(runs, 100)
    assert lines_of(plot, 1)[1][2] == [0.0, 1.0, 2.0, 3.0]
    assert plot.panels[0].figure.data[0].customdata[-1] == 84e10  # beyond 32 bits


def test_losses_are_a_panel_a_stream_and_aligned_by_name(runs: list[Run]) -> None:
    plot = losses(runs, 100)
    assert [panel.title for panel in plot.panels] == ["math", "code", "chat"]
    kinds = ["this step", "training", "validation"]
    expected = [f"{run}, {kind}" for run in ("first", "second") for kind in kinds]
    assert [name for name, _, _ in lines_of(plot, 1)] == expected
    assert {line.legendgroup for line in plot.panels[2].figure.data} == {"second"}
    raw, _, validation = lines_of(plot, 0)
    assert raw[2] == [10.0, 5.0, 3.3333, 2.5, 2.0, 1.6667]
    assert validation[1:] == ([0.0, 0.012, 0.04, 0.084], [9.0, 7.0, 5.0, 3.0])


def test_terms_of_methods_are_a_panel_a_method(tmp_path: Path) -> None:
    plot = terms([made_run(tmp_path / "with", measure_every=3), made_run(tmp_path / "without")], 100)
    assert [panel.title for panel in plot.panels] == ["ReferenceKL"]
    assert lines_of(plot) == [("with", [0.024, 0.084], [1.5, 3.0])]


@pytest.mark.parametrize("most_points", [4, 100])
def test_the_mixture_is_a_panel_a_run_and_shares_add_up_in_every_stretch(runs: list[Run], most_points: int) -> None:
    plot = mixture(runs, most_points)
    assert [panel.title for panel in plot.panels] == ["first", "second"]
    assert [panel.title for panel in weights(runs, most_points).panels] == ["first", "second"]
    assert list(plot.colours) == ["math", "code", "chat"]
    first, second = (panel.figure.data for panel in plot.panels)
    assert first[1].name == second[0].name == "code"
    assert first[1].line.color == second[0].line.color == plot.colours["code"]
    assert {line.stackgroup for line in first} == {"shares"}
    later = {**runs[0].streams, "code": runs[0].streams["code"].iloc[2:]}  # a stream that came later
    by_stream = shares(runs[0].but(streams=later), most_points)
    for column in ("weight", "share"):
        sums = by_stream["math"][column] + by_stream["code"][column]
        assert sums.tolist() == pytest.approx([1.0] * min(most_points, 6))
    assert by_stream["math"]["share"].iloc[[0, -1]].tolist() == [1.0, 0.5]


def test_passes_are_a_panel_a_run_and_streams_without_a_length_are_named(tmp_path: Path) -> None:
    plot = coverage([made_run(tmp_path / "run", ("web", "math", "code"), unsized=("web",))], 100)
    assert [name for name, _, _ in lines_of(plot)] == ["math", "code"]
    assert lines_of(plot)[0][2][-1] == 0.126  # 42 of 333 samples
    assert plot.panels[0].figure.layout.yaxis.range == pytest.approx((0, 1.05 * 0.126))


@pytest.mark.parametrize(("num_steps", "measure_every", "most"), [(1, 1, 20), (400, 3, 61)])
def test_every_plot_draws_no_more_points_than_it_may(tmp_path, num_steps, measure_every, most) -> None:
    run = made_run(tmp_path / "run", num_steps=num_steps, measure_every=measure_every)
    for plot in PLOTS:
        drawn = plot([run], most)
        assert drawn.caption
        assert drawn.panels or plot in (schedules, rewards)  # one size is no plot, and nothing was rewarded
        for panel in drawn.panels:
            assert panel.figure.data
            assert all(len(line.x) <= most for line in panel.figure.data)  # heat maps have 60 stretches


def test_the_memory_is_stacked_by_source(tmp_path: Path) -> None:
    ledger = write_run(tmp_path / "run", is_done=False)
    for step in (2, 4, 6):
        ledger.record_memory(step, "memory", {"math": 2 * step, "code": 10 - step}, {})
    ledger.flush()
    (run,) = read_runs([tmp_path / "run"])
    plot = memory([run], 100)
    assert [panel.title for panel in plot.panels] == ["run: memory"]
    lines = {line.name: line for line in plot.panels[0].figure.data}
    assert (lines["math"].y.tolist(), lines["code"].y.tolist()) == ([4, 8, 12], [8, 6, 4])
    assert {line.stackgroup for line in lines.values()} == {"entries"}
    assert [line.y[-1] for line in memory([run], 2).panels[0].figure.data] == [12, 4]


def test_the_last_smoothed_loss_is_that_of_the_whole_course() -> None:
    random = np.random.default_rng(0)
    rows = pd.DataFrame({"items": random.integers(0, 5, 90), "loss": random.normal(3.0, 1.0, 90)})
    rows.loc[[0, 40, 89], "loss"] = np.nan
    losses, items = rows["loss"].to_numpy(), rows["items"].to_numpy()
    assert last_smoothed(losses, items) == pytest.approx(smoothed(rows).iloc[-1], rel=1e-12)
    assert np.isnan(last_smoothed(np.full(90, np.nan), items))
