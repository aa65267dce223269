from pathlib import Path

from benchmarks.speed.report import Length, measure, write_ledger
from mixer.analysis.report.contents import read_report


def test_the_page_of_a_made_up_run_is_measured_in_a_process_of_its_own(tmp_path: Path) -> None:
    write_ledger(tmp_path / "run", Length(3, 200))
    figures = measure(tmp_path / "run")
    assert set(figures) == {"seconds", "cpu_seconds", "peak_megabytes", "page_megabytes"}
    assert 100 < figures["peak_megabytes"] < 1000
    assert 1 < figures["page_megabytes"] < 6
    report = read_report([tmp_path / "run"])
    assert [len(rows) for rows in report.runs[0].streams.values()] == [200] * 3
    assert "Cosines between streams' gradients" in [plot.title for plot in report.plots]
