"""Where the rows of a stream come from: the hub, or files on this machine."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mixer.data.hub import is_hub_name, load_hub
from mixer.data.local import is_pattern, load_local


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
    """

    path: str
    name: str | None = None
    split: str = "train"
    validation_split: str | None = None
    revision: str | None = None
    streaming: bool = False

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
        is_local = Path(self.path).exists() or is_pattern(self.path)
        if not is_local and not is_hub_name(self.path):
            raise FileNotFoundError(
                f"{called}: there is no file or folder {str(Path(self.path).absolute())!r}; and {self.path!r} is no "
                "name on the hub, which has the form org/name."
            )
        if is_local:
            self._check_is_of_no_hub(called)
            loaded = load_local(self.path, splits, called, self.streaming)
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
