"""Target streams by name: those with the losses to lower."""

from collections.abc import Collection, Mapping, Sequence
from typing import Annotated

import numpy as np

from mixer.policies.contract import weights_array
from mixer.policies.shared.shares import shares
from mixer.utils.arrays import FloatArray
from mixer.utils.errors import InvalidValueError, wrong_value
from mixer.utils.text import did_you_mean, safe_names


def check_targets(name: str, targets: object) -> None:
    """Refuses targets that cannot name streams, before the streams are known.

    Raises:
        ValueError: If it is a single text, no collection, or empty.
    """
    if isinstance(targets, str):
        raise wrong_value(name, f"must be a list of names or importance by name, got a text: write [{targets!r}].")
    if not isinstance(targets, Collection):
        raise wrong_value(
            name, f"must be a list of names or importance by name, got {targets!r}; None is for all streams."
        )
    if not targets:
        raise wrong_value(name, "must name at least one stream, got none; None is for all streams.")


# Names of streams, or importance by name.
Targets = Annotated[Sequence[str] | Mapping[str, float] | None, check_targets]


def target_weights(targets: Targets, names: Sequence[str], without: FloatArray, where: str) -> FloatArray:
    """Returns the importance of each stream's loss, `[num_streams]` with a sum of 1.

    Args:
        targets: Names of equal importance, importance by name (0 for streams that are not named), or `None`.
        names: Names of the streams.
        without: `[num_streams]`: the importance for `None`.
        where: Name of the policy in an error.

    Raises:
        ValueError: If a name is not that of a stream, or an importance is negative or not finite.
    """
    if targets is None:
        return shares(without)
    targets = safe_names(targets, f"{where}, targets")
    unknown = [name for name in targets if name not in names]
    if unknown:
        hint = did_you_mean(str(unknown[0]), names)
        raise InvalidValueError(
            f"{where}: targets must be names of streams, {list(names)}; unknown: {unknown}.{hint}", option="targets"
        )
    importance = dict(targets) if isinstance(targets, Mapping) else dict.fromkeys(targets, 1.0)
    return shares(weights_array({name: importance.get(name, 0.0) for name in names}, names, f"{where}, targets"))


def among(importance: FloatArray, known: np.ndarray) -> FloatArray | None:
    """Returns the importance among some of the streams.

    Args:
        importance: `[num_streams]`, on the simplex.
        known: bool `[num_streams]`: these streams.

    Returns:
        `[num_known]` on the simplex; `None` if none of them has any.
    """
    return shares(importance[known]) if importance[known].sum() > 0.0 else None
