import json
from pathlib import Path

from mixer.tools.records.runs import read_runs, stream_names
from mixer.tools.report.tables import differing_streams, summary_rows
from tests.mixer.tools.report.ledgers import made_run, write_run


def summary(folder: Path) -> dict[str, list[str]]:
    return dict(summary_rows(read_runs([folder])))


def test_every_row_has_its_place_on_the_clock(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run")
    assert run.name == "run"
    epochs = [0.004, 0.012, 0.024, 0.04, 0.06, 0.084]
    assert run.streams["code"]["samples"].tolist() == [4, 12, 24, 40, 60, 84]
    assert run.streams["code"]["epoch"].tolist() == run.streams["code"]["passes"].tolist() == epochs
    assert run.evaluations["math"]["epoch"].tolist() == [0.0, 0.012, 0.04, 0.084]
    assert run.timings["load_seconds"].tolist() == [0.5] * 6
    assert run.timings["epoch"].tolist() == run.clock["epoch"].tolist() == epochs


def test_the_main_figures(tmp_path: Path) -> None:
    ledger = write_run(tmp_path)
    assert summary(tmp_path) == {
        "Policy": ["not known"],
        "Budget used": ["100%"],
        "Ended": ["not recorded: still running, or killed"],
        "Steps": ["6"],
        "Samples": ["84"],
        "Tokens": ["252"],
        "Epochs": ["0.08"],
        "Batch size, first → last": ["4 → 24"],
        "Learning rate, peak → last": ["0.0985 → 0.0866"],
        "Validation loss, last, average": ["3.500"],
        "Validation loss, last, worst": ["4.000"],
        "Time in loading": ["3.0 s"],
        "Time in training": ["2 min 0 s"],
        "Prefetched samples": ["100.0%"],
    }
    floor = {"class_path": "Floor", "init_args": {"policy": {"class_path": "PiKE", "init_args": {}}}}
    (tmp_path / "ledger" / "ledger.json").write_text(json.dumps({"format": 1, "run": {"mixing": floor}}))
    for path in (tmp_path / "ledger" / "evaluations").iterdir():
        path.unlink()
    described = summary(tmp_path)
    assert described["Policy"] == ["Floor(PiKE)"]
    assert described["Validation loss, last, worst"] == ["no evaluation"]
    ends = {("finished",): "finished", ("stopped", "SIGTERM"): "stopped: SIGTERM"}
    ends |= {("stopped",): "stopped: no recorded reason", ("stopped", "x" * 5000): f"stopped: {'x' * 200}…"}
    for ended, told in ends.items():
        ledger.end(*ended)
        assert summary(tmp_path)["Ended"] == [told]


def test_runs_are_told_apart_and_streams_that_only_some_have_are_named(tmp_path: Path) -> None:
    runs = [made_run(tmp_path / "first", ("math", "code"))]
    runs += [made_run(tmp_path / name, ("code", "chat")) for name in ("second", "third")]
    assert stream_names(runs) == ["math", "code", "chat"]
    write_run(tmp_path / "elsewhere" / "first")
    folders = [tmp_path / "first", tmp_path / "elsewhere" / "first"]
    assert [run.name for run in read_runs(folders)] == [str(folder) for folder in folders]
    expected = "Not every run has every stream: math only in first; chat only in second and third."
    assert (differing_streams(runs), differing_streams(runs[1:])) == (expected, "")
    many = made_run(tmp_path / "many", ("math", *(f"language {number}" for number in range(40))))
    expected = "language 0, language 1, language 2 and 37 more only in many; code only in first."
    assert differing_streams([many, runs[0]]) == f"Not every run has every stream: {expected}"
