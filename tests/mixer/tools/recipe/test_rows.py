"""What stands in a file is what is learned; what does not fit is named by file and line."""

import datetime
import decimal
import gzip
import json
import sys
from pathlib import Path
from typing import Any

import datasets
import pyarrow
import pytest
from pyarrow import parquet

from mixer.tools.recipe.data import Chat, DataSource, Format, Labelled, Prompt, Text, formatted
from mixer.tools.recipe.data.file_list import FileRead, files_of, unlike
from tests.mixer.tools.recipe.small_tokenizers import CHATML, byte_level
from tests.refusals import refused

BYTES = byte_level()
CELLS = ["061", "3.10", "1e5", "+1", "-0", "true", "NA", "2024-01-31", "9007199254740993"]
CELLS += ["12345678901234567890", " x "]


def read(path: Path, streaming: bool = False, numbers: tuple[str, ...] = (), **options: Any) -> list[dict[str, Any]]:
    return list(DataSource(str(path), streaming=streaming, **options).load("s.data", numbers)[0])


def put(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def learned(rows: Any, chosen: Format) -> list[str]:
    samples = formatted(rows, chosen, BYTES, "causal-lm", "s")
    return [BYTES.decode(sample["input_ids"]).removesuffix("<|endoftext|>") for sample in samples]


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "json"])
def test_a_text_is_the_characters_of_the_file(kind: str, streaming: bool, tmp_path: Path) -> None:
    # Each cell in a column of its own, so that nothing beside it keeps it from being a number or a date.
    if kind in ("csv", "tsv"):
        between = "," if kind == "csv" else "\t"
        content = between.join(f"c{place}" for place in range(len(CELLS))) + "\n" + between.join(CELLS) + "\n"
        content += between.join([f'"{CELLS[0]}"', *CELLS[1:-1], ""]) + "\n"
    else:
        rows = [{f"c{place}": cell for place, cell in enumerate(CELLS)}] * 2
        content = json.dumps(rows) if kind == "json" else "\n".join(map(json.dumps, rows))
    path = put(tmp_path / f"rows.{kind}", content)
    template = "|".join(f"{{c{place}}}" for place in range(len(CELLS)))
    rows = DataSource(str(path), streaming=streaming).load("s")[0]
    texts = learned(rows, Prompt("", template))
    assert texts[0] == "|".join(CELLS)
    assert texts[1] == texts[0].removesuffix(" x " if kind in ("csv", "tsv") else "")


@pytest.mark.parametrize("streaming", [False, True])
def test_contents_of_a_chat_that_look_like_something_else_stay_texts(streaming: bool, tmp_path: Path) -> None:
    said = [("user", "2024-01-31"), ("assistant", "2024-02-01T00:00:00Z"), ("user", "42"), ("assistant", "null")]
    turns = [{"role": role, "content": content} for role, content in said]
    turns[3]["name"] = "1e5"  # messages with other keys
    path = put(tmp_path / "chat.jsonl", json.dumps({"messages": turns[:2]}) + "\n" + json.dumps({"messages": turns}))
    rows = DataSource(str(path), streaming=streaming).load("s")[0]
    assert [row["messages"] for row in rows] == [turns[:2], turns]
    expected = [BYTES.apply_chat_template(part, chat_template=CHATML, tokenize=False) for part in (turns[:2], turns)]
    assert learned(rows, Chat(chat_template=CHATML, ignored_keys=["name"])) == expected


