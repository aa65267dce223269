"""UniMax: even shares, with a cap on the epochs of each stream."""

import math

import numpy as np

from mixer.policies.contract import Mixture, Unit, Weights, weights_array
from mixer.policies.shared.static import StaticPolicy
from mixer.utils.arrays import FloatArray
from mixer.utils.errors import wrong_value
from mixer.utils.ranges import check_range


class UniMax(StaticPolicy):
    """Divides a run's samples evenly, but repeats no stream more than `max_epochs` times.

    UniMax of Chung et al. 2023, arXiv:2304.09151, algorithm 1: from the smallest stream to the largest, each gets an
    even part of the remaining budget, `U_k = min(N n_k, left / streams left)`; the weights are `w_k ∝ U_k`. The paper
    counts characters, tried N of 1, 5 and 10, and found little difference, with 1 the best.

    The budget is that of the whole run: batch size times steps, or the run's epochs times all streams' samples. It is
    an argument as a policy does not know the length of the run. The cap holds for runs up to that length. The published
    algorithm silently exceeds the cap if the budget is more than N epochs of everything; here that is an error.

    Args:
        budget: B: all samples (or tokens) of the run.
        max_epochs: N: largest number of epochs of a stream.
        sizes: n: size of each stream by name or in order, in the unit of the budget; `None` uses the numbers of
            samples.
        unit: Whether budget, sizes and weights count samples or tokens.

    Raises:
        ValueError: If a value is outside its range; at the start of the run if a size is unknown, or the budget is more
            than N epochs of all streams.
    """

    def __init__(self, budget: float, max_epochs: float = 1.0, sizes: Weights | None = None, *, unit: Unit = "samples"):
        super().__init__(unit=unit)
        check_range("budget", budget, 1, math.inf, "it is the number of samples of the run, steps times batch size")
        check_range("max_epochs", max_epochs, 1e-9, math.inf, "1 repeats nothing")
        self.budget = float(budget)
        self.max_epochs = float(max_epochs)
        self.sizes = sizes

    def mixture_weights(self, mixture: Mixture) -> FloatArray:
        """Divides the budget; see `StaticPolicy.mixture_weights`."""
        if len(mixture.names) == 1:
            return mixture.weights
        caps = self.max_epochs * self._sizes_of(mixture)
        if self.budget > caps.sum() * (1.0 + 1e-12):
            least = self.budget * self.max_epochs / caps.sum()
            raise wrong_value(
                "budget", f"={self.budget:g} needs more passes: set max_epochs={least:.4g}, or mix by Proportional."
            )
        shares = _share_out_evenly(caps, self.budget)
        weights: FloatArray = shares / shares.sum()
        return weights

    def _sizes_of(self, mixture: Mixture) -> FloatArray:
        if self.sizes is not None:
            return weights_array(self.sizes, mixture.names, "UniMax sizes")
        if (unit := self.unit) != "samples":
            raise wrong_value("sizes", f"must be given in {unit}, as {{name: {unit}, ...}}; or count in samples.")
        unknown = [name for name, size in zip(mixture.names, mixture.num_samples, strict=True) if size == 0]
        if unknown:
            raise wrong_value("sizes", f"must be given by name: {unknown} are iterable and of unknown size.")
        return mixture.num_samples.astype(np.float64)


def _share_out_evenly(caps: FloatArray, budget: float) -> FloatArray:
    """`[num_streams]`: even parts of the budget, none above its cap."""
    shares, left = np.zeros(len(caps)), budget
    for num_done, k in enumerate(np.argsort(caps, kind="stable")):
        shares[k] = min(caps[k], left / (len(caps) - num_done))
        left -= shares[k]
    return shares
