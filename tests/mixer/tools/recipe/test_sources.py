import bz2
import gzip
import json
import lzma
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import fsspec
import huggingface_hub.constants
import pandas as pd
import pytest

from mixer.tools.recipe.data import DataSource
from mixer.tools.recipe.data.reading import TextRows
from tests.hub import Hub, running_hub
from tests.refusals import refused

ROWS = [{"q": f"what {number}?", "a": f"that {number}"} for number in range(20)]


def write(path: Path, rows: list[dict[str, Any]] = ROWS) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    table, lines = pd.DataFrame(rows), "".join(f"{json.dumps(row)}\n" for row in rows)
    if ".jsonl" in path.name:
        compress = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}.get(path.suffix, bytes)
        path.write_bytes(compress(lines.encode()))
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows))
    elif path.suffix == ".parquet":
        table.to_parquet(path)
    elif path.suffix == ".arrow":
        with datasets.arrow_writer.ArrowWriter(path=str(path)) as writer:
            writer.write_table(datasets.Dataset.from_list(rows).data.table)
            writer.finalize()
    else:
        table.to_csv(path, sep="\t" if path.suffix == ".tsv" else ",", index=False)
    return path


KINDS = ("jsonl", "jsonl.gz", "jsonl.bz2", "jsonl.xz", "json", "csv", "TSV", "parquet", "arrow")


@pytest.mark.parametrize("kind", KINDS)
def test_files_of_every_format_give_the_same_rows(kind: str, tmp_path: Path) -> None:
    path = write(tmp_path / f"rows.{kind.lower()}").rename(tmp_path / f"rows.{kind}")
    train, validation = DataSource(str(path)).load("s")
    assert train.to_list() == ROWS
    assert validation is None
    streamed, _ = DataSource(str(path), streaming=True).load("s")
    assert isinstance(streamed, datasets.IterableDataset)
    assert list(streamed) == ROWS


@pytest.mark.parametrize("streaming", [False, True])
def test_a_text_is_read_by_lines_paragraphs_or_as_a_whole(streaming: bool, tmp_path: Path) -> None:
    for name, text in [("a.txt", "one\ntwo\n\nthree"), ("b.txt", "four\n")]:
        (tmp_path / name).write_text(text)
    by_kind: dict[TextRows, list[str]] = {
        "line": ["one", "two", "", "three", "four"],
        "paragraph": ["one\ntwo", "three", "four\n"],
        "document": ["one\ntwo\n\nthree", "four\n"],
    }
    for rows, texts in by_kind.items():
        read, _ = DataSource(str(tmp_path / "*.txt"), rows=rows, streaming=streaming).load("s")
        assert [row["text"] for row in read] == texts


@pytest.mark.parametrize(("option", "value"), [("rows", "document"), ("separator", ";")])
def test_options_of_texts_and_of_tables_are_for_these_alone(option: str, value: str, tmp_path: Path) -> None:
    datasets.Dataset.from_list(ROWS).save_to_disk(tmp_path / "saved")
    for path in (tmp_path / "saved", write(tmp_path / "rows.jsonl"), "org/maths"):
        with refused(option, found=value):
            DataSource(str(path), **{option: value}).load()  # type: ignore[arg-type]
    with refused(option, found="page"):
        DataSource("org/maths", **{option: "page"})  # type: ignore[arg-type]


def test_a_pattern_takes_files_in_the_order_of_their_names(tmp_path: Path) -> None:
    write(tmp_path / "deep" / "b.jsonl", ROWS[10:])
    write(tmp_path / "deep" / "er" / "a.jsonl", ROWS[:10])
    write(tmp_path / "deep" / "other.csv")
    assert DataSource(str(tmp_path / "deep" / "*.jsonl")).load("s")[0].to_list() == ROWS[10:]
    assert len(DataSource(str(tmp_path / "**" / "*.jsonl")).load("s")[0]) == 20


def test_files_of_a_folder_are_told_apart_by_the_splits_that_they_name(tmp_path: Path) -> None:
    write(tmp_path / "named" / "train-0.jsonl", ROWS[:5])
    write(tmp_path / "named" / "train-1.jsonl", ROWS[5:10])
    write(tmp_path / "named" / "dev.jsonl", ROWS[10:])
    train, validation = DataSource(str(tmp_path / "named"), validation_split="validation").load("s")
    assert (train.to_list(), validation.to_list()) == (ROWS[:10], ROWS[10:])
    write(tmp_path / "plain" / "one.jsonl", ROWS[:5])
    write(tmp_path / "plain" / "two.jsonl", ROWS[5:])
    assert DataSource(str(tmp_path / "plain")).load("s")[0].to_list() == ROWS
    write(tmp_path / "named" / "more.jsonl")
    with refused("path", found="more.jsonl"):
        DataSource(str(tmp_path / "named")).load("s")


