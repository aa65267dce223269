"""Loaders of data: digits of scikit-learn, NumPy archives, CLINC150, the Hugging Face hub, and files."""

import importlib
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import datasets
import numpy as np
from numpy.typing import NDArray

from mixer.tools.recipe.data.file_list import Patterns
from mixer.tools.recipe.data.formats.labelled import in_order
from mixer.tools.recipe.data.reading import Reading
from mixer.tools.recipe.data.row_files import files_in, read_files
from mixer.tools.recipe.data.source import DataSource
from mixer.tools.recipe.data.suffixes import KNOWN
from mixer.tools.recipe.places import placed
from mixer.utils.arrays import Int64Array
from mixer.utils.errors import InvalidValueError
from mixer.utils.held_out import hold_out as draw_held_out
from mixer.utils.validation import load_json
from tasks.sources.arrays import Arrays
from tasks.sources.checks import require_column


class Splits(NamedTuple):
    """What is trained on and what is evaluated on: `by_class(*digits(), classes_per_task=2)`.

    Attributes:
        train: A map-style data set.
        evaluation: Another.
    """

    train: Any
    evaluation: Any


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
    parts = _hold_out(len(labels), evaluation_share, seed)
    return Splits(*(Arrays(pixels[indices], labels[indices], input_name) for indices in parts))


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
    stored, parts = _read(path, [*train, *evaluation]), []
    for images, labels in (train, evaluation):
        pixels = stored[images].astype(np.float32)
        if stored[images].dtype == np.uint8:
            pixels /= 255.0
        parts.append(Arrays(pixels.reshape(len(pixels), -1) if flatten else pixels, stored[labels], input_name))
    return Splits(*parts)


