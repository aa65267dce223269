"""Texts out of data, where a terminal shows them."""

from mixer.utils.text import in_words, printable, shortened


def test_what_would_move_or_colour_is_written_out_and_other_texts_stay() -> None:
    for text in ("\x1b[31mred", "a\nb", "a\rb", "\u202eabc", "\x00", "\ud800", "\x9b31m", "a\u2028b"):
        shown = printable(text)
        assert shown.isprintable()
        assert shown != text
        assert shown.encode()
    for text in ("", "math", "数学 é", "[red]", "a\\n", 'it\'s "so"'):
        assert printable(text) == text


def test_texts_are_cut_only_where_they_are_too_long_and_errors_told_with_their_notes() -> None:
    assert (shortened("a" * 200), shortened("a" * 201)) == ("a" * 200, "a" * 200 + "…")
    error = KeyError("a")
    assert in_words(error) == "KeyError: 'a'"
    error.add_note("At step 3.")
    assert in_words(error) == "KeyError: 'a'. At step 3."
