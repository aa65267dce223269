"""Texts out of data on a terminal: as they are, but for what would move, colour or break it."""

from rich.text import Text

from mixer.inspecting.examples import Example

_LEARNED = "bold green"


def printable(text: str) -> str:
    r"""Writes characters that print nothing as Python does: line ends, escapes, marks that turn the direction.

    Args:
        text: The text.

    Returns:
        A text of one line.

    Example:
        >>> print(printable("a\n\x1b[31mb"))
        a\n\x1b[31mb
    """
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)


def text_of(example: Example) -> Text:
    """Writes a sample, what is learned of it in colour and between ⟦ and ⟧.

    Args:
        example: The sample.

    Returns:
        The text.
    """
    text = Text()
    for piece in example.pieces:
        if piece.is_learned:
            text.append(f"⟦{printable(piece.text)}⟧", _LEARNED)
        else:
            text.append(printable(piece.text))
    if example.label is not None:
        text.append(f" → ⟦{printable(example.label)}⟧", _LEARNED)
    return text
