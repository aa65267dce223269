"""What earlier versions left on disk is read as it was written, or refused with the way out."""

import json
import shutil
import tomllib
from pathlib import Path

import pytest

from mixer.ledger.ledger import Ledger
from mixer.tools.analysis.explanation import explain
from mixer.tools.records.run import Run
from tasks.metrics.score_matrix import ScoreMatrix
from tests.fixtures.runs import LIVE_STEP, NUM_STEPS, SAVED_STEP, make_trainer

FIXTURES = Path(__file__).parents[1] / "fixtures"
EXPECTED = {path.parent.name: json.loads(path.read_text()) for path in sorted(FIXTURES.glob("*/expected.json"))}


def test_the_present_version_has_files() -> None:
    project = tomllib.loads((FIXTURES.parents[1] / "pyproject.toml").read_text())["project"]
    assert project["version"] in EXPECTED, "run python -m tests.fixtures.write VERSION and commit what it makes"


@pytest.mark.parametrize("version", EXPECTED)
def test_a_ledger_and_scores_are_read_to_the_bit(version: str, tmp_path: Path) -> None:
    expected, folder = EXPECTED[version], FIXTURES / version / "run"
    for name, last in {"run": NUM_STEPS, "live": LIVE_STEP}.items():  # of which one goes on, and has a tail
        shutil.copytree(FIXTURES / version / name, tmp_path / name)
        assert list((tmp_path / name).rglob("tail-*.arrow")) or name == "run"
        assert list((tmp_path / name).rglob("part-*.parquet"))
        rows, num_rows = Ledger(tmp_path / name / "ledger").to_pandas(), last * len(set(expected["streams"]["stream"]))
        assert len(rows) == num_rows
        for column, written in expected["streams"].items():  # as text, in which NaN is equal to NaN
            assert repr(list(rows[column])) == repr(written[:num_rows])
    assert Run(folder).row_clock["step"].tolist() == list(range(1, NUM_STEPS + 1))
    if "run" in (folder / "ledger" / "ledger.json").read_text():
        explanation = explain(folder, SAVED_STEP)
        assert explanation.is_decided
        assert [level.name for level in explanation.levels] == ["LossChange", "ReplayRatio"]
    if "scores" in expected:
        matrix = ScoreMatrix.from_file(FIXTURES / version / "continual" / "scores.json")
        assert matrix.scores.tolist() == expected["scores"]
    assert sum(path.stat().st_size for path in folder.parent.rglob("*") if path.is_file()) <= 300_000


@pytest.mark.parametrize("version", EXPECTED)
def test_a_run_goes_on_as_it_would_have_then(version: str, tmp_path: Path) -> None:
    expected = EXPECTED[version]
    shutil.copytree(FIXTURES / version / "run", tmp_path / "run")
    trainer = make_trainer(tmp_path / "run", expected["has_memory"])
    checkpoint = str(tmp_path / "run" / f"checkpoint-{SAVED_STEP}")
    trainer.train(resume_from_checkpoint=checkpoint)
    rows, written = trainer.ledger.to_pandas(), expected["streams"]
    assert {name: rows[name].tolist() for name in ("step", "stream", "count", "seen")} == {
        name: written[name] for name in ("step", "stream", "count", "seen")
    }
    assert rows["loss"].tolist() == pytest.approx(written["loss"], rel=1e-6, nan_ok=True)


@pytest.mark.parametrize("name", ["mixing.json", "complete.json", "methods/memory/buffer.json"])
@pytest.mark.parametrize(("version", "message"), [(99, "upgrade"), (0, "an earlier version of")])
def test_a_checkpoint_of_another_version_is_refused_as_that(name, version, message, tmp_path) -> None:
    shutil.copytree(FIXTURES / "0.1.0" / "run", tmp_path / "run")
    checkpoint = tmp_path / "run" / f"checkpoint-{SAVED_STEP}"
    _rewrite(checkpoint, name, version)
    with pytest.raises(ValueError, match=f"{message} adaptive-mixer"):
        make_trainer(tmp_path / "run").train(resume_from_checkpoint=str(checkpoint))


def _rewrite(checkpoint: Path, name: str, version: int) -> None:
    """Gives a file of a checkpoint another format, and its new size in the marker."""
    marker = checkpoint / "complete.json"
    content = {key: value for key, value in json.loads((checkpoint / name).read_text()).items() if key != "crc32"}
    (checkpoint / name).write_text(json.dumps({**content, "format": version}))
    if name != "complete.json":
        listed = json.loads(marker.read_text())
        listed["files"][name] = (checkpoint / name).stat().st_size
        marker.write_text(json.dumps({key: listed[key] for key in listed if key not in ("crc32", "digests")}))


def test_a_ledger_and_scores_of_such_a_version_are_refused(tmp_path: Path) -> None:
    shutil.copytree(FIXTURES / "0.1.0", tmp_path / "run")
    for path, read in (
        ("run/ledger/ledger.json", lambda path: Run(path.parents[1])),
        ("continual/scores.json", ScoreMatrix.from_file),
    ):
        file = tmp_path / "run" / path
        file.write_text(json.dumps({**json.loads(file.read_text()), "format": 99}))
        with pytest.raises(ValueError, match="pgrade adaptive-mixer"):
            read(file)
