"""A finding: something of a run's data that will hurt."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """Something that will hurt.

    Args:
        kind: What it is, in one word or several with underscores, the same in every run.
        streams: The streams that it is of; empty for the run as a whole.
        figure: What says so.
        sentence: What it means, with the figure.
    """

    kind: str
    streams: list[str]
    figure: float
    sentence: str


def count(number: int, noun: str, plural: str = "") -> str:
    """Writes how many of something there are.

    Args:
        number: How many.
        noun: Of what.
        plural: Several of it, where that is not the noun and an s.

    Returns:
        The words.

    Example:
        >>> count(1200, "sample")
        '1,200 samples'
    """
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"
