"""The name that was probably meant."""

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Names the known name that is nearest to one that is not known.

    Args:
        name: What was given.
        known: What there is.

    Returns:
        A sentence with a space before it, to be put behind an error; empty if none is near.

    Example:
        >>> did_you_mean("lerning_rate", ["learning_rate", "seed"])
        " Did you mean 'learning_rate'?"
    """
    near = difflib.get_close_matches(name, list(known), n=1)
    return f" Did you mean {near[0]!r}?" if near else ""