@pytest.mark.parametrize("streaming", [False, True])
def test_objects_of_json_keep_their_keys_and_values(streaming: bool, tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"tools": [{"name": "f", "arguments": {"x": 1, "y": [1.5, "2024-01-31"]}}], "meta": {}, "ids": [1, 2]},
        {"tools": [{"name": "g", "arguments": {"z": "061", "x": 2.5}}], "meta": {"k": None}, "ids": []},
        {"tools": [{"arguments": {"x": 1, "y": []}, "name": "g"}], "meta": {}, "ids": [3]},  # in another order
    ]
    lines = list(map(json.dumps, rows))
    found = read(put(tmp_path / "rows.jsonl", "\n".join(lines)), streaming)
    assert list(map(json.dumps, found)) == lines


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (["0", "2", "1"], [0, 2, 1]),
        (["1", "0.50", "1e1"], [1.0, 0.5, 10.0]),
        (["01", "02", "01"], ["01", "02", "01"]),
        (["+1", "-1", "+1"], ["+1", "-1", "+1"]),
        (["true", "false", "NA"], ["true", "false", "NA"]),
        (["12345678901234567890", "1", "2"], ["12345678901234567890", "1", "2"]),
    ],
)
def test_labels_are_numbers_if_all_are_written_so(labels, expected, streaming, tmp_path) -> None:
    path = put(tmp_path / "rows.csv", "text,label\n" + "".join(f"07,{label}\n" for label in labels))
    rows = read(path, streaming, Labelled().numbers)
    assert [row["label"] for row in rows] == expected
    assert {type(row["label"]) for row in rows} == {type(expected[0])}
    assert {row["text"] for row in rows} == {"07"}


def test_labels_of_a_stream_are_numbers_as_its_first_rows_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mixer.tools.recipe.data.row_files._NUM_FIRST", 20)
    first = "text,label\n" + "07,1\n" * 20  # as many as decide
    assert {row["label"] for row in read(put(tmp_path / "a.csv", first + "07,2\n"), True, ("label",))} == {1, 2}
    with refused("label", found="two"):
        read(put(tmp_path / "b.csv", first + "07,two\n"), True, ("label",))


def test_awkward_tables_are_read_as_they_are_written(tmp_path: Path) -> None:
    content = '\ufeffq,a\r\n"two\nlines","a ""quote"""\r\n\r\nform\x0cfeed,u\u2028v\r\n'
    assert read(put(tmp_path / "rows.csv", content)) == [
        {"q": "two\nlines", "a": 'a "quote"'},
        {"q": "form\x0cfeed", "a": "u\u2028v"},
    ]
    assert read(put(tmp_path / "index.csv", ",q\n0,x\n")) == [{"Unnamed: 0": "0", "q": "x"}]
    long = "x" * 200_000  # beyond the usual limit of a cell
    assert read(put(tmp_path / "long.csv", f"q,a\n{long},1\n"))[0]["q"] == long
    (tmp_path / "empty.txt").touch()
    with refused(str(tmp_path / "empty.txt"), expected="there are no rows"):
        read(tmp_path / "empty.txt")
    text = put(tmp_path / "rows.txt", "\ufeffone\r\ntwo\x0c \u2028  \n061\n")
    assert [row["text"] for row in read(text)] == ["one", "two\x0c \u2028  ", "061"]
    assert read(put(tmp_path / "a[1].jsonl", '{"q": "x\u2028\x0c"}\n\n{"q": null}')) == [
        {"q": "x\u2028\x0c"},
        {"q": None},
    ]
    assert read(put(tmp_path / "texts.json", '["061", "x"]')) == [{"text": "061"}, {"text": "x"}]


BROKEN = [
    ("a.csv", "q,a\n1,2\n3\n", "line 3"),
    ("a.csv", "q,q\n1,2\n", "line 1"),
    ("a.csv", 'q,a\nx,1\n"y,2\nz,3\n', "line 3"),
    ("a.csv", "q,a\nx,1\né,2\n".encode("latin-1"), "line 3"),
    ("a.csv", "", None),
    ("a.jsonl", '{"q": "x"}\n{"q": "é"}\n'.encode("latin-1"), "line 2"),
    ("a.jsonl", '{"q": "x"}\n{"q": 1}\n', "line 2"),
    ("a.jsonl", '{"q": 1}\n\n{"q": true}\n', "line 3"),
    ("a.jsonl", '{"q": 12345678901234567890}\n', "line 1"),
    ("a.jsonl", '{"q": 1}\n{"q": tru}\n', "line 2"),
    ("a.jsonl", '{"q": 1}\n{"q": {"a": 1, "a": 2}}\n', "line 2"),
    ("a.jsonl", "[1]\n", "row 1"),
    ("a.json", '{\n"q": ["x"]\n}', "line 1"),
    ("a.jsonl.gz", gzip.compress(b'{"q": 1}\n' * 9, mtime=0)[:-9], "line 9"),
    ("a.txt", "x\né".encode("latin-1"), None),
]


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(("name", "content", "place"), BROKEN)
def test_what_cannot_be_read_is_named_by_file_and_line(name, content, place, streaming, tmp_path) -> None:
    path = put(tmp_path / name, content)
    with refused(str(path), found=place):
        read(path, streaming)


