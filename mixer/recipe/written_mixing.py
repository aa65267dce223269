"""Weights that were found, written as a recipe's `mixing` takes them."""

from collections.abc import Mapping
from typing import Any

from mixer.policies.contract import Unit


def mixing_of(weights: Mapping[str, float], unit: Unit) -> dict[str, Any]:
    """Writes weights as a recipe's `mixing` takes them.

    Args:
        weights: Weights by the name of the stream.
        unit: What they are shares of.

    Returns:
        Weights by name; for shares of tokens, `Fixed` with them.
    """
    if unit == "samples":
        return dict(weights)
    return {"class_path": "Fixed", "init_args": {"weights": dict(weights), "unit": unit}}