def test_a_saved_data_set_is_read_with_or_without_splits(tmp_path: Path) -> None:
    rows = datasets.Dataset.from_list(ROWS)
    rows.save_to_disk(tmp_path / "one")
    datasets.DatasetDict({"train": rows, "test": rows.select(range(4))}).save_to_disk(tmp_path / "two")
    assert DataSource(str(tmp_path / "one"), split="train[:10%]").load("s")[0].to_list() == ROWS[:2]
    train, test = DataSource(str(tmp_path / "two"), validation_split="test").load("s")
    assert (len(train), len(test)) == (20, 4)
    assert list(DataSource(str(tmp_path / "two"), split="test", streaming=True).load("s")[0]) == ROWS[:4]


@pytest.mark.parametrize(
    ("split", "places"), [("train[-2:]", [18, 19]), ("train[50%:60%]", [10, 11]), ("train[:1]+train[3:4]", [0, 3])]
)
def test_slices_of_a_split_are_those_of_the_hub(split: str, places: list[int], tmp_path: Path) -> None:
    train, _ = DataSource(str(write(tmp_path / "rows.jsonl")), split=split).load("s")
    assert train.to_list() == [ROWS[place] for place in places]


def said_of(source: DataSource) -> str:
    with pytest.raises((ValueError, OSError)) as caught:
        source.load()
    return str(caught.value)


def test_variables_of_a_path_are_filled_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "data" / "rows.jsonl")
    monkeypatch.setenv("SOME_FOLDER", str(tmp_path / "data"))
    for path in ("$SOME_FOLDER/rows.jsonl", ["${SOME_FOLDER}/*.jsonl"]):
        assert DataSource(path).load("s")[0].to_list() == ROWS
    monkeypatch.delenv("SOME_FOLDER")
    with refused("path", found="$SOME_FOLDER/rows.jsonl"):
        DataSource("$SOME_FOLDER/rows.jsonl").load("s")
    write(tmp_path / "$SOME_FOLDER.jsonl")
    assert DataSource(str(tmp_path / "$SOME_FOLDER.jsonl")).load("s")[0].to_list() == ROWS


def test_what_is_not_there_is_named_with_where_it_was_looked_for(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for path in ("data/rows.jsonl.gz", "data/deep/rows", "rows"):
        told = said_of(DataSource(path))
        assert f"there is no file or folder '{tmp_path}/{path}'" in told
        assert "no name on the hub, which has the form org/name" in told
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert len(DataSource(f"~/{write(tmp_path / 'home' / 'rows.csv').name}").load("s")[0]) == 20
    assert f"the pattern '{tmp_path}/data/*.jsonl' matches no file" in said_of(DataSource("data/*.jsonl"))
    (tmp_path / "empty").mkdir()
    assert f"the folder '{tmp_path}/empty' has no file that ends in .parquet" in said_of(DataSource("empty"))


@pytest.mark.parametrize(
    ("options", "option", "found"),
    [
        ({"split": "test"}, "split", "test"),
        ({"validation_split": "dev"}, "split", "dev"),
        ({"split": "train[a:]"}, "split", "train[a:]"),
        ({"split": "train[:5]", "streaming": True}, "split", "train[:5]"),
        ({"name": "main"}, "name", "main"),
        ({"revision": "v2"}, "revision", "v2"),
    ],
)
def test_what_a_file_does_not_have_is_refused(options: dict[str, Any], option: str, found: str, tmp_path: Path) -> None:
    with refused(option, found=found):
        DataSource(str(write(tmp_path / "rows.jsonl")), **options).load("s")


def test_mixed_and_broken_files_are_named(tmp_path: Path) -> None:
    write(tmp_path / "mixed" / "a.jsonl")
    write(tmp_path / "mixed" / "b.csv")
    with refused("path", found=[".csv", ".jsonl"]):
        DataSource(str(tmp_path / "mixed")).load("s")
    write(tmp_path / "torn" / "a.jsonl")
    (tmp_path / "torn" / "b.jsonl").write_text('{"q": "x"')
    with refused(str(tmp_path / "torn" / "b.jsonl"), found="line 1"):
        DataSource(str(tmp_path / "torn")).load("s")
    (tmp_path / "rows.xlsx").write_text("x")
    with refused("path", found=str(tmp_path / "rows.xlsx")):
        DataSource(str(tmp_path / "rows.xlsx")).load("s")
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "state.json").write_text("{")
    with refused("path", found=str(tmp_path / "saved")):
        DataSource(str(tmp_path / "saved")).load("s")


