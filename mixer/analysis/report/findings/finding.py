"""What a rule finds."""

from collections.abc import Mapping
from dataclasses import dataclass

from mixer.utils.text import first_of


@dataclass(frozen=True)
class Finding:
    """Something conspicuous.

    Args:
        kind: A word or two for it.
        run: Name of the run.
        streams: The streams that it is about, the worst first; empty if it is about the whole run.
        text: A sentence with the figure that says so.
    """

    kind: str
    run: str
    streams: tuple[str, ...]
    text: str


def about_streams(kind: str, run: str, told: Mapping[str, str], beginning: str) -> Finding | None:
    """Puts what was found of streams into one sentence.

    Args:
        kind: See `Finding`.
        run: See `Finding`.
        told: By name of the stream, what is to be said of it, the worst first.
        beginning: How the sentence begins.

    Returns:
        The finding, in which the worst are told and the others counted; `None` if there are none.
    """
    if not told:
        return None
    return Finding(kind, run, tuple(told), f"{beginning}: {'; '.join(first_of(list(told.values())))}.")