def test_a_stream_names_a_file_that_breaks_later(tmp_path: Path) -> None:
    put(tmp_path / "a.jsonl", '{"q": 1}\n')
    for name, content in [("b.jsonl", '{"q": "x"}'), ("b.jsonl", '{"q": 1, "z": 2}'), ("b.jsonl", "{")]:
        put(tmp_path / name, content)
        with refused(str(tmp_path / "b.jsonl"), found="line 1"):
            read(tmp_path, streaming=True)


def test_other_columns_are_told_and_can_be_left_out(tmp_path: Path) -> None:
    def write(name: str, **columns: Any) -> None:
        parquet.write_table(pyarrow.table(columns), put(tmp_path / name, ""))

    write("a/1.parquet", q=["x"], tags=[["t"]])
    write("a/2.parquet", q=["y"], tags=[[1]])
    with refused(str(tmp_path / "a/2.parquet"), found=["tags (List(Value('int64')))"]):
        read(tmp_path / "a")
    write("f/1.parquet", q=[["x"], None], n=[1, 2])
    write("f/2.parquet", q=[[]], n=[None])  # empty lists and columns fit
    assert read(tmp_path / "f") == [{"q": ["x"], "n": 1}, {"q": None, "n": 2}, {"q": [], "n": None}]
    write("b/1.parquet", q=[1])
    write("b/2.parquet", q=["061"])  # a number for datasets
    with refused(str(tmp_path / "b/2.parquet"), found=["q (string)"]):
        read(tmp_path / "b")
    put(tmp_path / "c/1.jsonl", '{"q": "x"}')
    put(tmp_path / "c/2.jsonl", '{"q": "y", "n": 1}')
    put(tmp_path / "d/1.csv", "q,n\nx,1")
    put(tmp_path / "d/2.csv", "m,q\n1,y")
    for file, columns in (("c/2.jsonl", ["q", "n"]), ("d/2.csv", ["m", "q"])):
        with refused(str(tmp_path / file), found=columns):
            read((tmp_path / file).parent)
    datasets.Dataset.from_list([{"q": "x", "n": 1}, {"q": "y", "n": 2}]).save_to_disk(tmp_path / "e")
    put(tmp_path / "t/1.txt", "x\ny")
    assert read(tmp_path / "t", columns=["text"]) == [{"text": "x"}, {"text": "y"}]
    for folder in "acde":
        for streaming in (False, True):
            assert read(tmp_path / folder, streaming, columns=["q"]) == [{"q": "x"}, {"q": "y"}]
        with refused("columns", found="r"):
            read(tmp_path / folder, columns=["q", "r"])


def test_zstandard_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with refused("path"):
        read(put(tmp_path / "a.txt.zst", b"x"))


@pytest.mark.parametrize("streaming", [False, True])
def test_zstandard_is_read_to_its_end(streaming: bool, tmp_path: Path) -> None:
    lines = [json.dumps({"q": f"{number:04}"}).encode() + b"\n" for number in range(3)]
    packed = b"".join(pyarrow.compress(line, "zstd", asbytes=True) for line in lines)  # a frame each
    assert [row["q"] for row in read(put(tmp_path / "a.jsonl.zst", packed), streaming)] == ["0000", "0001", "0002"]
    with refused(str(tmp_path / "a.jsonl.zst")):
        read(put(tmp_path / "a.jsonl.zst", packed[:-4]), streaming)


MOMENT = datetime.datetime(2024, 1, 31, 12)


