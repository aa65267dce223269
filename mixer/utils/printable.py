"""Texts out of data on a terminal: as they are, but for what would move, colour or break it."""


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
