"""Global random generators: saving and restoring their state, and seeding them for one sample or micro-batch."""

import contextlib
import ctypes
import hashlib
import random
import sys
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch

from mixer.utils.arrays import Int64Array

# Bytes of a Mersenne Twister's state in memory: 624 words and the place among them.
_TWISTER_BYTES = 4 * 624 + 4
_PYTHON: Any = random.getstate.__self__  # type: ignore[attr-defined]  # Python's global generator


class RandomState(NamedTuple):
    """State of Python's, NumPy's and torch's (CPU) global generators.

    Args:
        python: Python's state.
        numpy: NumPy's state.
        torch: Torch's state.
        python_memory: Python's state as raw memory, `None` for an unusual interpreter.
        numpy_memory: NumPy's state as raw memory, `None` for an unusual generator.
        torch_memory: Torch's state as raw memory.
    """

    python: Any
    numpy: Any
    torch: torch.Tensor
    python_memory: bytes | None
    numpy_memory: bytes | None
    torch_memory: bytes

    @classmethod
    def capture(cls) -> "RandomState":
        """Captures the current state."""
        own, numpy_memory, state = _python_memory(), _numpy_memory(), torch.default_generator.get_state()
        return cls(_python_state(own), _numpy_state(numpy_memory), state, own, numpy_memory, _bytes_of(state))

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
            and _bytes_of(torch.default_generator.get_state()) == self.torch_memory
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


class _NumpyMemory(threading.local):
    """Where NumPy's global generator keeps its state."""

    generator: Any = None
    view: Any = None


_last, _numpy = _LastStates(), _NumpyMemory()


def _place_in_memory() -> int | None:
    """Returns the address of Python's generator state if it is where CPython keeps it: behind the object's head."""
    if sys.implementation.name != "cpython":
        return None
    place = id(_PYTHON) + object.__basicsize__
    *words, number = random.getstate()[1]
    found = np.frombuffer(ctypes.string_at(place, _TWISTER_BYTES), dtype=np.uint32)
    return place if found.tolist() == [number, *words] else None


def _view(place: int | None) -> Any:
    return None if place is None else (ctypes.c_char * _TWISTER_BYTES).from_address(place)


_PYTHON_VIEW = _view(_place_in_memory())


def _python_memory() -> bytes | None:
    memory: bytes | None = None if _PYTHON_VIEW is None else _PYTHON_VIEW.raw
    return memory


def _numpy_memory() -> bytes | None:
    generator: Any = np.random.get_bit_generator()  # type: ignore[attr-defined]  # it is documented
    if generator is not _numpy.generator:
        is_twister = type(generator) is np.random.MT19937
        _numpy.generator, _numpy.view = generator, _view(generator.ctypes.state_address if is_twister else None)
    memory: bytes | None = None if _numpy.view is None else _numpy.view.raw
    return memory


def _bytes_of(state: torch.Tensor) -> bytes:
    return ctypes.string_at(state.data_ptr(), state.numel())


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


def drawn_places(count: int, most: int, *key: int) -> Int64Array:
    """Draws some places of an ordered list: evenly spread ones may all be alike, where kinds of rows take turns.

    Args:
        count: How many places there are.
        most: How many are wanted; of no more all are taken.
        *key: Integers that determine the draw.

    Returns:
        int64 `[min(count, most)]`, ascending.
    """
    if count <= most:
        return np.arange(count, dtype=np.int64)
    random = np.random.default_rng([number % 2**63 for number in key])
    return np.sort(random.choice(count, most, replace=False, shuffle=False)).astype(np.int64)


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