@pytest.mark.parametrize(
    ("value", "template", "text"),
    [
        (9007199254740993, "{a}", "9007199254740993"),
        (decimal.Decimal("3.10"), "{a}", "3.10"),
        (decimal.Decimal("0.0000001"), "{a}", "0.0000001"),
        (MOMENT.date(), "{a}", "2024-01-31"),
        (3.1, "{a:.2f}", "3.10"),
        (True, "{a!s}", "True"),
        (MOMENT, "{a:%d.%m.%Y}", "31.01.2024"),
        ("3.10", "{a:.1f}", "3.1"),
        ("7", "{a:03}", "007"),
        ("7", "{a:>3}", "  7"),
        ("abc", "{a:.2}", "ab"),
    ],
)
def test_a_value_is_written_in_the_one_way_there_is_or_as_its_format_says(value: Any, template: str, text: str) -> None:
    assert learned(datasets.Dataset.from_list([{"a": value}]), Prompt("", template)) == [text]


@pytest.mark.parametrize("value", [3.1, True, MOMENT, ["x"], {"b": 1}])
def test_a_value_that_can_be_written_in_several_ways_is_refused(value: Any) -> None:
    for rows, chosen in [({"a": value}, Prompt("", "{a}")), ({"text": value}, Text(max_length=8))]:
        with refused(min(rows), stream="s", found=value):
            learned(datasets.Dataset.from_list([rows]), chosen)


def test_numbers_that_datasets_has_made_of_csv_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = str(put(tmp_path / "rows.csv", "q,label\n061,1\n"))
    rows = datasets.load_dataset("csv", data_files=path, split="train")
    learned(rows, Prompt("", "{q}"))
    assert "'q' of CSV as int64" in caplog.messages[0]
    learned(DataSource(path).load("s")[0], Prompt("", "{q}"))
    assert len(caplog.messages) == 1


CARD = """---
configs:
- config_name: en
  data_files: en/*.csv
- config_name: fr
  sep: ";"
  data_files:
  - {split: train, path: fr/train.csv}
  - {split: test, path: fr/more.csv}
---
"""


def test_a_folder_with_configurations_is_read_as_datasets_does(tmp_path: Path) -> None:
    put(tmp_path / "README.md", CARD)
    put(tmp_path / "en" / "a.csv", "text\n061\n")
    put(tmp_path / "fr" / "train.csv", "text;n\n062;1\n")
    put(tmp_path / "fr" / "more.csv", "text;n\n063;1\n")
    assert read(tmp_path, name="en") == [{"text": "061"}]
    train, test = DataSource(str(tmp_path), name="fr", validation_split="test").load("s")
    assert (train.to_list(), test.to_list()) == ([{"text": "062", "n": "1"}], [{"text": "063", "n": "1"}])
    for name in (None, "de"):
        with refused("name", found=name):
            read(tmp_path, name=name)
    with refused("split", found="test"):
        read(tmp_path, name="en", split="test")
    put(tmp_path / "README.md", "---\nconfigs: [\n---\n")
    with refused("path", found=str(tmp_path / "README.md")):
        read(tmp_path)


def test_declared_types_of_a_folder_hold(tmp_path: Path) -> None:
    label = "{name: label, dtype: {class_label: {names: {'0': neg, '1': pos}}}}"
    features = f"dataset_info:\n  features:\n  - {{name: text, dtype: string}}\n  - {label}\n"
    put(tmp_path / "README.md", f"---\nconfigs:\n- {{config_name: default, data_files: a.csv}}\n{features}---\n")
    put(tmp_path / "a.csv", "text,label\n061,pos\n")
    rows = DataSource(str(tmp_path)).load("s")[0]
    assert (rows.to_list(), rows.features["label"].names) == ([{"text": "061", "label": 1}], ["neg", "pos"])


