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
