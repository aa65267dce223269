"""Hugging Face data sets: of the hub, by name, and of files: Parquet, JSON lines, JSON, CSV, TSV, text, Arrow."""

from pathlib import Path

import datasets

from mixer.recipe.data.files import KNOWN, files_in, read_files
from mixer.recipe.data.source import load_hub
from tasks.sources.splits import Splits, hold_out, with_numbered_labels


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
    train, evaluation = load_hub(name, [train_split, evaluation_split], "hub", config, revision)
    return with_numbered_labels(Splits(train, evaluation), label_column)


def local_files(
    path: Path | str,
    evaluation: Path | str | None = None,
    *,
    label_column: str | None = None,
    evaluation_share: float = 0.2,
    seed: int = 0,
) -> Splits:
    """Loads files through `datasets.load_dataset`.

    Args:
        path: A file, or a folder with files of one format, which are read in the order of their names.
        evaluation: The same for evaluation; `None` holds a share of the data out.
        label_column: Column of the classes, which becomes `label` and is numbered if they are words.
        evaluation_share: Which share is held out if `evaluation` is `None`.
        seed: Seed of that draw.

    Returns:
        Two `datasets.Dataset`.

    Raises:
        FileNotFoundError: If there is nothing at a path.
        ValueError: If a file cannot be read, a format is not known, a folder mixes formats, or there is no such column.
    """
    loaded = _load(Path(path))
    if evaluation is None:
        splits = Splits(*(loaded.select(part) for part in hold_out(len(loaded), evaluation_share, seed)))
    else:
        splits = Splits(loaded, _load(Path(evaluation)))
    return with_numbered_labels(splits, label_column)


def _load(path: Path) -> datasets.Dataset:
    files = files_in(path) if path.is_dir() else [path] if path.is_file() else []
    if not files:
        raise FileNotFoundError(
            f"local_files: there is no file at {str(path)!r}. Give a file or a folder of files {KNOWN}."
        )
    return read_files(files, "local_files", path)
