from collections.abc import Iterator
from pathlib import Path

import datasets
import huggingface_hub.constants
import pytest

from mixer.recipe.data import DataSource
from tests.hub import Hub, running_hub
from tests.mixer.recipe.test_sources import ROWS, write

CARD = """---
configs:
- config_name: main
  default: true
  data_files:
  - {split: train, path: main/train.parquet}
  - {split: test, path: main/test.parquet}
- config_name: socratic
  data_files:
  - {split: train, path: socratic/train.parquet}
---
"""


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    for version, rows in (("", ROWS), ("@v1", ROWS[:3])):
        folder = tmp_path / "hub" / "org" / f"maths{version}"
        write(folder / "main" / "train.parquet", rows)
        write(folder / "main" / "test.parquet", rows[:2])
        write(folder / "socratic" / "train.parquet", rows[1:])
        (folder / "README.md").write_text(CARD)
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # between one try and the next, if something is amiss
    with running_hub(tmp_path / "hub") as running:
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub cache"))
        addresses = f"{running.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", addresses)
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", running.url)
        monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(datasets.config, "HF_ENDPOINT", running.url)
        monkeypatch.setattr(datasets.config, "USE_PARQUET_EXPORT", False)
        yield running


def test_configuration_split_and_revision_are_those_that_were_named(hub: Hub) -> None:
    train, test = DataSource("org/maths", validation_split="test").load("s")
    assert (train.to_list(), test.to_list()) == (ROWS, ROWS[:2])
    other, _ = DataSource("org/maths", name="socratic", split="train[:2]").load("s")
    assert other.to_list() == ROWS[1:3]
    older, _ = DataSource("org/maths", revision="v1").load("s")
    assert older.to_list() == ROWS[:3]


def test_rows_can_be_streamed(hub: Hub) -> None:
    streamed, test = DataSource("org/maths", name="main", validation_split="test", streaming=True).load("s")
    assert isinstance(streamed, datasets.IterableDataset)
    assert (list(streamed), list(test)) == (ROWS, ROWS[:2])


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (DataSource("org/nothing"), "s: .*org/nothing.* doesn't exist on the Hub.*Nor is there a file or folder"),
        (DataSource("org/maths", revision="v9"), "s: .*'v9' doesn't exist"),
        (DataSource("org/maths", name="other"), r"'other' not found\. Available: \['main', 'socratic'\]"),
        (DataSource("org/maths", split="dev"), r"split=dev.* Unknown split .dev.\..*\['train', 'test'\]"),
        (DataSource("org/maths", split="dev", streaming=True), "split=dev"),
        (DataSource("org/maths", split="train[:2]", streaming=True), "name one split, or set streaming to false"),
    ],
)
def test_what_the_hub_does_not_have_is_named(hub: Hub, source: DataSource, message: str) -> None:
    with pytest.raises((ValueError, OSError), match=message):
        source.load("s")
