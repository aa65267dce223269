"""Observations of some of the streams, for a policy that mixes only these."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mixer.policies.contract import Mixture, Observation
from mixer.policies.shared.shares import shares
from mixer.utils.arrays import FloatArray
from mixer.utils.errors import wrong_value

_ROUNDING = 1e-9


def part_of_mixture(mixture: Mixture, ids: Sequence[int]) -> Mixture:
    """Returns some of the streams as a mixture of their own.

    Args:
        mixture: All streams.
        ids: Indices of the selected streams, in order.

    Returns:
        These alone, renumbered; their weights sum to 1.

    Raises:
        ValueError: If the weights of all of them are 0.

    Example:
        >>> whole = Mixture(("a", "b", "c"), np.array([5, 6, 7]), np.array([0.2, 0.2, 0.6]), memories=(2,))
        >>> part_of_mixture(whole, [0, 1]).weights.tolist()
        [0.5, 0.5]
    """
    names, index = tuple(mixture.names[k] for k in ids), np.asarray(ids, dtype=np.int64)
    weights = mixture.weights[index]
    if not weights.sum() > 0.0:
        raise wrong_value("weights", f"of {list(names)} must not all be 0: give one of these streams a positive one.")
    return replace(
        mixture,
        names=names,
        num_samples=mixture.num_samples[index],
        weights=weights / weights.sum(),
        memories=tuple(position for position, k in enumerate(ids) if k in mixture.memories),
        active=None if mixture.active is None else mixture.active[index],
    )


def part_of_observation(observation: Observation, ids: Sequence[int]) -> Observation:
    """Returns the observation of some of the streams, as if the others were absent.

    Args:
        observation: The observation of all.
        ids: Indices of the selected streams, in order.

    Returns:
        Theirs; weights and shares sum to 1 (shares are 0 if none of them was present), and the batch size is their
        part.
    """
    index = np.asarray(ids, dtype=np.int64)
    part_of_batch = float(_in_samples(observation)[index].sum())
    batch_size = observation.batch_size
    parts: dict[str, Any] = {
        name: values[index] for name, values in vars(observation).items() if isinstance(values, np.ndarray)
    }
    if "shares" in parts:
        parts["shares"] = shares(parts["shares"])
    # Weights set by hand may leave nothing for them.
    uniform = np.full(len(index), 1.0 / len(index))
    parts["weights"] = shares(parts["weights"]) if parts["weights"].sum() > 0.0 else uniform
    return replace(
        observation,
        measured={kind: kind.part(result, ids) for kind, result in observation.measured.items() if result is not None},
        batch_size=None if batch_size is None else max(1, int(batch_size * part_of_batch + _ROUNDING)),
        **parts,
    )


def _in_samples(observation: Observation) -> FloatArray:
    """`[num_streams]`: each stream's share of the planned samples."""
    drawn = observation.weights if observation.shares is None else observation.shares
    lengths = observation.tokens_per_sample
    return drawn if lengths is None else shares(drawn / lengths)
