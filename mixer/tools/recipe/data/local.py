"""Local data: a file, a pattern of files, a folder of files, or a folder of `save_to_disk`."""

import glob
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import datasets
import huggingface_hub
from yaml import YAMLError

from mixer.tools.recipe.data.reading import Reading
from mixer.tools.recipe.data.row_files import chosen, files_in, read_files, rows_of, telling
from mixer.tools.recipe.data.splits import take_split
from mixer.tools.recipe.data.suffixes import BUILDERS, KNOWN, SEPARATORS, suffix_of
from mixer.utils.errors import wrong_value

# Names of files and folders for each split, as on the hub.
_SPLIT_WORDS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "val", "dev"), "validation"),
    **dict.fromkeys(("test", "testing", "eval", "evaluation"), "test"),
}
# Names of sharded files tell the split exactly: train_sft-00000-of-00003.parquet.
_SHARD = re.compile(r"(\w+(?:\.\w+)*)-\d{5}-of-\d{5}\b")
_PATTERN = re.compile(r"[*?\[]")
# Options of a configuration that are not about how a file is read.
_PLAIN = ("name", "version", "data_dir", "data_files", "description", "features", "sep", "delimiter")


def is_pattern(path: str) -> bool:
    """Returns whether a path that does not exist is a pattern: it has `*`, `?` or `[`."""
    return _PATTERN.search(path) is not None and not Path(path).exists()


def load_local(path: str, splits: Sequence[str], reading: Reading) -> list[Any]:
    """Loads splits of local data.

    Args:
        path: An existing file or folder, or a pattern (`data/*.jsonl`, `**` for subfolders).
        splits: Names of splits, or slices.
        reading: How to read rows.

    Returns:
        One data set per split.

    Raises:
        FileNotFoundError: If a pattern matches nothing, or a folder has no file of a known format.
        ValueError: If files cannot be read, or the split or configuration does not exist.
    """
    parts, load = splits_of(path, reading)
    return [take_split(split, list(parts), load, reading) for split in splits]


def splits_of(path: str, reading: Reading) -> tuple[Iterable[str], Callable[[str], Any]]:
    """Finds the splits of local data.

    Args:
        path: See `load_local`, as for the errors.
        reading: How to read rows.

    Returns:
        Their names, and how to load one.
    """
    folder = Path(path)
    is_saved = any((folder / file).is_file() for file in ("state.json", "dataset_dict.json"))
    if is_saved:
        reading.refuse("name", "rows", "separator", "include", "exclude")
        saved = _load_saved(folder, reading)
        return saved, saved.__getitem__
    if _has_configurations(folder):
        reading.refuse("include", "exclude")
        return _configured(folder, reading)
    reading.refuse("name")
    files = _files_by_split(path, reading)
    return files, lambda part: read_files(files[part], reading)


def load_files(files: Sequence[Path | str], splits: Sequence[str], reading: Reading) -> list[Any]:
    """Loads files as one split, `train`, or slices of it; see `load_local`. A text is the URL of a file."""
    reading.refuse("name")
    own = reading.patterns.chosen(files)
    return [take_split(split, ["train"], lambda _: read_files(own, reading), reading) for split in splits]


def matched(patterns: Sequence[str], reading: Reading) -> list[Path]:
    """Lists the files of several paths and patterns, in this order.

    Raises:
        FileNotFoundError: If one of them matches nothing.
        ValueError: If one of them is a folder.
    """
    folders = [pattern for pattern in patterns if Path(pattern).is_dir()]
    if folders:
        text = f"{folders[0]!r} in a list is a folder: give its files, as '{folders[0]}/*.jsonl'."
        raise wrong_value("path", text, found=folders[0])
    whole = replace(reading, include=None, exclude=[])  # patterns choose among all of them
    return [file for pattern in patterns for file in _files_by_split(pattern, whole)["train"]]


def _has_configurations(folder: Path) -> bool:
    card = folder / "README.md"
    if not card.is_file():
        return False
    try:
        return bool((huggingface_hub.metadata_load(card) or {}).get("configs"))
    except ValueError:  # lines between rules are no header
        return False
    except YAMLError as error:
        text = f"The header of {str(card)!r} cannot be read as YAML: {error}"
        raise wrong_value("path", text, found=str(card)) from error


