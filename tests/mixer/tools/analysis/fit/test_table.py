"""Tables of other frameworks' runs, whole and odd."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from mixer.tools.analysis.fit.table import RunTable


def table(**columns: object) -> pd.DataFrame:
    own = {
        "run": ["one", "two", "three"],
        "share/a": [0.2, 0.5, 0.8],
        "share/b": [0.8, 0.5, 0.2],
        "loss/x": [3.0, 2.0, 1.0],
    }
    return pd.DataFrame({**own, **columns})


def read(folder: Path, *tables: pd.DataFrame, **options: str) -> RunTable:
    paths = [folder / f"{number}.csv" for number in range(len(tables))]
    for path, own in zip(paths, tables, strict=True):
        own.to_csv(path, index=False)
    return RunTable(paths, **options)


def test_csv_and_parquet_are_read_alike(tmp_path: Path) -> None:
    found = read(tmp_path, table(size=[1, 1, 2]), size="size")
    table(size=[1, 1, 2]).to_parquet(tmp_path / "runs.parquet")
    for one in (found, RunTable([tmp_path / "runs.parquet"], size="size")):
        assert (one.runs, one.streams, one.loss_names) == (["one", "two", "three"], ("a", "b"), ("x",))
        assert one.mixtures.tolist() == [[0.2, 0.8], [0.5, 0.5], [0.8, 0.2]]
        assert one.sizes is not None
        assert (one.losses.tolist(), one.sizes.tolist()) == ([[3.0], [2.0], [1.0]], [1.0, 1.0, 2.0])


def test_tables_are_joined_by_their_first_column_or_stacked(tmp_path: Path) -> None:
    whole = table()
    parts = whole[["run", "share/a", "share/b"]], whole[["run", "loss/x"]].iloc[::-1]
    assert read(tmp_path, *parts).losses.tolist() == [[3.0], [2.0], [1.0]]
    assert len(read(tmp_path, whole, whole.assign(run=["four", "five", "six"])).runs) == 6
    assert read(tmp_path, whole.rename(columns={"loss/x": "loss"}), losses="loss").loss_names == ("loss",)
    names = {"shares": "share/*", "losses": "metric_*_val"}
    found = read(tmp_path, whole.rename(columns={"loss/x": "metric_x_val"}), **names)
    assert found.loss_names == ("x",)


def test_columns_of_one_name_and_order_of_columns_do_not_matter(tmp_path: Path) -> None:
    whole = table()
    assert read(tmp_path, whole.rename(columns=lambda name: f" {name} ")).streams == ("a", "b")
    found = read(tmp_path, whole, whole[whole.columns[::-1]].assign(run=["four", "five", "six"]))
    assert found.losses.tolist() == [[3.0], [2.0], [1.0]] * 2


def test_rows_that_stand_twice_and_runs_of_one_table_are_told(tmp_path: Path) -> None:
    whole = table()
    twice = read(tmp_path, whole, whole)
    parts = read(tmp_path, whole[["run", "share/a", "share/b"]], whole[["run", "loss/x"]].iloc[1:])
    assert (twice.runs, parts.runs) == (["one", "two", "three"], ["two", "three"])
    assert ("3 rows" in twice.notes[0], "one" in parts.notes[0]) == (True, True)


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
    ("columns", "named"),
    [
        ({"share/a": [-0.1, 0.5, 0.8]}, "share of a in run one"),
        ({"share/a": [0.6, 0.5, 0.8]}, "one"),
        ({"share/a": ["much", 0.5, 0.8]}, "share/a of run one is 'much'"),
        ({"share/a": [np.nan, 0.5, 0.8]}, "share/a of run one"),
        ({"loss/x": [1.0, "bad", 2.0]}, "loss/x of run two is 'bad'"),
        ({"loss/x": [True, False, True]}, "loss/x of run one"),
        ({"loss/x": [True, 2.0, 1.0]}, "loss/x of run one"),
        ({"share/a": [np.inf, 0.5, 0.8]}, "share of a in run one"),
    ],
)
def test_cells_that_are_no_shares_are_refused_by_name(columns: dict[str, object], named: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=named):
        read(tmp_path, table(**columns))


def test_missing_columns_files_and_sizes_are_refused_by_name(tmp_path: Path) -> None:
    for options, named in (({"shares": "w_*"}, "--shares"), ({"losses": "y"}, "--losses"), ({"size": "n"}, "--size")):
        with pytest.raises(ValueError, match=named):
            read(tmp_path, table(), **options)
    with pytest.raises(ValueError, match=r"nothing\.csv"):
        RunTable([tmp_path / "nothing.csv"])
    with pytest.raises(ValueError, match="share/b"):
        read(tmp_path, table(), losses="share/b")
    with pytest.raises(ValueError, match="loss/x"):
        read(tmp_path, table(), table(more=1.0))
    (tmp_path / "twice.csv").write_text("run,share/a,share/a,loss/x\none,0.5,0.5,1.0\n")
    with pytest.raises(ValueError, match="share/a"):
        RunTable([tmp_path / "twice.csv"])
    table(**{"loss/x": pd.to_datetime(["2026"] * 3)}).to_parquet(tmp_path / "times.parquet")
    with pytest.raises(ValueError, match="loss/x"):
        RunTable([tmp_path / "times.parquet"])
    with pytest.raises(ValueError, match="names a run twice"):
        read(tmp_path, table(run=["one", "one", "two"]), table()[["run", "loss/x"]])


@pytest.mark.parametrize(
    ("second", "named"),
    [
        ({"name": ["one", "two", "three"]}, "'run' and 'name'"),
        ({"run": [1, 2, 3]}, "'run', which has numbers in one and text"),
        ({"run": ["four", "five", "six"]}, "no run is in both"),
        ({"run": []}, "has no rows"),
    ],
)
def test_tables_that_share_no_runs_are_refused(second: dict[str, list[object]], named: str, tmp_path: Path) -> None:
    losses = {"loss/x": [1.0] * len(next(iter(second.values())))}
    with pytest.raises(ValueError, match=named):
        read(tmp_path, table()[["run", "share/a", "share/b"]], pd.DataFrame({**second, **losses}))


def test_runs_of_one_name_are_told_apart_by_their_rows(tmp_path: Path) -> None:
    assert read(tmp_path, table(run=["one", "one", "two"])).runs == ["row 1: one", "row 2: one", "row 3: two"]
