"""Images and labels in a NumPy archive."""

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.sources.arrays import Arrays
from tasks.sources.splits import Splits


def npz(
    path: Path | str,
    train: tuple[str, str] = ("train_images", "train_labels"),
    evaluation: tuple[str, str] = ("test_images", "test_labels"),
    *,
    flatten: bool = True,
    input_name: str = "pixel_values",
) -> Splits:
    """Loads an archive such as `mnist.npz`; pixels that are bytes are scaled to [0, 1].

    Args:
        path: The file.
        train: Names of the arrays of images and labels for training.
        evaluation: Names of those for evaluation.
        flatten: Whether an image becomes one row of pixels.
        input_name: What the model calls its inputs.

    Returns:
        Two `Arrays`: inputs float32 `[num_samples, num_pixels]`, or of the images' own shape.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it cannot be read or lacks one of the arrays, or images and labels do not fit.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"npz: there is no file {str(path)!r}. Give the path of an archive of np.savez.")
    known, stored = _read(path, [*train, *evaluation])
    missing = [name for name in (*train, *evaluation) if name not in stored]
    if missing:
        raise ValueError(
            f"npz: {str(path)!r} has no arrays {missing}, it has {known}. Name them: "
            "npz(path, train=(IMAGES, LABELS), evaluation=(IMAGES, LABELS))."
        )
    return Splits(*(_as_arrays(stored, *names, flatten, input_name) for names in (train, evaluation)))


def _read(path: Path | str, names: list[str]) -> tuple[list[str], dict[str, NDArray[Any]]]:
    """Gives the names of all arrays, and those of these names."""
    try:
        loaded = np.load(path, allow_pickle=False)
        if not isinstance(loaded, np.lib.npyio.NpzFile):
            raise ValueError("it holds one array only")
        with loaded as archive:
            return archive.files, {name: archive[name] for name in names if name in archive.files}
    except (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(
            f"npz: {str(path)!r} cannot be read as an archive of np.savez ({error}). It is cut off or another file, or "
            "holds Python objects: fetch it again, or write it with np.savez(path, train_images=..., ...)."
        ) from error


def _as_arrays(arrays: dict[str, NDArray[Any]], images: str, labels: str, flatten: bool, input_name: str) -> Arrays:
    stored = arrays[images]
    pixels = stored.astype(np.float32)
    if stored.dtype == np.uint8:
        pixels /= 255.0
    return Arrays(pixels.reshape(len(pixels), -1) if flatten else pixels, arrays[labels], input_name)