def _read(path: Path | str, names: list[str]) -> dict[str, NDArray[Any]]:
    try:
        loaded = np.load(path, allow_pickle=False)
        if not isinstance(loaded, np.lib.npyio.NpzFile):
            raise ValueError("it holds one array only")
        with loaded as archive:
            known, stored = archive.files, {name: archive[name] for name in names if name in archive.files}
    except (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise InvalidValueError.about(
            "path", f"must be an archive of np.savez, but {str(path)!r} cannot be read ({error}): fetch it again."
        ) from error
    if missing := [name for name in names if name not in stored]:
        raise InvalidValueError.about(
            "train", f"and evaluation must name arrays of {str(path)!r}, {known}, got {missing}.", found=missing
        )
    return stored


def clinc150(path: Path | str, evaluation_split: str = "test") -> Splits:
    """Loads `data_full.json` and `domains.json` of clinc/oos-eval; out-of-scope requests are left out.

    Args:
        path: The folder with both files.
        evaluation_split: `"test"` or `"val"`.

    Returns:
        Two `datasets.Dataset` with columns `text`, `label` (intents numbered domain by domain: 0 to 14 are those of the
        first) and `domain` (its name).

    Raises:
        FileNotFoundError: If a file is missing.
        ValueError: If there is no such split, or an intent belongs to no domain.
    """
    domains, requests = _read_json(Path(path), "domains.json"), _read_json(Path(path), "data_full.json")
    if evaluation_split not in ("test", "val"):
        raise InvalidValueError.about("evaluation_split", f"must be 'test' or 'val', got {evaluation_split!r}.")
    domain_of = {intent: domain for domain, intents in domains.items() for intent in intents}
    return Splits(*(_as_dataset(requests[split], domain_of) for split in ("train", evaluation_split)))


def _read_json(folder: Path, name: str) -> Any:
    if not (folder / name).is_file():
        raise FileNotFoundError(
            f"clinc150: {str(folder / name)!r} is missing. Give the folder with data_full.json and domains.json of "
            "github.com/clinc/oos-eval/tree/master/data."
        )
    return load_json(folder / name)


def _as_dataset(requests: Sequence[tuple[str, str]], domain_of: dict[str, str]) -> datasets.Dataset:
    unknown = sorted({intent for _, intent in requests} - set(domain_of))
    if unknown:
        raise InvalidValueError.about("domains.json", f"has no domain for the intents {unknown[:5]}.", found=unknown)
    text, intents = datasets.Value("string"), datasets.ClassLabel(names=list(domain_of))
    features = datasets.Features({"text": text, "label": intents, "domain": text})
    rows = [{"text": request, "label": intent, "domain": domain_of[intent]} for request, intent in requests]
    return datasets.Dataset.from_list(rows, features=features)


def hub(
    name: str,
    config: str | None = None,
    *,
    train_split: str = "train",
    evaluation_split: str = "test",
    label_column: str | None = None,
    revision: str | None = None,
) -> Splits:
    """Loads a data set by its name on the hub, or from a folder that is laid out like one.

    Args:
        name: `"owner/name"`, or the folder.
        config: Which of its configurations.
        train_split: What is trained on; slices such as `"train[:80%]"` too.
        evaluation_split: What is evaluated on.
        label_column: Column of the classes, which becomes `label` and is numbered if they are words.
        revision: Commit or tag, so that the data stay the same.

    Returns:
        Two `datasets.Dataset`.

    Raises:
        ConnectionError: If the hub cannot be reached.
        FileNotFoundError: If there is no such data set or revision.
        ValueError: If there is no such configuration, split or column.
    """
    source = DataSource(name, config, train_split, evaluation_split, revision)
    with placed("hub"):
        train, evaluation = source.load("hub", numbers=[label_column or "label"])
    return _with_numbered_labels(Splits(train, evaluation), label_column)


def local_files(
    path: Path | str,
    evaluation: Path | str | None = None,
    *,
    include: Sequence[str] | None = None,
    exclude: Sequence[str] = (),
    label_column: str | None = None,
    evaluation_share: float = 0.2,
    seed: int = 0,
) -> Splits:
    """Loads files of rows.

    Columns of CSV are numbers if no character is lost: 2.5 and 10 are, 2.50 and 010 stay texts. The label column is one
    of numbers if all its cells are some.

    Args:
        path: A file, or a folder with files of one format, which are read in the order of their names.
        evaluation: The same for evaluation; `None` holds a share of the data out.
        include: Patterns of the names of files to read from the folder `path`, such as `part_*.csv`; `None` for all.
        exclude: Patterns of names to leave out of it.
        label_column: Column of the classes, which becomes `label` and is numbered if they are words.
        evaluation_share: Which share is held out if `evaluation` is `None`.
        seed: Seed of that draw.

    Returns:
        Two `datasets.Dataset`.

    Raises:
        FileNotFoundError: If there is nothing at a path.
        ValueError: If a file cannot be read, a format is not known, files differ in format or columns, a pattern
            matches none, or there is no such column.
    """
    loaded = _load(Path(path), label_column, Patterns(include, exclude))
    if evaluation is None:
        splits = Splits(*(loaded.select(part) for part in _hold_out(len(loaded), evaluation_share, seed)))
    else:
        splits = Splits(loaded, _load(Path(evaluation), label_column, Patterns()))
    return _with_numbered_labels(splits, label_column)


def _load(path: Path, label_column: str | None, patterns: Patterns) -> Any:
    files = files_in(path, "local_files") if path.is_dir() else [*filter(Path.is_file, [path])]
    with placed("local_files"):
        files = patterns.chosen(files)
        if not files:
            raise FileNotFoundError(f"there is no file at {str(path)!r}. Give a file or a folder of files {KNOWN}.")
        return read_files(files, Reading("local_files", str(path), numbers=[label_column or "label"], has_types=True))


def _hold_out(num_samples: int, share: float, seed: int) -> tuple[Int64Array, Int64Array]:
    """Draws which samples are held out for evaluation.

    Args:
        num_samples: How many there are.
        share: Which share of them is held out.
        seed: Seed of the draw.

    Returns:
        Indices for training and for evaluation, int64, ascending; none in both.

    Raises:
        ValueError: If one of them would be empty.
    """
    num_held = round(num_samples * share) if 0.0 < share < 1.0 else 0
    if not 0 < num_held < num_samples:
        raise InvalidValueError.about("evaluation_share", f"must leave both parts some of {num_samples}, got {share}.")
    return draw_held_out(num_samples, num_held, seed)


def _with_numbered_labels(splits: Splits, column: str | None) -> Splits:
    """Numbers the classes of both splits alike.

    Args:
        splits: Two Hugging Face data sets.
        column: Name of the column of classes; `None` for data that have none, or have it ready.

    Returns:
        The same with a column `label` of whole numbers; numbers stay what they are. Words are numbered in
        alphabetical order, or in that of the numbers if all are some, and stay known as the names of a `ClassLabel`.

    Raises:
        ValueError: If there is no such column, or values are missing.
    """
    if column is None:
        return splits
    found = [require_column(part, column, called) for called, part in splits._asdict().items()]
    if column != "label":
        if any("label" in part.column_names for part in splits):
            raise InvalidValueError.about("label_column", f"is {column!r} beside a column 'label': rename that.")
        splits = Splits(*(part.rename_column(column, "label") for part in splits))
    if all(values.dtype.kind in "iub" for values in found):
        return splits
    if all(values.dtype.kind in "iubf" and np.all(np.mod(values.astype(float), 1) == 0) for values in found):
        return Splits(*(part.cast_column("label", datasets.Value("int64")) for part in splits))
    words = [[_label_name(value) for value in values.tolist()] for values in found]
    names = in_order({word for part in words for word in part})
    return Splits(*(_with_words(part, own, names) for part, own in zip(splits, words, strict=True)))


def _with_words(dataset: datasets.Dataset, words: list[str], names: list[str]) -> datasets.Dataset:
    kind = datasets.ClassLabel(names=names)
    numbered = dataset.add_column("label, numbered", kind.str2int(words)).remove_columns("label")
    return numbered.rename_column("label, numbered", "label").cast_column("label", kind)


def _label_name(value: Any) -> str:
    """Names a class; a whole number has one name, however it is stored."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
