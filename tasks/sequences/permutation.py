"""Features in another order (Goodfellow et al. 2013, permuted MNIST)."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


class Permutation:
    """Brings the features of each sample into another order, the same for all.

    Args:
        seed: Seed of the order, or several numbers that make one.
        num_features: Number of features of a sample.

    Raises:
        ValueError: If there is no feature.

    Example:
        >>> bool((Permutation(0, 5)(torch.arange(5).reshape(1, 5)).sort().values == torch.arange(5)).all())
        True
    """

    def __init__(self, seed: int | Sequence[int], num_features: int):
        if num_features < 1:
            raise ValueError(f"Permutation: num_features must be 1 or more, got {num_features}.")
        self.order = torch.from_numpy(np.random.default_rng(seed).permutation(num_features))

    def __call__(self, inputs: Tensor) -> Tensor:
        """Permutes.

        Args:
            inputs: `[count, ...]` with `num_features` entries a sample.

        Returns:
            The same shape.

        Raises:
            ValueError: If a sample has another number of features.
        """
        flat = inputs.flatten(1)
        if flat.shape[1] != len(self.order):
            raise ValueError(f"This Permutation is of {len(self.order)} features, got inputs with {flat.shape[1]}.")
        return flat.index_select(1, self.order).reshape(inputs.shape)
