"""The result of a finding rule."""

from dataclasses import dataclass

from mixer.utils.text import first_of

# The result of a rule: sentences on a problem by the streams concerned, the worst first.
Messages = dict[tuple[str, ...], str]


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


def combined(kind: str, run: str, beginning: str, messages: Messages) -> Finding:
    """Combines at least one message into a finding: the worst messages, and a count of the others."""
    streams = dict.fromkeys(name for names in messages for name in names)
    return Finding(kind, run, tuple(streams), f"{beginning}{'; '.join(first_of(list(messages.values())))}.")
