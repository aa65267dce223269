"""Tables of other frameworks' runs, whole and odd."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from mixer.tools.analysis.fit.table import RunTable
from tests.refusals import refused


def table(**columns: object) -> pd.DataFrame:
    own = {
        "run": ["one", "two", "three"],
        "share/a": [0.2, 0.5, 0.8],
        "share/b": [0.8, 0.5, 0.2],
        "loss/x": [3.0, 2.0, 1.0],
    }
    return pd.DataFrame({**own, **columns})


def read(folder: Path, given: pd.DataFrame, **options: str) -> RunTable:
    given.to_csv(folder / "runs.csv", index=False)
    return RunTable(folder / "runs.csv", **options)


def test_csv_and_parquet_are_read_alike(tmp_path: Path) -> None:
    found = read(tmp_path, table(size=[1, 1, 2]), size="size")
    table(size=[1, 1, 2]).to_parquet(tmp_path / "runs.parquet")
    for one in (found, RunTable(tmp_path / "runs.parquet", size="size")):
        assert (one.runs, one.streams, one.loss_names) == (["one", "two", "three"], ("a", "b"), ("x",))
        assert one.mixtures.tolist() == [[0.2, 0.8], [0.5, 0.5], [0.8, 0.2]]
        assert one.sizes is not None
        assert (one.losses.tolist(), one.sizes.tolist()) == ([[3.0], [2.0], [1.0]], [1.0, 1.0, 2.0])


def test_names_of_columns_are_patterns_without_blanks(tmp_path: Path) -> None:
    whole = table()
    assert read(tmp_path, whole.rename(columns={"loss/x": "loss"}), losses="loss").loss_names == ("loss",)
    found = read(tmp_path, whole.rename(columns={"loss/x": "metric_x_val"}), losses="metric_*_val")
    assert found.loss_names == ("x",)
    assert read(tmp_path, whole.rename(columns=lambda name: f" {name} ")).streams == ("a", "b")


def test_rows_that_stand_twice_are_one_run(tmp_path: Path) -> None:
    twice = read(tmp_path, pd.concat([table(), table()]))
    assert twice.runs == ["one", "two", "three"]
    assert "3 rows" in twice.notes[0]


def test_amounts_rounding_and_missing_losses_are_handled_with_a_word(tmp_path: Path) -> None:
    amounts = read(tmp_path, table(**{"share/a": [20, 50, 80], "share/b": [80, 50, 20]}))
    assert amounts.mixtures[0] == pytest.approx([0.2, 0.8])
    rounded = read(tmp_path, table(**{"share/a": [0.21, 0.5, 0.8]}))
    assert rounded.mixtures.sum(axis=1) == pytest.approx(1.0)
    missing = read(tmp_path, table(**{"loss/x": [3.0, np.nan, 1.0]}))
    assert np.isnan(missing.losses[1, 0])
    unread = read(tmp_path, table(size=[1, 1, 2]))
    assert "size" in unread.notes[0]
    for found in (amounts, rounded, missing, unread):
        assert len(found.notes) == 1


@pytest.mark.parametrize(
    ("columns", "option"),
    [
        ({"share/a": [-0.1, 0.5, 0.8]}, "--shares"),
        ({"share/a": [0.6, 0.5, 0.8]}, "--shares"),
        ({"share/a": ["much", 0.5, 0.8]}, "share/a"),
        ({"share/a": [np.nan, 0.5, 0.8]}, "share/a"),
        ({"loss/x": [1.0, "bad", 2.0]}, "loss/x"),
        ({"loss/x": [True, False, True]}, "loss/x"),
        ({"loss/x": [True, 2.0, 1.0]}, "loss/x"),
        ({"share/a": [np.inf, 0.5, 0.8]}, "--shares"),
    ],
)
def test_cells_that_are_no_shares_are_refused_by_name(columns: dict[str, object], option: str, tmp_path: Path) -> None:
    with refused(option):
        read(tmp_path, table(**columns))


def test_missing_columns_files_and_sizes_are_refused_by_name(tmp_path: Path) -> None:
    for options, named in (({"shares": "w_*"}, "--shares"), ({"losses": "y"}, "--losses"), ({"size": "n"}, "--size")):
        with refused(named):
            read(tmp_path, table(), **options)
    with refused(str(tmp_path / "nothing.csv")):
        RunTable(tmp_path / "nothing.csv")
    with refused("--shares", found=["share/b"]):
        read(tmp_path, table(), losses="share/b")
    (tmp_path / "twice.csv").write_text("run,share/a,share/a,loss/x\none,0.5,0.5,1.0\n")
    with refused(str(tmp_path / "twice.csv"), found=["share/a"]):
        RunTable(tmp_path / "twice.csv")
    table(**{"loss/x": pd.to_datetime(["2026"] * 3)}).to_parquet(tmp_path / "times.parquet")
    with refused("loss/x"):
        RunTable(tmp_path / "times.parquet")


def test_runs_of_one_name_are_told_apart_by_their_rows(tmp_path: Path) -> None:
    assert read(tmp_path, table(run=["one", "one", "two"])).runs == ["row 1: one", "row 2: one", "row 3: two"]
