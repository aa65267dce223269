"""Global random generators: saving and restoring their state, and seeding them for one sample or micro-batch."""

import contextlib
import ctypes
import hashlib
import random
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

# Bytes of a Mersenne Twister's state in memory: 624 words and the place among them.
_TWISTER_BYTES = 4 * 624 + 4
_PYTHON: Any = random.getstate.__self__  # type: ignore[attr-defined]  # Python's global generator


@dataclass(frozen=True)
class RandomState:
    """State of Python's, NumPy's and torch's (CPU) global generators.

    Args:
        python: Python's state.
        numpy: NumPy's state.
        torch: Torch's state.
        python_memory: Python's state as raw memory, `None` for an unusual interpreter.
        numpy_memory: NumPy's state as raw memory, `None` for an unusual generator.
    """

    python: Any
    numpy: Any
    torch: torch.Tensor
    python_memory: bytes | None
    numpy_memory: bytes | None

    @classmethod
    def capture(cls) -> "RandomState":
        """Captures the current state."""
        own, numpy_memory = _python_memory(), _numpy_memory()
        return cls(_python_state(own), _numpy_state(numpy_memory), torch.get_rng_state(), own, numpy_memory)

    def restore(self) -> None:
        """Restores the captured state."""
        random.setstate(self.python)
        np.random.set_state(self.numpy)  # noqa: NPY002  # users' generators
        torch.set_rng_state(self.torch)

    def is_current(self) -> bool:
        """Whether all three generators are still in the captured state."""
        return (
            self._is_current_in_python()
            and self._is_current_in_numpy()
            and torch.get_rng_state().numpy().tobytes() == self.torch.numpy().tobytes()
        )

    def _is_current_in_python(self) -> bool:
        if self.python_memory is not None:
            return _python_memory() == self.python_memory and _PYTHON.gauss_next == self.python[2]
        return bool(random.getstate() == self.python)

    def _is_current_in_numpy(self) -> bool:
        if self.numpy_memory is not None and not self.numpy[3]:
            return _numpy_memory() == self.numpy_memory
        now: Any = np.random.get_state()  # noqa: NPY002
        return now[2:] == self.numpy[2:] and np.array_equal(now[1], self.numpy[1])


class _LastStates(threading.local):
    """States read last, and the memory that they were in; reading one takes ten times as long as comparing memory."""

    python_memory: bytes | None = None
    numpy_memory: bytes | None = None
    python: Any = None
    numpy: Any = None


_last = _LastStates()


def _place_in_memory() -> int | None:
    """Returns the address of Python's generator state if it is where CPython keeps it: behind the object's head."""
    if sys.implementation.name != "cpython":
        return None
    place = id(_PYTHON) + object.__basicsize__
    *words, number = random.getstate()[1]
    found = np.frombuffer(ctypes.string_at(place, _TWISTER_BYTES), dtype=np.uint32)
    return place if found.tolist() == [number, *words] else None


_PYTHON_PLACE = _place_in_memory()


def _python_memory() -> bytes | None:
    return None if _PYTHON_PLACE is None else ctypes.string_at(_PYTHON_PLACE, _TWISTER_BYTES)


def _numpy_memory() -> bytes | None:
    generator: Any = np.random.get_bit_generator()  # type: ignore[attr-defined]  # it is documented
    if type(generator) is not np.random.MT19937:
        return None
    return ctypes.string_at(generator.ctypes.state_address, _TWISTER_BYTES)


def _python_state(memory: bytes | None) -> Any:
    """Reads Python's state, or reuses the last one if nothing was drawn since; the cached normal number is beside."""
    if memory is None or memory != _last.python_memory or _PYTHON.gauss_next != _last.python[2]:
        _last.python_memory, _last.python = memory, random.getstate()
    return _last.python


def _numpy_state(memory: bytes | None) -> Any:
    """Reads NumPy's state, or reuses the last one if nothing can have been drawn since.

    A cached normal number is not in the generator's memory, but it appears only by drawing: if there was none and the
    memory is unchanged, there is none.
    """
    if memory is None or memory != _last.numpy_memory or _last.numpy[3]:
        _last.numpy_memory, _last.numpy = memory, np.random.get_state()  # noqa: NPY002
    return _last.numpy


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
