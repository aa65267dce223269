"""NumPy array types, and sums of a few numbers."""

import numpy as np
from numpy.typing import NDArray

BoolArray = NDArray[np.bool_]
Float32Array = NDArray[np.float32]
FloatArray = NDArray[np.float64]
Int64Array = NDArray[np.int64]
UInt64Array = NDArray[np.uint64]
_FEW = 64


def whole_sum(numbers: Int64Array) -> int:
    """Sums whole numbers; a few of them in Python, where a call of NumPy takes longer."""
    return sum(numbers.tolist()) if len(numbers) <= _FEW else int(numbers.sum())