def _configured(folder: Path, reading: Reading) -> tuple[Any, Callable[[str], Any]]:
    """Finds the splits of a configuration in a folder's README.md, as `datasets` does, and how to load one."""
    try:
        builder = datasets.load_dataset_builder(str(folder), reading.name)
    except (ValueError, OSError) as error:
        text = f"The configurations (configs) in {str(folder / 'README.md')!r}: {' '.join(str(error).split())}"
        raise wrong_value("name", text, found=reading.name) from error

    def load(split: str) -> Any:
        if builder.name not in (*BUILDERS.values(), "json", "csv") or not _is_plain(builder.config):
            with telling(reading.called):
                return chosen(rows_of(builder, split, reading.streaming), reading.columns)
        files = [Path(file) for file in builder.config.data_files[split]]
        separator = getattr(builder.config, "sep", None)
        is_usual = separator in (None, SEPARATORS.get(suffix_of(files[0]) or ""))
        rows = read_files(files, reading if is_usual else replace(reading, separator=separator))
        with telling(reading.called):
            return _with_types(rows, builder.info.features or {})

    return builder.config.data_files or {}, load


def _with_types(rows: Any, declared: Mapping[str, Any]) -> Any:
    """Gives columns of single values the types that a README.md declares, such as classes."""
    single = (datasets.Value, datasets.ClassLabel)
    types = {
        name: declared[name] if isinstance(kind, single) and isinstance(declared.get(name), single) else kind
        for name, kind in rows.features.items()
    }
    return rows if types == rows.features else rows.cast(datasets.Features(types))


def _is_plain(config: Any) -> bool:
    default = type(config)()
    options = (option.name for option in fields(config) if option.name not in _PLAIN)
    return all(getattr(config, option) == getattr(default, option) for option in options)


def _load_saved(folder: Path, reading: Reading) -> dict[str, Any]:
    try:
        saved: Any = datasets.load_from_disk(str(folder))
    except (OSError, ValueError, KeyError, TypeError) as error:
        text = f"The folder {str(folder)!r} cannot be read as one of save_to_disk ({error}). Save the data set again, "
        raise wrong_value("path", f"{text}or give files.", found=str(folder)) from error
    parts = dict(saved) if isinstance(saved, datasets.DatasetDict) else {"train": saved}
    parts = {name: chosen(part, reading.columns) for name, part in parts.items()}
    return {name: part.to_iterable_dataset() for name, part in parts.items()} if reading.streaming else parts


def _files_by_split(path: str, reading: Reading) -> dict[str, list[Path]]:
    place, shown = Path(path), repr(str(Path(path).absolute()))
    if place.is_dir():
        files = files_in(place, reading.called, recursive=True)
        if not files:
            text = f"the folder {shown} has no file that ends in {KNOWN}, and is none of save_to_disk."
            raise FileNotFoundError(text)
        return _by_names(reading.patterns.chosen(files), place)
    matched = [place] if place.is_file() else sorted(Path(name) for name in glob.glob(path, recursive=True))
    files = [file for file in matched if file.is_file()]
    if not files:
        raise FileNotFoundError(f"the pattern {shown} matches no file. '**' matches subfolders.")
    return {"train": reading.patterns.chosen(files)}


def _by_names(files: Sequence[Path], folder: Path) -> dict[str, list[Path]]:
    """Assigns files to splits by the words in their paths; without any such word, all are `train`."""
    by_split: dict[str, list[Path]] = {}
    unnamed: list[Path] = []
    for file in files:
        if shard := _SHARD.match(file.name):
            by_split.setdefault(shard[1], []).append(file)
            continue
        words = re.split(r"[^a-z]+", str(file.relative_to(folder)).lower())
        split = next((_SPLIT_WORDS[word] for word in words if word in _SPLIT_WORDS), None)
        (unnamed if split is None else by_split.setdefault(split, [])).append(file)
    if not by_split:
        return {"train": unnamed}
    if unnamed:
        examples = ", ".join(f"{split}: {own[0].name!r}" for split, own in by_split.items())
        raise wrong_value(
            "path",
            f"Of the files in {str(folder)!r} some name a split ({examples}) and some do not, such as "
            f"{unnamed[0].name!r}. Rename those, leave them out (data.exclude), or give a pattern of the right files.",
            found=unnamed[0].name,
        )
    return by_split
