"""Mixture core, independent of the model: streams, planner, clock, weights, batch size and controller."""

from typing import TYPE_CHECKING

from mixer.utils.lazy_imports import lazy_names

if TYPE_CHECKING:
    from mixer.mixture.clock import Budget
    from mixer.mixture.controller import Mixing
    from mixer.mixture.groups import Grouping
    from mixer.mixture.permutation import Order
    from mixer.mixture.stream import Stream
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "mixer.mixture.clock": ["Budget"],
            "mixer.mixture.controller": ["Mixing"],
            "mixer.mixture.groups": ["Grouping"],
            "mixer.mixture.permutation": ["Order"],
            "mixer.mixture.stream": ["Stream"],
        },
    )

__all__ = ["Budget", "Grouping", "Mixing", "Order", "Stream"]
