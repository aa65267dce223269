"""The rows of a stream: from the Hugging Face hub, or from files on this machine."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, get_args

import datasets
import huggingface_hub
from datasets.exceptions import DatasetNotFoundError, DatasetsError
from huggingface_hub.errors import HTTPError, OfflineModeIsEnabled  # type: ignore[attr-defined]  # of its HTTP client

from mixer.tools.recipe.data.local import is_pattern, load_files, load_local, matched
from mixer.tools.recipe.data.reading import Reading, TextRows
from mixer.tools.recipe.data.remote import check_urls, load_remote
from mixer.tools.recipe.data.row_files import chosen
from mixer.tools.recipe.data.splits import check_slices
from mixer.tools.recipe.data.suffixes import is_url, suffix_of
from mixer.utils.errors import require, wrong_value
from mixer.utils.files import local_path

_HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


@dataclass(frozen=True)
class DataSource:
    """Data by name or by path.

    Args:
        path: A name on the hub, `org/name`; or a file, a folder or a pattern of files (`data/*.jsonl.gz`): Parquet,
            JSON lines, JSON, CSV, TSV, text, Arrow, a folder of `save_to_disk`; or the URL of such (`s3://`, `gs://`,
            `hf://`, `https://`); or a list of files and patterns. An existing path is never a name. Environment
            variables of local paths are filled in (`$DATA_DIR/rows.jsonl`).
        name: The configuration of a data set on the hub, or of a folder whose README.md has `configs`.
        split: The split to train on, or slices of it (`train[:10%]`). A file or a pattern is one split, `train`; the
            files of a folder are split by their names.
        validation_split: The split to evaluate on; `None` for none.
        revision: Branch, tag or commit of a data set on the hub.
        streaming: Whether to read rows on demand (`datasets.IterableDataset`).
        rows: Unit of a row in a text file (`.txt`), and of a document in the format `Text`: a `line`, a `paragraph`
            (up to an empty line), or the whole file as one `document`.
        columns: The columns to read; `None` for all. Others may differ between files.
        separator: What separates the cells of CSV and TSV, such as `;`; `None` is a comma, and for TSV a tab.
        include: Patterns of the files of a folder, a pattern or a list to read, such as `part/*.txt`; `None` for all.
        exclude: Patterns of files to leave out.
        by: Column of which each value becomes a stream of its own, named by the value, such as `source`; the options of
            the stream hold for each of them. `None` for one stream.
        values: Values of that column to take; `None` for all. With `streaming` they must be given.
        min_samples: Values with fewer rows share one stream, `rare`.
        storage_options: What fsspec needs to open a URL, such as credentials. Values are neither shown nor written.

    Raises:
        InvalidValueError: If `rows` is none of these, or the path has credentials.
    """

    path: list[str] | str
    name: str | None = None
    split: str = "train"
    validation_split: str | None = None
    revision: str | None = None
    streaming: bool = False
    rows: TextRows = "line"
    columns: list[str] | None = None
    separator: str | None = None
    include: list[str] | None = None
    exclude: list[str] = field(default_factory=list)
    by: str | None = None
    values: list[str | int] | None = None
    min_samples: int = 1
    storage_options: dict[str, Any] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        require(self.rows in get_args(TextRows), "rows", f"one of {', '.join(get_args(TextRows))}", self.rows)
        require(self.separator is None or len(self.separator) == 1, "separator", "one character", self.separator)
        has_by = self.by is not None or (self.values is None and self.min_samples == 1)
        require(has_by, "by", "a column, which values and min_samples are of", None)
        check_urls(self._paths, self.storage_options)

    @property
    def _paths(self) -> list[str]:
        return [self.path] if isinstance(self.path, str) else self.path

    @property
    def folder(self) -> str:
        """The folder of the file, or the folder; the present one for data on the hub or behind a URL."""
        path = Path(local_path(self._paths[0]))
        return str(next(folder for folder in (path, *path.parents) if folder.is_dir()))

    def load(self, called: str = "data", numbers: Collection[str] = ()) -> tuple[Any, Any]:
        """Loads the data.

        Args:
            called: Name of the data in logs.
            numbers: Columns of CSV and TSV that become numbers if all their cells are some; others are texts.

        Returns:
            The data set to train on, and the one to evaluate on or `None`.

        Raises:
            FileNotFoundError: If nothing of that name exists.
            ConnectionError: If the hub cannot be reached.
            ValueError: If the split does not exist, or the data cannot be read.
        """
        splits = [split for split in (self.split, self.validation_split) if split is not None]
        paths = [path if is_url(path) else local_path(path) for path in self._paths]
        shared = {own.name: getattr(self, own.name) for own in fields(Reading) if hasattr(self, own.name)}
        reading = Reading(**{**shared, "called": called, "path": ", ".join(self._paths), "numbers": numbers})
        is_here = all(Path(path).exists() or is_pattern(path) for path in paths)
        if is_url(reading.path) or is_here or len(paths) > 1:
            reading.refuse("revision")
        if is_url(reading.path):
            loaded = load_remote(paths, splits, reading)
        elif len(paths) > 1:
            loaded = load_files(matched(paths, reading), splits, reading)
        elif is_here:
            loaded = load_local(paths[0], splits, reading)
        else:
            loaded = self._load_hub(paths[0], splits, reading)
        return loaded[0], loaded[1] if self.validation_split is not None else None

    def _load_hub(self, path: str, splits: Sequence[str], reading: Reading) -> list[Any]:
        missing = f"there is no file or folder {str(Path(path).absolute())!r}"
        if not _HUB_NAME.fullmatch(path) or suffix_of(Path(path)) is not None:
            text = f"{missing}; and {path!r} is no name on the hub, which has the form org/name."
            raise FileNotFoundError(text)
        reading.refuse("rows", "separator", "include", "exclude")
        for split in splits:
            check_slices(split, reading)
        options: dict[str, Any] = {"revision": self.revision, "streaming": self.streaming}
        try:
            loaded = [datasets.load_dataset(path, self.name, split=split, **options) for split in splits]
        except DatasetNotFoundError as error:
            way = "Look the name up (org/name), and log in (hf auth login) if it is private."
            raise FileNotFoundError(f"{missing}, and: {error} {way}") from error
        except (OfflineModeIsEnabled, ConnectionError, HTTPError) as error:
            offline = huggingface_hub.constants.is_offline_mode() or datasets.config.HF_HUB_OFFLINE
            reached = f"the hub cannot be reached ({type(error).__name__})"
            why = "HF_HUB_OFFLINE is set, so the hub is not searched" if offline else reached
            raise ConnectionError(
                f"{missing}, and {why}; {path!r} is not in this machine's cache either. Give the path of a file or "
                "folder, or download it on a machine with a network: "
                f"hf download --repo-type dataset {path} --local-dir FOLDER."
            ) from error
        except (DatasetsError, ValueError, OSError, KeyError, RuntimeError, NotImplementedError) as error:
            cause = str(error).splitlines()[0] if str(error) else type(error).__name__
            asked = f"name={self.name}, split={', '.join(splits)}, revision={self.revision}"
            raise wrong_value("path", f": {path!r} ({asked}) cannot be loaded: {cause}", found=path) from error
        return [chosen(part, self.columns) for part in loaded]
