"""The process's random generators: noting and restoring their state, and seeding them for one sample or micro-batch."""

import contextlib
import hashlib
import random
from collections.abc import Iterator
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

    def is_current(self) -> bool:
        """Says whether nothing was drawn since.

        Returns:
            Whether all three generators are in the noted state.
        """
        now: Any = np.random.get_state()  # noqa: NPY002
        return (
            torch.equal(self.torch, torch.get_rng_state())
            and now[2:] == self.numpy[2:]
            and np.array_equal(now[1], self.numpy[1])
            and random.getstate() == self.python
        )


def seed_generators(*key: int) -> None:
    """Seeds all three generators by a key.

    Args:
        *key: Whole numbers that say what is to be drawn for: another key gives unrelated numbers.
    """
    digest = hashlib.blake2b(repr(tuple(map(int, key))).encode(), digest_size=24).digest()
    words = np.frombuffer(digest, dtype=np.uint32)
    random.seed(int.from_bytes(digest[:8], "little"))
    np.random.seed(words[2:4])  # noqa: NPY002
    # The seed of torch.manual_seed, without what that does to accelerators.
    torch.default_generator.manual_seed(int.from_bytes(digest[16:], "little") >> 1)


@contextlib.contextmanager
def seeded(*key: int) -> Iterator[None]:
    """Runs what stands inside on generators seeded by a key, and puts the surrounding state back.

    Args:
        *key: See `seed_generators`.

    Yields:
        Nothing.

    Example:
        >>> with seeded(7, 1):
        ...     first = random.random()
        >>> with seeded(7, 1):
        ...     assert first == random.random()
    """
    state = RandomState.capture()
    seed_generators(*key)
    try:
        yield
    finally:
        state.restore()
