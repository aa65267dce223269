from pathlib import Path

import numpy as np
import pytest

from mixer.tools.records.run import Run
from mixer.tools.records.runs import OTHERS
from mixer.tools.report.contents import points_per_line, read_report
from mixer.tools.report.grouping import MOST_STREAMS, grouped, main_streams
from mixer.tools.report.plots import PLOTS
from tests.mixer.tools.report.ledgers import made_run

NAMES = tuple(f"stream-{number}" for number in range(30))


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return made_run(tmp_path / "run", NAMES, measure_every=2)


def test_the_conspicuous_come_first_and_then_those_that_gave_most(run: Run, tmp_path: Path) -> None:
    counted = {name: run.streams[name].assign(count=number) for number, name in enumerate(NAMES)}
    main = main_streams([run.but(streams=counted)], ["stream-3", "no stream", "stream-3"])
    assert main == ["stream-3", *NAMES[-(MOST_STREAMS - 2) :]]
    few = made_run(tmp_path / "few", NAMES[:MOST_STREAMS])
    assert OTHERS not in grouped(few, main_streams([few], [])).streams


def test_the_others_are_added_up_and_every_plot_draws_them_in_few_panels(run: Run, tmp_path: Path) -> None:
    main, rest = NAMES[:11], NAMES[11:]
    others = grouped(run, main).streams[OTHERS]
    assert others["step"].tolist() == run.clock["step"].tolist()
    for column in ("weight", "count", "items"):
        expected = sum(run.streams[name][column].to_numpy() for name in rest)
        assert others[column].tolist() == pytest.approx(expected.tolist())
    losses = np.mean([run.streams[name]["loss"] for name in rest], axis=0)  # all have equally many items
    assert others["loss"].tolist() == pytest.approx(losses.tolist())
    drawn = grouped(run, main)
    assert list(drawn.evaluations) == [*main, OTHERS]
    expected = np.mean([run.evaluations[name]["loss"] for name in rest], axis=0)
    assert drawn.evaluations[OTHERS]["loss"].tolist() == pytest.approx(expected.tolist())
    assert list(drawn.gradients) == list(main)
    held, all_held = (one.memories["memory"].groupby("step")["entries"].sum().tolist() for one in (drawn, run))
    assert held == all_held
    assert drawn.memories["memory"]["source"].nunique() == MOST_STREAMS + 1
    report = read_report([tmp_path / "run"])
    assert len(report.plots) == len(PLOTS) - 1  # nothing was rewarded
    assert max(len(plot.panels) for plot in report.plots) == MOST_STREAMS
    assert max(len(plot.colours) for plot in report.plots) <= MOST_STREAMS + 1
    assert OTHERS in report.plots[0].panels[-1].title
    assert points_per_line([drawn]) > points_per_line([run])


def test_a_stream_that_comes_and_goes_counts_where_it_is_there(run: Run) -> None:
    late, main = NAMES[-1], NAMES[:-2]
    rows = run.streams[late].iloc[3:5].assign(loss=[np.nan, 100.0], items=[0, 4])
    run = run.but(streams={**run.streams, late: rows})
    others = grouped(run, main).streams[OTHERS]
    assert others["count"].tolist() == [2, 4, 6, 16, 20, 12]
    assert others["loss"].iloc[3] == pytest.approx(run.streams[NAMES[-2]]["loss"].iloc[3])
    expected = (run.streams[NAMES[-2]]["loss"].iloc[4] * 10 + 400) / 14
    assert others["loss"].iloc[4] == pytest.approx(expected)
