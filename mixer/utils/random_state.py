"""Global random generators: saving and restoring their state, and seeding them for one sample or micro-batch."""

import contextlib
import ctypes
import hashlib
import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

# Bytes of a Mersenne Twister's state in memory: 624 words and the place among them.
_TWISTER_BYTES = 4 * 624 + 4


@dataclass(frozen=True)
class RandomState:
    """State of Python's, NumPy's and torch's (CPU) global generators.

    Args:
        python: Python's state.
        numpy: NumPy's state.
        torch: Torch's state.
        numpy_memory: NumPy's state as raw memory, `None` for an unusual generator.
    """

    python: Any
    numpy: Any
    torch: torch.Tensor
    numpy_memory: bytes | None

    @classmethod
    def capture(cls) -> "RandomState":
        """Captures the current state."""
        memory = _numpy_memory()
        return cls(random.getstate(), _numpy_state(memory), torch.get_rng_state(), memory)

    def restore(self) -> None:
        """Restores the captured state."""
        random.setstate(self.python)
        np.random.set_state(self.numpy)  # noqa: NPY002  # users' generators
        torch.set_rng_state(self.torch)

    def is_current(self) -> bool:
        """Whether all three generators are still in the captured state."""
        return (
            self._is_current_in_numpy()
            and torch.get_rng_state().numpy().tobytes() == self.torch.numpy().tobytes()
            and random.getstate() == self.python
        )

    def _is_current_in_numpy(self) -> bool:
        if self.numpy_memory is not None and not self.numpy[3]:
            return _numpy_memory() == self.numpy_memory
        now: Any = np.random.get_state()  # noqa: NPY002
        return now[2:] == self.numpy[2:] and np.array_equal(now[1], self.numpy[1])


class _LastNumpyState(threading.local):
    """NumPy state read last; reading it takes a hundred times as long as comparing memory."""

    memory: bytes | None = None
    state: Any = None


_last = _LastNumpyState()


def _numpy_memory() -> bytes | None:
    generator: Any = np.random.get_bit_generator()  # type: ignore[attr-defined]  # it is documented
    if type(generator) is not np.random.MT19937:
        return None
    return ctypes.string_at(generator.ctypes.state_address, _TWISTER_BYTES)


def _numpy_state(memory: bytes | None) -> Any:
    """Reads NumPy's state, or reuses the last one if nothing can have been drawn since.

    A cached normal number is not in the generator's memory, but it appears only by drawing: if there was none and the
    memory is unchanged, there is none.
    """
    if memory is None or memory != _last.memory or _last.state[3]:
        _last.memory, _last.state = memory, np.random.get_state()  # noqa: NPY002
    return _last.state


def seed_generators(*key: int) -> None:
    """Seeds all three generators.

    Args:
        *key: Integers; different keys give unrelated numbers.
    """
    digest = hashlib.blake2b(repr(tuple(map(int, key))).encode(), digest_size=24).digest()
    words = np.frombuffer(digest, dtype=np.uint32)
    random.seed(int.from_bytes(digest[:8], "little"))
    np.random.seed(words[2:4])  # noqa: NPY002
    # The seed of torch.manual_seed, without what that does to accelerators.
    torch.default_generator.manual_seed(int.from_bytes(digest[16:], "little") >> 1)


@contextlib.contextmanager
def seeded(*key: int) -> Iterator[None]:
    """Seeds the generators for the context, then restores their state.

    Args:
        *key: See `seed_generators`.

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
