"""Images and labels in a NumPy archive."""

from pathlib import Path

import numpy as np

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
        ValueError: If it lacks one of the arrays, or images and labels do not fit.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"npz: there is no file {str(path)!r}. Give the path of an archive of np.savez.")
    with np.load(path, allow_pickle=False) as archive:
        missing = [name for name in (*train, *evaluation) if name not in archive.files]
        if missing:
            raise ValueError(
                f"npz: {str(path)!r} has no arrays {missing}, it has {archive.files}. Name them: "
                "npz(path, train=(IMAGES, LABELS), evaluation=(IMAGES, LABELS))."
            )
        return Splits(*(_as_arrays(archive, *names, flatten, input_name) for names in (train, evaluation)))


def _as_arrays(archive: np.lib.npyio.NpzFile, images: str, labels: str, flatten: bool, input_name: str) -> Arrays:
    stored = archive[images]
    pixels = stored.astype(np.float32)
    if stored.dtype == np.uint8:
        pixels /= 255.0
    return Arrays(pixels.reshape(len(pixels), -1) if flatten else pixels, archive[labels], input_name)
