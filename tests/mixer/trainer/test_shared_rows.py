"""Rows of evaluation sets that are trained on, and one data set as two streams, are told."""

from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import Dataset
from torch.utils.data import Subset

from mixer import Head, Stream
from mixer.loading.row_digest import row_digests
from mixer.tools.recipe.data import Text
from mixer.tools.recipe.stream_checks import tell_shared_documents
from mixer.tools.recipe.streams import BuiltStream
from mixer.trainer.checks import shared_rows
from mixer.trainer.checks.shared_rows import tell_shared_rows
from tests.helpers import Tokens
from tests.mixer.forms import multi_task
from tests.mixer.trainer.runs import make


def _rows(first: int, last: int) -> Dataset:
    return Dataset.from_dict(
        {"input_ids": [[number, 1] for number in range(first, last)], "label": [0] * (last - first)}
    )


def _told(caplog: pytest.LogCaptureFixture, streams: Any, sets: Any = None, has_heads: bool = False) -> list[Any]:
    """The arguments of the warnings."""
    caplog.clear()
    streams = [Stream(name, data) for name, data in streams.items()] if isinstance(streams, dict) else streams
    tell_shared_rows(streams, has_heads, sets)
    return [record.args for record in caplog.records if record.name == shared_rows.__name__]


def test_rows_of_an_evaluation_set_are_counted_in_each_stream(caplog: pytest.LogCaptureFixture) -> None:
    streams = {"tr": _rows(0, 200), "te": _rows(200, 300), "other": _rows(900, 950)}
    [told] = _told(caplog, streams, {"gold": _rows(163, 213), "apart": _rows(500, 510), "none": None})
    assert "37 of 50 different rows of eval_dataset['gold'] are in the stream 'tr'" in told[0]
    assert "13 of 50 different rows of eval_dataset['gold'] are in the stream 'te'" in told[0]
    assert not {"apart", "none", "other", "sample"} & set(told[0].replace("'", " ").split())
    assert _told(caplog, streams, {"apart": _rows(500, 510)}) == []
    assert _told(caplog, streams) == _told(caplog, streams, _rows(0, 9).to_iterable_dataset()) == []
    # Stored otherwise: shuffled, with a format, and as rows of Python.
    [told] = _told(caplog, streams, _rows(163, 213).shuffle(seed=1).with_format("torch"))
    assert "37 of 50 different rows of eval_dataset are" in told[0]
    lists = {"a": _rows(0, 5).to_list()}
    assert "1 of 5 different rows" in _told(caplog, lists, _rows(4, 9).to_list())[0][0]


def test_a_row_that_repeats_is_counted_once_and_one_is_named(caplog: pytest.LogCaptureFixture) -> None:
    lines = [{"text": text} for text in ("new", "", "old", "", "also old", "")]  # blank lines of a file of texts
    [told] = _told(caplog, {"a": [{"text": text} for text in ("old", "also old", "", "")]}, lines)
    assert "3 of 4 different rows" in told[0]
    assert "row 1 among them" in told[0]


def test_rows_that_are_slow_to_read_are_compared_by_their_places(caplog: pytest.LogCaptureFixture) -> None:
    class Slow(Tokens):
        def __getitem__(self, index: int) -> Any:
            raise AssertionError("it is read")

    data = Slow(20, 1, "causal-lm")
    assert "2 of 4 different rows" in _told(caplog, {"a": Subset(data, range(12))}, Subset(data, [3, 11, 12, 13]))[0][0]
    assert "20 of 20 different rows" in _told(caplog, {"a": data}, data)[0][0]
    assert _told(caplog, {"a": data}, Slow(20, 1, "causal-lm")) == []
    rows = _rows(0, 20)
    assert (
        "1 of 2 different rows"
        in _told(caplog, {"a": Subset(Subset(rows, range(5, 20)), [1, 2])}, rows.select([7, 8]))[0][0]
    )


