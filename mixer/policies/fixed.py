"""Constant shares set by the user."""

from collections.abc import Mapping, Sequence

from mixer.policies.contract import Mixture, Unit, weights_array
from mixer.policies.shared.shares import shares
from mixer.policies.shared.static import StaticPolicy
from mixer.utils.arrays import FloatArray


class Fixed(StaticPolicy):
    """Keeps constant shares throughout the run.

    Args:
        weights: One weight per stream, by name or in order; `None` uses your weights.
        unit: Whether the weights are shares of samples or of tokens.

    Raises:
        ValueError: At the start of the run, if the weights do not fit the streams.
    """

    def __init__(self, weights: Mapping[str, float] | Sequence[float] | None = None, *, unit: Unit = "samples"):
        super().__init__(unit=unit)
        self.weights = weights

    def mixture_weights(self, mixture: Mixture) -> FloatArray:
        """Sorts the weights in the order of the streams; see `StaticPolicy.mixture_weights`."""
        if self.weights is None:
            return mixture.weights
        return shares(weights_array(self.weights, mixture.names, "Fixed"))
