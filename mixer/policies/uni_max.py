"""Even shares, as far as a cap on the passes over each stream allows: UniMax."""

import math

import numpy as np

from mixer.policies.contract import Mixture, Unit, Weights, weights_array
from mixer.policies.shared.ranges import check_range
from mixer.policies.shared.static import StaticPolicy
from mixer.utils.arrays import FloatArray


class UniMax(StaticPolicy):
    """Shares a run's samples out evenly, but no stream is passed over more often than `max_epochs` times.

    UniMax of Chung et al. 2023, arXiv:2304.09151, algorithm 1: from the smallest stream to the largest, each gets an
    even part of what is left of the budget, `U_k = min(N n_k, left / streams left)`; the weights are `w_k ∝ U_k`. The
    paper counts characters, tried N of 1, 5 and 10, and found little between them, 1 being the best.

    The budget is the whole run's: samples of a batch times steps, or the run's epochs times all streams' samples. A
    policy knows the sizes of the streams but not how long the run is, so it has to be given. The cap holds as
    long as the run is no longer than that. The published algorithm exceeds the cap without a word where the budget is
    more than N passes over everything; here that is an error.

    Args:
        budget: B: samples (or tokens) that the run draws in all.
        max_epochs: N: most passes over a stream.
        sizes: n: size of each stream by name or in order, in the unit of the budget; `None` takes the numbers of
            samples.
        unit: Whether budget, sizes and weights count samples or tokens.

    Raises:
        ValueError: If a value is outside its range; at the start of the run if a size is not known, or the budget is
            more than N passes over all streams.
    """

    def __init__(self, budget: float, max_epochs: float = 1.0, sizes: Weights | None = None, *, unit: Unit = "samples"):
        super().__init__(unit=unit)
        check_range("budget", budget, 1, math.inf, "it is what the run draws in all, steps times batch size")
        check_range("max_epochs", max_epochs, 1e-9, math.inf, "1 repeats nothing")
        self.budget = float(budget)
        self.max_epochs = float(max_epochs)
        self.sizes = sizes

    def mixture_weights(self, mixture: Mixture) -> FloatArray:
        """Shares the budget out; see `StaticPolicy.mixture_weights`."""
        if len(mixture.names) == 1:
            return mixture.weights
        caps = self.max_epochs * self._sizes_of(mixture)
        if self.budget > caps.sum() * (1.0 + 1e-12):
            raise ValueError(
                f"UniMax: a budget of {self.budget:g} {self.unit} is more than {self.max_epochs:g} passes over all "
                f"streams, which have {caps.sum() / self.max_epochs:g}; give max_epochs of "
                f"{self.budget * self.max_epochs / caps.sum():.4g} or more, or mix by Proportional."
            )
        shares = _share_out_evenly(caps, self.budget)
        weights: FloatArray = shares / shares.sum()
        return weights

    def _sizes_of(self, mixture: Mixture) -> FloatArray:
        if self.sizes is not None:
            return weights_array(self.sizes, mixture.names, "UniMax sizes")
        if self.unit == "tokens":
            raise ValueError(
                "UniMax in tokens needs sizes in tokens: give sizes={name: tokens, ...}, or count in samples."
            )
        unknown = [name for name, size in zip(mixture.names, mixture.num_samples, strict=True) if size == 0]
        if unknown:
            raise ValueError(
                f"UniMax weighs streams by size, but {unknown} are iterable: nobody knows theirs. Give "
                "sizes={name: samples, ...}."
            )
        return mixture.num_samples.astype(np.float64)


def _share_out_evenly(caps: FloatArray, budget: float) -> FloatArray:
    """`[num_streams]`: even parts of the budget, none above its cap."""
    shares, left = np.zeros(len(caps)), budget
    for num_done, k in enumerate(np.argsort(caps, kind="stable")):
        shares[k] = min(caps[k], left / (len(caps) - num_done))
        left -= shares[k]
    return shares
