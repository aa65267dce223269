"""Texts that may be long, where they are shown."""


def shortened(text: str, most_characters: int = 200) -> str:
    """Cuts a text off that is too long to be shown.

    Args:
        text: The text.
        most_characters: The most of its characters.

    Returns:
        It, or its beginning with an ellipsis.

    Example:
        >>> shortened("mixtures", 3)
        'mix…'
    """
    return text if len(text) <= most_characters else f"{text[:most_characters]}…"


def in_words(error: BaseException) -> str:
    """Gives an error's kind, its message and what was noted on it.

    Args:
        error: The error.

    Returns:
        One text.
    """
    notes: list[str] = getattr(error, "__notes__", [])
    text = f"{type(error).__name__}: {error}"
    return " ".join([text if not notes else f"{text.rstrip('.')}.", *notes])
