import json
import sys
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pytest

from tasks.sources import clinc150, digits, hub, labels_of, local_files, npz
from tests.refusals import refused
from tests.tasks.data import assert_columns_are_samples

ROWS = {"text": [f"line {number}" for number in range(10)], "mood": ["sad", "glad"] * 5, "stars": [7, 3] * 5}


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))


def write(path: Path, **rows: Any) -> Path:
    table, suffix = pd.DataFrame(rows or ROWS), path.suffix.lower()
    if suffix == ".csv":
        table.to_csv(path, index=False)
    elif suffix == ".jsonl":
        table.to_json(path, orient="records", lines=True)
    else:
        table.to_parquet(path)
    return path


def test_digits_are_images_of_ten_classes_whose_split_is_fixed_by_its_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sklearn")
    train, evaluation = digits()
    assert (len(train), len(evaluation)) == (1438, 359)
    assert train.inputs.shape[1:] == (64,)
    assert (float(train.inputs.min()), float(train.inputs.max())) == (0.0, 1.0)
    assert set(train.labels) == set(evaluation.labels) == set(range(10))
    assert_columns_are_samples(train)
    assert np.array_equal(digits().train.inputs, train.inputs)
    other = digits(0.3, seed=4)
    assert len(other.evaluation) == 539
    with refused("evaluation_share"):
        digits(evaluation_share=1)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ModuleNotFoundError):
        digits()


def _archive(path: Path, dtype: type = np.uint8) -> Path:
    generator = np.random.default_rng(0)
    images = {f"{part}_images": generator.integers(0, 256, (6, 4, 4)).astype(dtype) for part in ("train", "test")}
    np.savez(path, **images, **{f"{part}_labels": np.arange(6, dtype=np.uint8) % 3 for part in ("train", "test")})
    return path


def test_bytes_become_rows_of_pixels_in_the_unit_interval(tmp_path: Path) -> None:
    path = _archive(tmp_path / "images.npz")
    splits, raw = npz(path), np.load(path)
    for name, part in zip(("train", "test"), splits, strict=True):
        assert np.allclose(part.inputs.numpy() * 255, raw[f"{name}_images"].reshape(6, 16))
        assert part.labels.tolist() == [0, 1, 2, 0, 1, 2]
    assert npz(path, flatten=False, input_name="x").train[0]["x"].shape == (4, 4)
    assert npz(_archive(tmp_path / "floats.npz", np.float64)).train.inputs.max() > 1


def test_archives_that_cannot_be_read(tmp_path: Path) -> None:
    path, arrays = tmp_path / "images.npz", {"x": np.zeros((600, 4)), "y": np.zeros(600, dtype=int)}
    with pytest.raises(FileNotFoundError):
        npz(path)
    with refused("train"):
        npz(_archive(path), train=("x", "y"))
    np.savez(path, **arrays)
    whole, flipped = path.read_bytes(), bytearray(path.read_bytes())
    flipped[300] ^= 1
    np.savez(tmp_path / "objects.npz", x=np.array([None]))
    np.save(tmp_path / "one.npy", arrays["x"])
    for content in [
        b"not an archive",
        (tmp_path / "one.npy").read_bytes(),
        whole[:900],
        bytes(flipped),
        (tmp_path / "objects.npz").read_bytes(),
    ]:
        path.write_bytes(content)
        with refused("path"):
            npz(path, ("x", "y"), ("x", "y"))


@pytest.mark.parametrize("name", ["ROWS.CSV", "rows.jsonl", "rows.parquet"])
def test_files_are_split_and_words_numbered(tmp_path: Path, name: str) -> None:
    train, evaluation = local_files(write(tmp_path / name), label_column="mood")
    assert (len(train), len(evaluation)) == (8, 2)
    assert sorted([*train["text"], *evaluation["text"]]) == ROWS["text"]
    assert train.features["label"].names == evaluation.features["label"].names == ["glad", "sad"]
    expected = {text: int(mood == "sad") for text, mood in zip(ROWS["text"], ROWS["mood"], strict=True)}
    assert labels_of(train).tolist() == [expected[text] for text in train["text"]]


