"""NumPy array types."""

import numpy as np
from numpy.typing import NDArray

BoolArray = NDArray[np.bool_]
Float32Array = NDArray[np.float32]
FloatArray = NDArray[np.float64]
Int64Array = NDArray[np.int64]
UInt64Array = NDArray[np.uint64]
