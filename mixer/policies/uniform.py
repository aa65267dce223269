"""Equal shares."""

import numpy as np

from mixer.policies.contract import Mixture
from mixer.policies.shared.static import StaticPolicy
from mixer.utils.arrays import FloatArray


class Uniform(StaticPolicy):
    """Samples all streams equally: `w_k = 1/K`.

    With exact counts this is stratified sampling, a baseline that is hard to beat in careful comparisons (Aioli; Chen
    et al. 2024, arXiv:2411.05735).
    """

    def mixture_weights(self, mixture: Mixture) -> FloatArray:
        """Computes `1/K` for every stream; see `StaticPolicy.mixture_weights`."""
        return np.full(len(mixture.names), 1.0 / len(mixture.names))