def test_what_is_read_of_a_folder_is_told_and_chosen(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "d"
    for number in range(4):
        put(folder / "part" / f"{number}.jsonl", '{"text": "x", "n": 1}\n' * (20 + number))
    put(folder / "z_stats.jsonl", '{"text": "no row"}\n')
    for name in ("__pycache__/a.jsonl", ".hidden/a.jsonl", "README.md", "table.xlsx"):
        put(folder / name, '{"text": "no row"}')
    for _ in range(2):  # the second time from the cache
        caplog.clear()
        rows = DataSource(str(folder)).load("s")[0]
        others, files, unlikes = (str(record.args) for record in caplog.records)
        assert "table.xlsx" in others
        assert [one.num_rows for one in files_of(rows)] == [20, 21, 22, 23, 1]
        assert "5 files (0.jsonl, 1.jsonl, 2.jsonl and 2 more), 1,911 bytes, 87 rows" in files
        assert "z_stats.jsonl (19 bytes, 462 usual; 1 rows, 21 usual; columns text; usual are n, text)" in unlikes
    caplog.clear()
    for patterns in ({"exclude": ["z_*"]}, {"include": ["part/*"]}, {"include": ["*.jsonl"], "exclude": ["z_*"]}):
        assert len(read(folder, **patterns)) == 86
    assert not [record for record in caplog.records if "unlike" in record.getMessage()]
    assert [row["text"] for row in read(folder, include=["z_*"])] == ["no row"]
    assert len(read(folder, streaming=True, exclude=["z_*"])) == 86
    assert len(read(folder / "part" / "*.jsonl", exclude=["0.*"])) == 66


@pytest.mark.parametrize(
    ("patterns", "option", "found"),
    [
        ({"exclude": ["*.txt"]}, "exclude", "*.txt"),
        ({"include": ["a.jsonl", "x*"]}, "include", "x*"),
        ({"include": ["a*"], "exclude": ["*"]}, "include", ["a*"]),
    ],
)
def test_patterns_that_choose_nothing_are_refused(patterns: Any, option: str, found: Any, tmp_path: Path) -> None:
    put(tmp_path / "a.jsonl", '{"text": "x"}')
    with refused(option, found=found):
        read(tmp_path, **patterns)


def test_files_are_unlike_others_by_far() -> None:
    def names(*files: tuple[int, int, str]) -> list[str]:
        return [*unlike([FileRead(str(place), size, rows, list(own)) for place, (size, rows, own) in enumerate(files)])]

    same = (50_000, 900, "ab")
    assert names(same, same, (100, 2, "ab")) == names(same, same, (50_000, 900, "a")) == ["2"]
    assert names(same, same, (5_000_000, 900, "ab")) == ["2"]
    assert names(same, (100, 2, "a")) == names(same, same, (9_000, 200, "ab")) == []
    assert names(*((10**power, 5, "a") for power in range(2, 8))) == []  # of all sizes


def test_files_of_shards_name_their_splits(tmp_path: Path) -> None:
    for split in ("train_sft", "train_gen", "test_sft"):
        put(tmp_path / "set" / "data" / f"{split}-00000-of-00001.jsonl", json.dumps({"text": split}))
    assert read(tmp_path / "set", split="train_gen") == [{"text": "train_gen"}]
    with refused("split", found="train"):
        read(tmp_path / "set")


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(("name", "other"), [("a.csv", ";"), ("a.csv", "\t"), ("a.tsv", ",")])
def test_another_separator_is_named_and_can_be_said(name: str, other: str, streaming: bool, tmp_path: Path) -> None:
    path = put(tmp_path / name, f"a{other}b\nx. y{other}1\n")
    with refused(str(path)) as caught:
        read(path, streaming=streaming)
    assert f"data.separator: {json.dumps(other)}" in str(caught.value)
    assert read(path, streaming=streaming, separator=other) == [{"a": "x. y", "b": "1"}]
    own = "," if name == "a.csv" else "\t"
    assert read(path, streaming=streaming, separator=own) == [{f"a{other}b": f"x. y{other}1"}]


def test_a_column_without_a_value_in_the_first_file_of_a_stream_is_named(tmp_path: Path) -> None:
    put(tmp_path / "a.jsonl", '{"x": 1, "y": null}\n')
    put(tmp_path / "b.jsonl", '{"x": 2, "y": null}\n{"x": 3, "y": 7}\n')
    with refused(str(tmp_path / "b.jsonl"), found="line 2"):
        read(tmp_path, streaming=True)
    assert read(tmp_path, streaming=True, columns=["x"]) == [{"x": 1}, {"x": 2}, {"x": 3}]
    put(tmp_path / "b.jsonl", '{"x": 2, "y": "seven"}\n')
    assert read(tmp_path, streaming=True)[1] == {"x": 2, "y": "seven"}
