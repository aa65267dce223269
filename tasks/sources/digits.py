"""Handwritten digits that come with scikit-learn: real images, nothing is downloaded."""

import importlib

import numpy as np

from tasks.sources.arrays import Arrays
from tasks.sources.splits import Splits, hold_out


def digits(evaluation_share: float = 0.2, seed: int = 0, input_name: str = "pixel_values") -> Splits:
    """Loads 1,797 images of 8×8 pixels in ten classes (UCI ML hand-written digits).

    Args:
        evaluation_share: Which share of them is held out.
        seed: Seed of the split.
        input_name: What the model calls its inputs.

    Returns:
        Two `Arrays`: inputs float32 `[num_samples, 64]` in [0, 1].

    Raises:
        ModuleNotFoundError: If scikit-learn is not installed.
        ValueError: If a split would be empty.
    """
    try:
        loaded = importlib.import_module("sklearn.datasets").load_digits()
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "The digits come with scikit-learn, which is not installed: pip install scikit-learn.", name=error.name
        ) from error
    pixels, labels = (loaded.data / 16.0).astype(np.float32), loaded.target
    train, evaluation = (
        Arrays(pixels[indices], labels[indices], input_name)
        for indices in hold_out(len(labels), evaluation_share, seed)
    )
    return Splits(train, evaluation)