def test_large_sets_are_sampled_and_that_is_said(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_rows, "_MOST_ROWS", 1000)
    read: list[int] = []

    def digests(rows: Any, places: Any) -> Any:
        read.append(len(places))
        return row_digests(rows, places)

    monkeypatch.setattr(shared_rows, "row_digests", digests)
    [told] = _told(caplog, {"a": _rows(0, 5000)}, _rows(0, 400))
    assert read == [1000, 400]
    assert "sample" in told[0]
    monkeypatch.setattr(shared_rows, "_MOST_BYTES_TOGETHER", 200 * 2 * _rows(0, 9).data.nbytes // 9)
    _told(caplog, {"a": _rows(0, 5000)}, _rows(0, 400))
    assert read[2:] == [200, 200]


def test_one_data_set_as_two_streams_is_told(caplog: pytest.LogCaptureFixture) -> None:
    rows = _rows(0, 100)
    [told] = _told(caplog, {"a": rows, "b": rows.shuffle(seed=3), "c": _rows(100, 200), "few": _rows(0, 20)})
    assert told == ("100 of 100 different rows of the stream 'a' are in the stream 'b'", "")
    assert _told(caplog, {"a": _rows(0, 100), "b": _rows(40, 140)})[0][0].startswith("60 of 100 different rows")
    assert _told(caplog, {"a": _rows(0, 100), "b": _rows(60, 160)}) == []
    # The same texts for two heads, or with two preprocessings, are two tasks.
    assert _told(caplog, {"a": rows, "b": rows}, has_heads=True) == []
    assert _told(caplog, [Stream("a", rows, head="x"), Stream("b", rows, head="x")], has_heads=True)
    assert _told(caplog, [Stream("a", rows), Stream("b", rows, preprocess=dict)]) == []


def test_twins_are_those_that_comparing_all_pairs_finds(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_rows, "_MOST_NAMED", 1_000)
    random = np.random.default_rng(0)
    ends = [sorted(random.choice(300, 2, replace=False).tolist()) for _ in range(40)]
    [told] = _told(caplog, {str(number): _rows(*own) for number, own in enumerate(ends)})
    twins = []
    for (one, first), (other, second) in combinations(enumerate(ends), 2):
        common = min(first[1], second[1]) - max(first[0], second[0])
        if common >= 0.5 * max(first[1] - first[0], second[1] - second[0]):
            rows = f"{common} of {first[1] - first[0]} different rows"
            twins.append(f"{rows} of the stream '{one}' are in the stream '{other}'")
    assert twins
    assert sorted(told[0].split(", ")) == sorted(twins)
    # A row that very many streams have, such as an empty one, is no work for each pair of them.
    monkeypatch.setattr(shared_rows, "_MOST_OWNERS", 2)
    [told] = _told(caplog, {str(number): _rows(0, 3) for number in range(9)})
    assert told[0].count(" are in ") == 8 + 7


def test_trainers_tell_it_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = {"a": _rows(0, 20), "b": _rows(20, 40)}
    for place, model in enumerate(("bert-classifier", multi_task({"a": Head(3), "b": Head(3)}))):
        caplog.clear()
        sets = {name: rows.select([0, 1]) for name, rows in data.items()}
        options = {"eval_strategy": "steps", "eval_steps": 1, "max_steps": 1}
        make(tmp_path / str(place), model, train_dataset=data, eval_dataset=sets, **options)
        assert len([record for record in caplog.records if record.name == shared_rows.__name__]) == 1


def test_documents_that_a_recipe_packs_are_compared_before(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def packed(documents: list[str], held: list[str] | None = None) -> Any:
        rows, others = (None if own is None else Dataset.from_dict({"body": own}) for own in (documents, held))
        return BuiltStream(Stream("s", rows), None, None, rows, others, Text("body", max_length=4))

    documents = [f"document {number}" for number in range(10)]
    streams = {"a": packed(documents, ["another"]), "b": packed(["one"])}
    tell_shared_documents(streams, {"web": packed([*documents[8:], "new"])})
    [record] = caplog.records
    assert isinstance(record.args, tuple)
    assert "2 of 3 different rows of eval_dataset['web'] are in the stream 'a'" in str(record.args[0])
