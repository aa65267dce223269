"""Files as they are found: cut off, empty, in capitals, with classes that are numbers of several kinds."""

from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pytest

from tasks.sources import labels_of, local_files, npz


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))


def write(path: Path, labels: list[Any]) -> Path:
    pd.DataFrame({"text": [f"line {number}" for number in range(len(labels))], "y": labels}).to_csv(path, index=False)
    return path


def test_whole_numbers_with_a_point_stay_what_they_are(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.csv", [1.0, 2.0, 10.0])
    other = write(tmp_path / "other.csv", [10, 2])
    train, evaluation = local_files(path, other, label_column="y")
    assert (labels_of(train).tolist(), labels_of(evaluation).tolist()) == ([1, 2, 10], [10, 2])


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        (["10", "2", "1"], ["1", "2", "10"]),
        ([10, 2.5, 1], ["1", "2.5", "10"]),
        (["10", "2", "b"], ["10", "2", "b"]),
        ([True, "1", "b"], ["1", "True", "b"]),
    ],
)
def test_words_that_are_all_numbers_are_in_their_order(labels: list[Any], names: list[str], tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    table = pd.DataFrame({"y": [str(label) for label in labels] if isinstance(labels[1], str) else labels})
    table.to_parquet(path)
    train, _ = local_files(path, path, label_column="y")
    assert train.features["label"].names == names
    assert [names[number] for number in labels_of(train)] == [str(label) for label in labels]


def test_numbers_and_their_text_are_the_same_class(tmp_path: Path) -> None:
    path, other = write(tmp_path / "rows.csv", [1.0, 2.0, 10.0]), tmp_path / "other.parquet"
    pd.DataFrame({"y": ["10", "1"]}).to_parquet(other)
    train, evaluation = local_files(path, other, label_column="y")
    assert train.features["label"].names == evaluation.features["label"].names == ["1", "2", "10"]
    assert (labels_of(train).tolist(), labels_of(evaluation).tolist()) == ([0, 1, 2], [2, 0])


def test_a_suffix_may_be_in_capitals(tmp_path: Path) -> None:
    write(tmp_path / "ROWS.CSV", [0, 1])
    for path in (tmp_path / "ROWS.CSV", tmp_path):
        assert len(local_files(path, path).train) == 2


BROKEN = {
    "empty.csv": b"",
    "empty.jsonl": b"",
    "torn.jsonl": b'{"text": "a", "y": 1}\n{"text": "b", "y',
    "torn.parquet": b"PAR1 and no more",
    "text.csv": "text,y\né,1\n".encode("utf-16"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_file_that_cannot_be_read_is_named(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(BROKEN[name])
    with pytest.raises(ValueError, match=rf"local_files: '.*{name}' cannot be read as .* repair it, or leave it out"):
        local_files(path, path)


def test_the_broken_one_of_several_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "rows"
    folder.mkdir()
    write(folder / "a.csv", [0, 1])
    write(folder / "c.csv", [0, 1])
    (folder / "b.csv").write_bytes(b"")
    with pytest.raises(ValueError, match=r"'.*/rows/b\.csv' cannot be read as csv"):
        local_files(folder)
    (folder / "b.csv").write_text("other\n1\n")
    with pytest.raises(
        ValueError, match=r"the columns of '.*b\.csv' are .*, and those of 'a\.csv' .*Give files with the same columns"
    ):
        local_files(folder)


def test_an_archive_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    path, arrays = tmp_path / "images.npz", {"x": np.zeros((600, 4)), "y": np.zeros(600, dtype=int)}
    np.savez(path, **arrays)
    whole, flipped = path.read_bytes(), bytearray(path.read_bytes())
    flipped[300] ^= 1
    np.save(tmp_path / "one.npy", arrays["x"])
    np.savez(tmp_path / "objects.npz", x=np.array([None]))
    contents = [b"", b"not an archive", whole[:900], bytes(flipped), (tmp_path / "one.npy").read_bytes()]
    for content in [*contents, (tmp_path / "objects.npz").read_bytes()]:
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"npz: '.*images\.npz' cannot be read as an archive of np\.savez"):
            npz(path, ("x", "y"), ("x", "y"))