def test_a_folder_and_a_file_for_evaluation(tmp_path: Path) -> None:
    folder = tmp_path / "train"
    folder.mkdir()
    for number in (2, 1):
        write(folder / f"part_{number}.csv", text=[f"part {number}"], mood=["sad"])
    other = write(tmp_path / "test.jsonl", text=["x"], mood=["awful"])
    train, evaluation = local_files(folder, other, label_column="mood")
    assert list(train["text"]) == ["part 1", "part 2"]
    assert (labels_of(train).tolist(), labels_of(evaluation).tolist()) == ([1, 1], [0])
    write(folder / "part_3.csv", other=[1])
    with pytest.raises(ValueError, match=r"columns of '.*part_3\.csv' are other, .* leave it out"):
        local_files(folder)
    assert len(local_files(folder, exclude=["part_3*"], evaluation_share=0.5).train) == 1
    assert list(local_files(folder, other, include=["part_2*"]).train["text"]) == ["part 2"]


@pytest.mark.parametrize(
    ("labels", "names"),
    [(["10", "2", "1"], ["1", "2", "10"]), ([10, 2.5, 1], ["1", "2.5", "10"]), (["10", "2", "b"], ["10", "2", "b"])],
)
def test_words_that_are_all_numbers_are_in_their_order(labels: list[Any], names: list[str], tmp_path: Path) -> None:
    path = write(tmp_path / "rows.parquet", y=labels)
    train, _ = local_files(path, path, label_column="y")
    assert train.features["label"].names == names
    assert [names[number] for number in labels_of(train)] == [str(label) for label in labels]
    points = write(tmp_path / "points.csv", y=[1.0, 2.0, 10.0])  # numbers stay what they are
    train, evaluation = local_files(points, write(tmp_path / "other.csv", y=[10, 2]), label_column="y")
    assert (labels_of(train).tolist(), labels_of(evaluation).tolist()) == ([1, 2, 10], [10, 2])


def test_files_that_do_not_fit(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.csv", **ROWS, label=[0] * 10)
    with pytest.raises(FileNotFoundError):
        local_files(tmp_path / "nowhere")
    (tmp_path / "rows.xlsx").write_bytes(b"")
    write(tmp_path / "rows.jsonl")
    for column, option in (("feeling", "train"), ("mood", "label_column")):
        with refused(option):
            local_files(path, label_column=column)
    with pytest.raises(ValueError, match=r"rows\.xlsx' is of no known format"):
        local_files(tmp_path / "rows.xlsx")
    with pytest.raises(ValueError, match=r"mixes the formats \.csv \(rows\.csv\), \.jsonl"):
        local_files(tmp_path)


BROKEN = {
    "empty.jsonl": b"",
    "torn.jsonl": b'{"text": "a", "y": 1}\n{"text": "b", "y',
    "text.csv": "text,y\né,1\n".encode("utf-16"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_file_that_cannot_be_read_is_named(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(BROKEN[name])
    with pytest.raises(ValueError, match=rf"local_files: '.*{name}' cannot be read as .* repair it, or leave it out"):
        local_files(tmp_path / name, tmp_path / name)


def _intents(folder: Path, domains: dict[str, list[str]]) -> Path:
    requests = [[f"say {intent}", intent] for intent in ("freeze", "flight", "pin", "visa")]
    content = {"train": requests * 2, "val": requests[:2], "test": requests, "oos_train": [["what", "oos"]]}
    (folder / "data_full.json").write_text(json.dumps(content))
    (folder / "domains.json").write_text(json.dumps(domains))
    return folder


def test_intents_are_numbered_domain_by_domain(tmp_path: Path) -> None:
    train, evaluation = clinc150(_intents(tmp_path, {"travel": ["flight", "visa"], "banking": ["pin", "freeze"]}))
    assert train.features["label"].names == ["flight", "visa", "pin", "freeze"]
    assert (labels_of(train).tolist(), labels_of(evaluation).tolist()) == ([3, 0, 2, 1] * 2, [3, 0, 2, 1])
    assert list(evaluation["domain"]) == ["banking", "travel", "banking", "travel"]
    assert len(clinc150(tmp_path, "val").evaluation) == 2


def test_intents_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        clinc150(tmp_path)
    with refused("domains.json"):
        clinc150(_intents(tmp_path, {"banking": ["pin", "freeze"]}))
    with refused("evaluation_split"):
        clinc150(tmp_path, "oos_test")


def test_a_folder_is_loaded_as_from_the_hub(tmp_path: Path) -> None:
    (folder := tmp_path / "data").mkdir()  # the splits are told apart by the names of files
    for split in ("train", "test"):
        write(folder / f"{split}.csv", **ROWS, split=[split] * 10, code=["061"] * 10)
    splits = hub(str(folder), label_column="mood")
    assert [set(part["split"]) for part in splits] == [{"train"}, {"test"}]
    assert set(splits.train["code"]) == {"061"}
    assert labels_of(splits.train).tolist() == [1, 0] * 5
