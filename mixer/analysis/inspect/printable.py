"""Samples on a terminal."""

from rich.text import Text

from mixer.analysis.inspect.examples import Example
from mixer.utils.text import printable

_LEARNED = "bold green"


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
