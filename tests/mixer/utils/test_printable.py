"""Texts out of data, where a terminal shows them."""

import pytest

from mixer.utils.text import in_words, printable, shortened


@pytest.mark.parametrize("text", ["\x1b[31mred", "a\nb", "a\rb", "\u202eabc", "\x00", "\ud800", "\x9b31m", "a\u2028b"])
def test_what_would_move_or_colour_is_written_out(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    assert shown != text
    assert shown.encode()


@pytest.mark.parametrize("text", ["", "math", "数学 é", "[red]", "a\\n", 'it\'s "so"'])
def test_other_texts_stay(text: str) -> None:
    assert printable(text) == text


def test_texts_are_cut_only_where_they_are_too_long() -> None:
    assert shortened("a" * 200) == "a" * 200
    assert shortened("a" * 201) == "a" * 200 + "…"


def test_an_error_is_told_with_its_notes() -> None:
    error = KeyError("a")
    assert in_words(error) == "KeyError: 'a'"
    error.add_note("At step 3.")
    assert in_words(error) == "KeyError: 'a'. At step 3."
