"""Where the rows of a stream come from: the hub, or files on this machine."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from mixer.recipe.data.files import TextRows, suffix_of
from mixer.recipe.data.hub import is_hub_name, load_hub
from mixer.recipe.data.local import is_pattern, load_local


@dataclass(frozen=True)
class DataSource:
    """Data by name or by path.

    Args:
        path: A name on the hub, `org/name`; or a file, a folder or a pattern of files (`data/*.jsonl.gz`): Parquet,
            JSON lines, JSON, CSV, TSV, text, Arrow, a folder of `save_to_disk`. What is there as a path is no name.
        name: The configuration, of data on the hub.
        split: What is trained on; slices too (`train[:10%]`). A file or a pattern is one split, `train`; the files of a
            folder are told apart by their names.
        validation_split: What is evaluated on; `None` for nothing.
        revision: Branch, tag or commit, of data on the hub.
        streaming: Whether rows are read as they are asked for (`datasets.IterableDataset`).
        rows: What of a text file (`.txt`) is a row, and a document of the format `Text`: a `line`, a `paragraph` (up to
            an empty line), or the whole file as one `document`.

    Raises:
        ValueError: If `rows` is none of these.
    """

    path: str
    name: str | None = None
    split: str = "train"
    validation_split: str | None = None
    revision: str | None = None
    streaming: bool = False
    rows: TextRows = "line"

    def __post_init__(self) -> None:
        if self.rows not in get_args(TextRows):
            raise ValueError(f"data: rows must be one of {', '.join(get_args(TextRows))}, got {self.rows!r}.")

    def load(self, called: str) -> tuple[Any, Any]:
        """Loads the data.

        Args:
            called: What to call them in errors.

        Returns:
            What is trained on, and what is evaluated on or `None`.

        Raises:
            FileNotFoundError: If there is nothing of that name.
            ConnectionError: If the hub cannot be reached.
            ValueError: If there is no such split, or it cannot be read.
        """
        splits = [split for split in (self.split, self.validation_split) if split is not None]
        path = os.path.expanduser(self.path)
        is_local = Path(path).exists() or is_pattern(path)
        is_name = is_hub_name(path) and suffix_of(Path(path)) is None
        if not is_local and not is_name:
            raise FileNotFoundError(
                f"{called}: there is no file or folder {str(Path(path).absolute())!r}; and {self.path!r} is no name on "
                "the hub, which has the form org/name."
            )
        if is_local:
            self._check_is_of_no_hub(called)
            loaded = load_local(path, splits, called, self.streaming, self.rows)
        elif self.rows != "line":
            raise ValueError(f"{called}: rows={self.rows!r} is for text files on this machine: leave it out.")
        else:
            loaded = load_hub(self.path, splits, called, self.name, self.revision, self.streaming)
        return loaded[0], loaded[1] if self.validation_split is not None else None

    def _check_is_of_no_hub(self, called: str) -> None:
        given = [option for option in ("name", "revision") if getattr(self, option) is not None]
        if given:
            raise ValueError(
                f"{called}: {given[0]}={getattr(self, given[0])!r} is for data on the hub, and {self.path!r} is a path "
                "here. Leave it out, or give the file or folder that is meant."
            )
