"""Shares that the user gives."""

from collections.abc import Mapping, Sequence

from mixer.policies.contract import Mixture, Unit, weights_array
from mixer.policies.shared.static import StaticPolicy
from mixer.utils.arrays import FloatArray


class Fixed(StaticPolicy):
    """The given shares throughout the run.

    Args:
        weights: One weight a stream, by name or in the order of the streams; `None` takes the streams' own weights.
        unit: Whether the weights are shares of samples or of tokens.

    Raises:
        ValueError: At the start of the run, if the weights do not fit the streams.
    """

    def __init__(self, weights: Mapping[str, float] | Sequence[float] | None = None, *, unit: Unit = "samples"):
        super().__init__(unit=unit)
        self.weights = weights

    def mixture_weights(self, mixture: Mixture) -> FloatArray:
        """Brings the given weights into the order of the streams; see `StaticPolicy.mixture_weights`."""
        if self.weights is None:
            return mixture.weights
        given = weights_array(self.weights, mixture.names, "Fixed")
        weights: FloatArray = given / given.sum()
        return weights
