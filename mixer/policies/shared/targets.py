"""Streams whose losses a policy wants to lower, by name."""

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from mixer.policies.contract import weights_array
from mixer.utils.arrays import FloatArray

Targets = Sequence[str] | Mapping[str, float] | None


def check_targets(targets: Targets) -> Targets:
    """Refuses what cannot name streams, before there are any.

    Args:
        targets: Names, or importance by name; `None` for no choice.

    Returns:
        The targets.

    Raises:
        ValueError: If it is a single text, no collection, or empty.
    """
    if isinstance(targets, str):
        raise ValueError(f"targets must be a list of names or importance by name, got a text: write [{targets!r}].")
    if targets is not None and not isinstance(targets, Collection):
        raise ValueError(
            f"targets must be a list of names or importance by name, got {targets!r}; None is for all streams."
        )
    if targets is not None and not len(targets):
        raise ValueError("targets must name at least one stream, got none; None is for all streams.")
    return targets


def target_weights(targets: Targets, names: Sequence[str], without: FloatArray, where: str) -> FloatArray:
    """Gives the importance of each stream's loss.

    Args:
        targets: Names of equal importance, importance by name (a stream that is left out has none), or `None`.
        names: Names of the streams.
        without: `[num_streams]`: what `None` stands for.
        where: What to call the policy in an error.

    Returns:
        `[num_streams]`; they sum to 1.

    Raises:
        ValueError: If a name is not that of a stream, or an importance is negative or not finite.
    """
    if targets is None:
        return _shares(without)
    unknown = [name for name in targets if name not in names]
    if unknown:
        raise ValueError(f"{where}: targets must be names of streams, {list(names)}; unknown: {unknown}.")
    given = dict(targets) if isinstance(targets, Mapping) else dict.fromkeys(targets, 1.0)
    return _shares(weights_array({name: given.get(name, 0.0) for name in names}, names, f"{where}, targets"))


def among(importance: FloatArray, known: np.ndarray) -> FloatArray | None:
    """Gives the importance among some of the streams.

    Args:
        importance: `[num_streams]`, on the simplex.
        known: bool `[num_streams]`: which streams.

    Returns:
        `[num_known]` on the simplex; `None` where none of them has any.
    """
    total = float(importance[known].sum())
    return _shares(importance[known]) if total > 0.0 else None


def _shares(weights: FloatArray) -> FloatArray:
    shares: FloatArray = weights / weights.sum()
    return shares
