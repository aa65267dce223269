"""Shares by data set size."""

from mixer.policies.contract import Unit
from mixer.policies.temperature import Temperature


class Proportional(Temperature):
    """Samples by size: `w_k ∝ n_k`, as training on the concatenated data sets does on average.

    Args:
        unit: Whether the weights are shares of samples or of tokens.
    """

    def __init__(self, *, unit: Unit = "samples"):
        super().__init__(temperature=1.0, unit=unit)
