import json
import os
import sys
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pytest

from tasks.sequences import by_class, by_column, permuted
from tasks.sources import Arrays, Splits, clinc150, digits, hub, labels_of, local_files, npz
from tests.tasks.data import assert_columns_are_samples

# The real data sets, where a machine has them; see `--data-dir` of the benchmarks.
DATA = Path(os.environ.get("MIXER_DATA_DIR", Path(__file__).parents[4] / "shared" / "data"))


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))


# ---- Digits ----


def test_digits_are_images_of_ten_classes() -> None:
    pytest.importorskip("sklearn")
    train, evaluation = digits()
    assert (len(train), len(evaluation)) == (1438, 359)
    assert train.inputs.shape[1:] == (64,)
    assert (float(train.inputs.min()), float(train.inputs.max())) == (0.0, 1.0)
    assert set(train.labels) == set(evaluation.labels) == set(range(10))
    assert_columns_are_samples(train)
    assert len(by_class(*digits(), 2)) == 5


def test_the_split_of_the_digits_is_fixed_by_its_seed() -> None:
    pytest.importorskip("sklearn")
    assert np.array_equal(digits().train.inputs, digits().train.inputs)
    assert not np.array_equal(digits().evaluation.inputs, digits(seed=1).evaluation.inputs)
    both = np.concatenate([part.inputs for part in digits(0.3, seed=4)])
    assert np.array_equal(
        np.unique(both, axis=0), np.unique(np.concatenate([part.inputs for part in digits()]), axis=0)
    )
    assert len(both) == 1797
    with pytest.raises(ValueError, match=r"evaluation_share must leave a sample of 1797 .* got 1"):
        digits(evaluation_share=1)


def test_digits_without_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ModuleNotFoundError, match="not installed: pip install scikit-learn"):
        digits()


# ---- NumPy archives ----


def _archive(path: Path, dtype: type = np.uint8, **others: Any) -> Path:
    generator = np.random.default_rng(0)
    images = {f"{part}_images": generator.integers(0, 256, (6, 4, 4)).astype(dtype) for part in ("train", "test")}
    labels = {f"{part}_labels": np.arange(6, dtype=np.uint8) % 3 for part in ("train", "test")}
    np.savez(path, **images, **labels, **others)
    return path


def test_bytes_become_rows_of_pixels_in_the_unit_interval(tmp_path: Path) -> None:
    path = _archive(tmp_path / "images.npz")
    train, evaluation = npz(path)
    raw = np.load(path)
    assert np.allclose(train.inputs.numpy() * 255, raw["train_images"].reshape(6, 16))
    assert np.allclose(evaluation.inputs.numpy() * 255, raw["test_images"].reshape(6, 16))
    assert train.labels.tolist() == [0, 1, 2, 0, 1, 2]
    assert npz(path, flatten=False, input_name="x").train[0]["x"].shape == (4, 4)
    assert npz(_archive(tmp_path / "floats.npz", np.float64)).train.inputs.max() > 1


def test_archives_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no file '.*nothing\.npz'"):
        npz(tmp_path / "nothing.npz")
    with pytest.raises(
        ValueError, match=r"has no arrays \['x', 'y'\], it has \['train_images'.*train=\(IMAGES, LABELS"
    ):
        npz(_archive(tmp_path / "images.npz"), train=("x", "y"))


@pytest.mark.skipif(not (DATA / "mnist.npz").is_file(), reason=f"there is no mnist.npz in {DATA}")
def test_mnist() -> None:
    data = npz(DATA / "mnist.npz")
    assert [len(part) for part in data] == [60_000, 10_000]
    assert [task.classes for task in by_class(*data, 2)] == [(0, 1), (2, 3), (4, 5), (6, 7), (8, 9)]
    sequence = permuted(*data, 17, seed=0, samples_per_task=1000)
    assert {(len(task.train), len(task.evaluation)) for task in sequence} == {(1000, 10_000)}


# ---- Files ----

_ROWS = {"text": [f"line {number}" for number in range(10)], "mood": ["sad", "glad"] * 5, "stars": [1, 0] * 5}


