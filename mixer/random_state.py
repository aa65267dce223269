"""The state of the process's random generators, to go back to."""

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch


@dataclass(frozen=True)
class RandomState:
    """What Python's, NumPy's and torch's (CPU) global generators will draw next.

    Args:
        python: Python's state.
        numpy: NumPy's state.
        torch: Torch's state.
    """

    python: Any
    numpy: Any
    torch: torch.Tensor

    @classmethod
    def capture(cls) -> "RandomState":
        """Notes the present state.

        Returns:
            The state.
        """
        return cls(random.getstate(), np.random.get_state(), torch.get_rng_state())  # noqa: NPY002  # users' generators

    def restore(self) -> None:
        """Goes back to the noted state."""
        random.setstate(self.python)
        np.random.set_state(self.numpy)  # noqa: NPY002
        torch.set_rng_state(self.torch)
