"""Streams by the values of a column: each row in the stream of its value, in the data set's order."""

import logging

import datasets
import pytest
from hypothesis import given, strategies as st

from mixer import streams_by_column
from mixer.mixture.by_column import rows_by_name, split_by_value
from mixer.utils.errors import InvalidTypeError, InvalidValueError


def _rows(values, **columns):
    return datasets.Dataset.from_dict({"source": values, "row": range(len(values)), **columns})


@given(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=40), st.integers(1, 5))
def test_each_row_is_in_the_stream_of_its_value(values, min_samples):
    found = {
        own.name: own.dataset["row"] for own in streams_by_column(_rows(values), "source", min_samples=min_samples)
    }
    common = [value for value in dict.fromkeys(values) if values.count(value) >= min_samples]
    expected = {value: [place for place, own in enumerate(values) if own == value] for value in common}
    rest = [place for place, own in enumerate(values) if own not in common]
    assert {name: list(rows) for name, rows in found.items()} == expected | ({"rare": rest} if rest else {})


def test_streams_have_the_options_and_safe_names():
    streams = streams_by_column(_rows(["en/us", "de"]), "source", max_epochs=2, shuffle=False)
    assert [(own.name, own.max_epochs, own.shuffle) for own in streams] == [("en--us", 2, False), ("de", 2, False)]


def test_classes_are_named_and_whole_numbers_are_texts():
    classes = _rows([1, 0, 1]).cast_column("source", datasets.ClassLabel(names=["no", "yes"]))
    assert [own.name for own in streams_by_column(classes, "source")] == ["yes", "no"]
    assert [own.name for own in streams_by_column(_rows([7, 2]), "source")] == ["7", "2"]


def test_a_list_of_rows_is_split_alike():
    rows = [{"source": value, "row": place} for place, value in enumerate("aba")]
    assert [[row["row"] for row in own.dataset] for own in streams_by_column(rows, "source")] == [[0, 2], [1]]


def test_iterable_rows_are_filtered_by_each_stream():
    rows = _rows(list("abcab")).to_iterable_dataset()
    streams = streams_by_column(rows, "source", values=["b", "a"])
    assert {own.name: [row["row"] for row in own.dataset] for own in streams} == {"b": [1, 4], "a": [0, 3]}


def test_rows_of_other_values_are_left_out_with_a_warning(caplog):
    with caplog.at_level(logging.WARNING, "mixer"):
        streams = streams_by_column(_rows(list("abc")), "source", values=["c", "a"])
    assert [own.name for own in streams] == ["c", "a"]
    assert "'b'" in caplog.text


def test_held_out_rows_follow_the_names_of_the_rows_to_train_on():
    names, _ = split_by_value(_rows(list("aaab")), "source", min_samples=2)
    held_out = rows_by_name(_rows(list("bba")), "source", names)
    assert {name: list(rows["row"]) for name, rows in held_out.items()} == {"a": [2], "rare": [0, 1]}


@pytest.mark.parametrize(
    ("values", "options", "option"),
    [
        (["a", "b"], {"column": "language"}, "column"),
        (["a", None], {}, "column"),
        ([0.5, 1.5], {}, "column"),
        (["a/b", "a--b"], {}, "column"),
        (["a", "a", "rare", "rare", "b"], {"min_samples": 2}, "column"),
        (["a"], {"values": ["b"]}, "values"),
        (["a"], {"min_samples": 0}, "min_samples"),
    ],
)
def test_wrong_columns_and_values_are_refused(values, options, option):
    with pytest.raises(InvalidValueError) as error:
        streams_by_column(_rows(values), **{"column": "source", **options})
    assert error.value.option == option


@pytest.mark.parametrize(("options", "option"), [({}, "values"), ({"values": ["a"], "min_samples": 2}, "min_samples")])
def test_iterable_rows_need_their_values(options, option):
    with pytest.raises(InvalidValueError) as error:
        streams_by_column(_rows(["a"]).to_iterable_dataset(), "source", **options)
    assert error.value.option == option


def test_rows_without_columns_are_refused():
    with pytest.raises(InvalidTypeError) as error:
        streams_by_column([1, 2], "source")
    assert error.value.option == "dataset"