def _write(path: Path, rows: dict[str, Any]) -> Path:
    table = pd.DataFrame(rows)
    if path.suffix == ".csv":
        table.to_csv(path, index=False)
    elif path.suffix == ".jsonl":
        table.to_json(path, orient="records", lines=True)
    else:
        table.to_parquet(path)
    return path


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_files_are_split_and_words_numbered(tmp_path: Path, suffix: str) -> None:
    train, evaluation = local_files(_write(tmp_path / f"rows{suffix}", _ROWS), label_column="mood")
    assert (len(train), len(evaluation)) == (8, 2)
    assert sorted([*train["text"], *evaluation["text"]]) == _ROWS["text"]
    assert train.features["label"].names == evaluation.features["label"].names == ["glad", "sad"]
    expected = {text: int(mood == "sad") for text, mood in zip(_ROWS["text"], _ROWS["mood"], strict=True)}
    assert labels_of(train).tolist() == [expected[text] for text in train["text"]]


def test_a_folder_and_a_file_for_evaluation(tmp_path: Path) -> None:
    folder = tmp_path / "train"
    folder.mkdir()
    for number in (2, 1):
        _write(folder / f"part_{number}.csv", {"text": [f"part {number}"], "mood": ["sad"]})
    other = _write(tmp_path / "test.jsonl", {"text": ["x"], "mood": ["awful"]})
    train, evaluation = local_files(folder, other, label_column="mood")
    assert list(train["text"]) == ["part 1", "part 2"]
    assert (labels_of(train).tolist(), labels_of(evaluation).tolist()) == ([1, 1], [0])


def test_numbers_stay_what_they_are(tmp_path: Path) -> None:
    path = _write(tmp_path / "rows.csv", {**_ROWS, "stars": [7, 3] * 5})
    train, _ = local_files(path, path, label_column="stars")
    assert labels_of(train).tolist() == [7, 3] * 5
    assert "label" not in local_files(path).train.column_names


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    path = _write(tmp_path / "rows.csv", {**_ROWS, "label": [0] * 10})
    with pytest.raises(FileNotFoundError, match=r"no file at '.*nowhere'.*\.parquet, \.jsonl, \.json, \.csv"):
        local_files(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="there is no column 'feeling' with one value a sample; its columns are"):
        local_files(path, label_column="feeling")
    with pytest.raises(ValueError, match="label_column='mood': there is a column 'label' beside it"):
        local_files(path, label_column="mood")
    (tmp_path / "rows.xlsx").write_bytes(b"")
    with pytest.raises(ValueError, match=r"'rows\.xlsx' is of no known format"):
        local_files(tmp_path / "rows.xlsx")
    _write(tmp_path / "rows.jsonl", _ROWS)
    with pytest.raises(ValueError, match=r"mixes the formats \['csv', 'json'\]"):
        local_files(tmp_path)


# ---- Intents ----


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
    sequence = by_column(train, evaluation, "domain", scenario="class")
    assert [(task.name, task.classes) for task in sequence] == [("banking", (2, 3)), ("travel", (0, 1))]
    assert len(clinc150(tmp_path, "val").evaluation) == 2


def test_intents_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"domains\.json' is missing\. Give the folder"):
        clinc150(tmp_path)
    with pytest.raises(ValueError, match=r"the intents \['flight', 'visa'\] belong to no domain"):
        clinc150(_intents(tmp_path, {"banking": ["pin", "freeze"]}))
    with pytest.raises(ValueError, match="evaluation_split must be 'test' or 'val', got 'oos_test'"):
        clinc150(tmp_path, "oos_test")


@pytest.mark.skipif(not (DATA / "clinc150").is_dir(), reason=f"there is no clinc150 in {DATA}")
def test_clinc150_is_ten_domains_of_15_intents() -> None:
    sequence = by_column(*clinc150(DATA / "clinc150"), "domain", scenario="class")
    assert {(len(task.train), len(task.evaluation), len(task.classes)) for task in sequence} == {(1500, 450, 15)}
    assert (len(sequence), sequence.num_classes) == (10, 150)


# ---- The hub ----


def test_a_folder_is_loaded_as_from_the_hub(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    for split in ("train", "test"):
        _write(folder / f"{split}.csv", {**_ROWS, "split": [split] * 10})
    splits = hub(str(folder), label_column="mood")
    assert isinstance(splits, Splits)
    assert [set(part["split"]) for part in splits] == [{"train"}, {"test"}]
    assert labels_of(splits.train).tolist() == [1, 0] * 5
    assert len(hub(str(folder), train_split="train[:60%]").train) == 6


def test_sources_feed_builders_as_they_are(tmp_path: Path) -> None:
    splits = npz(_archive(tmp_path / "images.npz"))
    assert isinstance(splits.train, Arrays)
    assert by_class(*splits, 1).num_classes == 3
