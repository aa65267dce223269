"""The result of a finding rule."""

from collections.abc import Sequence
from dataclasses import dataclass

from mixer.utils.text import first_of


@dataclass(frozen=True)
class Finding:
    """A possible problem of a run.

    Args:
        streams: The streams concerned, the worst first; empty if it concerns the whole run.
        text: A sentence with the figure behind it; of a rule, that on these streams alone.
        kind: Its name, a word or two.
        run: Name of the run.
    """

    streams: Sequence[str]
    text: str
    kind: str = ""
    run: str = ""


def combined(kind: str, run: str, beginning: str, found: Sequence[Finding]) -> Finding:
    """Combines what a rule found, at least one, into one finding: the worst in words, and a count of the others."""
    streams = list(dict.fromkeys(name for finding in found for name in finding.streams))
    return Finding(streams, f"{beginning}{'; '.join(first_of([finding.text for finding in found]))}.", kind, run)
