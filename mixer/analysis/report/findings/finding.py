"""The result of a finding rule."""

from collections.abc import Mapping
from dataclasses import dataclass

from mixer.utils.text import first_of


@dataclass(frozen=True)
class Finding:
    """A possible problem of a run.

    Args:
        kind: Its name, a word or two.
        run: Name of the run.
        streams: The streams concerned, the worst first; empty if it concerns the whole run.
        text: A sentence with the figure behind it.
    """

    kind: str
    run: str
    streams: tuple[str, ...]
    text: str


def about_streams(kind: str, run: str, messages: Mapping[str, str], beginning: str) -> Finding | None:
    """Combines messages about streams into one finding.

    Args:
        kind: See `Finding`.
        run: See `Finding`.
        messages: Messages by stream, the worst first.
        beginning: The beginning of the sentence.

    Returns:
        The finding, with the worst messages and a count of the others; `None` without messages.
    """
    if not messages:
        return None
    return Finding(kind, run, tuple(messages), f"{beginning}: {'; '.join(first_of(list(messages.values())))}.")
