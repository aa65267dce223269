"""How the rows of a stream are read: what its source says, and what its format wants."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from mixer.tools.recipe.data.file_list import Patterns
from mixer.utils.errors import wrong_value

TextRows = Literal["line", "paragraph", "document"]
# What options are for that not all data have.
_USES = {
    "name": "data on the hub, or a folder whose README.md has configs",
    "revision": "data on the hub",
    "rows": "text files (.txt)",
    "separator": "CSV and TSV",
    "include": "files",
    "exclude": "files",
}


@dataclass(frozen=True)
class Reading:
    """How to read rows.

    Args:
        called: Name of the data in logs.
        path: The user's path, for errors.
        name: See `DataSource`, as for all that follow.
        revision: See `DataSource`.
        streaming: See `DataSource`.
        rows: See `DataSource`.
        columns: See `DataSource`.
        separator: See `DataSource`.
        include: See `DataSource`.
        exclude: See `DataSource`.
        storage_options: See `DataSource`.
        numbers: Columns of CSV and TSV that become numbers if all their cells are some; others are texts.
        has_types: Whether further columns of CSV and TSV become numbers, if that loses no character.
    """

    called: str
    path: str
    name: str | None = None
    revision: str | None = None
    streaming: bool = False
    rows: TextRows = "line"
    columns: Sequence[str] | None = None
    separator: str | None = None
    include: Sequence[str] | None = None
    exclude: Sequence[str] = field(default_factory=list)
    storage_options: dict[str, Any] | None = field(default=None, repr=False)
    numbers: Collection[str] = ()
    has_types: bool = False

    @property
    def patterns(self) -> Patterns:
        """Which of the files to read."""
        return Patterns(self.include, self.exclude)

    def refuse(self, *options: str) -> None:
        """Refuses options that data of this kind do not have.

        Raises:
            InvalidValueError: If one is given; names it.
        """
        unset = {option.name: option.default for option in fields(self)} | {"exclude": []}
        for option in options:
            if (value := getattr(self, option)) != unset[option]:
                text = f"={value!r} is for {_USES[option]}, and {self.path!r} is none: leave it out."
                raise wrong_value(option, text, found=value)
