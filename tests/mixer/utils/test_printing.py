import dataclasses
import enum
import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from mixer.tools.console import Result, only_json, print_json
from mixer.utils.text import in_words, printable, shortened

Color = enum.Enum("Color", ["RED"])


def test_what_is_no_number_is_null_and_tables_are_lists_of_rows(capsys: pytest.CaptureFixture[str]) -> None:
    content = {"a": math.nan, "b": [math.inf, 1.5], "c": np.array([np.nan, 2.0]), "d": np.int64(3)}
    table = pd.DataFrame({"stream": ["a", "b"], "count": [1, 2], "loss": [0.5, np.nan], "active": [True, False]})
    rows = [["a", 1, 0.5, True], ["b", 2, None, False]]
    printed = [dict(zip(table.columns, row, strict=True)) for row in rows]
    texts = {1: Path("runs/a"), "true": True, "none": None}
    print_json([content, table, texts])
    expected = [{"a": None, "b": [None, 1.5], "c": [None, 2.0], "d": 3}, printed]
    expected.append({"1": "runs/a", "true": True, "none": None})
    assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail) == expected


@pytest.mark.parametrize("value", [object(), Color.RED, print, Color, ValueError("no")])
def test_what_cannot_be_written_is_named(value: object) -> None:
    with pytest.raises(TypeError):
        print_json({"a": value})


def test_results_and_dataclasses_are_written_by_their_public_attributes(capsys: pytest.CaptureFixture[str]) -> None:
    class Found(Result):
        def __init__(self) -> None:
            self.shares, self._hidden = np.array([0.25, math.nan]), object()

    print_json([Found(), dataclasses.make_dataclass("Pair", ["a"])(Path("x"))])
    assert json.loads(capsys.readouterr().out) == [{"shares": [0.25, None]}, {"a": "x"}]
    assert repr(Found()) == "Found(shares=array([0.25,  nan]))"


@pytest.mark.parametrize("is_asked", [True, False])
def test_only_json_is_on_stdout_where_it_is_asked_for(is_asked: bool, capsys: pytest.CaptureFixture[str]) -> None:
    with only_json(is_asked):
        print("a log line")
    print("{}")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == (("{}\n", "a log line\n") if is_asked else ("a log line\n{}\n", ""))


def test_what_would_move_or_colour_is_written_out_and_other_texts_stay() -> None:
    for text in ("\x1b[31mred", "a\nb", "a\rb", "\u202eabc", "\x00", "\ud800", "\x9b31m", "a\u2028b"):
        shown = printable(text)
        assert shown.isprintable()
        assert shown != text
        assert shown.encode()
    for text in ("", "math", "数学 é", "[red]", "a\\n", 'it\'s "so"'):
        assert printable(text) == text
    assert (shortened("a" * 200), shortened("a" * 201)) == ("a" * 200, "a" * 200 + "…")
    error = KeyError("a")
    error.add_note("At step 3.")
    assert in_words(error) == "KeyError: 'a'. At step 3."