@pytest.mark.parametrize("offline", ["1", ""])
def test_a_name_on_the_hub_without_network_has_a_way_out(offline: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if not offline:
        monkeypatch.setattr("time.sleep", lambda seconds: None)  # between one try and the next
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(datasets.config, "HF_ENDPOINT", "http://127.0.0.1:9")
    told = said_of(DataSource("org/no-such-data"))
    assert ("HF_HUB_OFFLINE is set" if offline else "the hub cannot be reached") in told
    assert "hf download --repo-type dataset org/no-such-data --local-dir" in told


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
    streamed, test = DataSource("org/maths", name="main", validation_split="test", streaming=True).load("s")
    assert isinstance(streamed, datasets.IterableDataset)
    assert (list(streamed), list(test)) == (ROWS, ROWS[:2])


@pytest.mark.parametrize(
    ("source", "named"),
    [
        (DataSource("org/nothing"), ["org/nothing", "doesn't exist on the Hub", "there is no file or folder"]),
        (DataSource("org/maths", revision="v9"), ["'v9'"]),
        (DataSource("org/maths", name="other"), ["'other'", "['main', 'socratic']"]),
        (DataSource("org/maths", split="dev"), ["split=dev", "['train', 'test']"]),
        (DataSource("org/maths", split="dev", streaming=True), ["split=dev"]),
        (DataSource("org/maths", split="train[:2]", streaming=True), ["'train[:2]'"]),
    ],
)
def test_what_the_hub_does_not_have_is_named(hub: Hub, source: DataSource, named: list[str]) -> None:
    said = said_of(source)
    assert [word for word in named if word not in said] == []


@pytest.fixture
def in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Two shards, a held-out file and a description of them in fsspec's file system in memory; gives their folder."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    system = fsspec.filesystem("memory")
    for name, rows in (("train-0.jsonl", ROWS[:5]), ("train-1.jsonl.gz", ROWS[5:]), ("test.jsonl", ROWS[:2])):
        system.pipe(f"/rows/{name}", write(tmp_path / name, rows).read_bytes())
    system.pipe("/rows/metadata.jsonl", b"{}")
    yield "memory://rows"
    system.rm("/rows", recursive=True)


@pytest.mark.parametrize("streaming", [False, True])
def test_files_behind_a_url_are_one_split_in_the_order_of_a_pattern_or_a_list(in_memory: str, streaming: bool) -> None:
    shards = [f"{in_memory}/train-1.jsonl.gz", f"{in_memory}/train-0.jsonl"]
    for path, rows in ((f"{in_memory}/train-*", ROWS), (shards, ROWS[5:] + ROWS[:5]), (shards[1], ROWS[:5])):
        assert list(DataSource(path, streaming=streaming).load("s")[0]) == rows


def test_a_folder_behind_a_url_is_split_by_names_and_read_anew_when_it_has_changed(in_memory: str) -> None:
    with refused("path", found="metadata.jsonl"):
        DataSource(in_memory, validation_split="test").load("s")
    source = DataSource(in_memory, validation_split="test", exclude=["metadata.*"])
    train, validation = source.load("s")
    assert (train.to_list(), validation.to_list()) == (ROWS, ROWS[:2])
    fsspec.filesystem("memory").pipe("/rows/test.jsonl", json.dumps(ROWS[7]).encode())
    assert source.load("s")[1].to_list() == [ROWS[7]]
    with refused("path", found=in_memory):
        DataSource(in_memory, streaming=True).load("s")


def test_what_a_url_does_not_have_is_refused(in_memory: str) -> None:
    with refused("name", found="main"):
        DataSource(f"{in_memory}/test.jsonl", name="main").load("s")
    assert "there is no file" in said_of(DataSource(f"{in_memory}/dev-*.jsonl"))
    system = fsspec.filesystem("memory")
    system.store["/rows/../out.jsonl"] = system.store["/rows/test.jsonl"]  # as a store of objects may call one
    assert "leads out of its folder" in said_of(DataSource(in_memory))


def test_lists_are_of_files_and_patterns(tmp_path: Path) -> None:
    shards = [str(write(tmp_path / f"{name}.jsonl", rows)) for name, rows in (("b", ROWS[:5]), ("a", ROWS[5:]))]
    assert DataSource(shards).load("s")[0].to_list() == ROWS
    with refused("path", found=str(tmp_path)):
        DataSource([shards[0], str(tmp_path)]).load("s")
    with refused("name", found="main"):
        DataSource(shards, name="main").load("s")
    for path in ([], [shards[0], "s3://bucket/rows.jsonl"]):
        with refused("path", found=path):
            DataSource(path)
    with refused("storage_options"):
        DataSource(shards, storage_options={"key": "k"})


@pytest.mark.parametrize("url", ["https://host/rows.jsonl?sign=SECRET", "https://me:SECRET@host/rows.jsonl"])
def test_credentials_in_a_url_are_refused(url: str) -> None:
    with refused("path", found="https://host/rows.jsonl") as raised:
        DataSource(url)
    assert "SECRET" not in str(raised.value)


def test_a_broken_line_behind_a_url_is_named_by_the_url(in_memory: str) -> None:
    fsspec.filesystem("memory").pipe("/rows/train-0.jsonl", b'{"q": 1}\n{"q": \n')
    assert f"'{in_memory}/train-0.jsonl'" in (said := said_of(DataSource(f"{in_memory}/train-0.jsonl")))
    assert "line 2" in said
