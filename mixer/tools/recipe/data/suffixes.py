"""Known formats of files, by the ends of their names, and the error of a file that cannot be read."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePath

from mixer.utils.errors import InvalidValueError
from mixer.utils.text import shortened

# The builder of `datasets` for each; `None` for our own, `rows.Rows`.
BUILDERS = {
    ".parquet": "parquet",
    ".jsonl": None,
    ".json": None,
    ".csv": None,
    ".tsv": None,
    ".txt": "text",
    ".arrow": "arrow",
}
SEPARATORS = {".csv": ",", ".tsv": "\t"}
_COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
KNOWN = f"{', '.join(BUILDERS)} (compressed too: {', '.join(_COMPRESSED)})"


class UnreadableError(InvalidValueError):
    """A file cannot be read, or does not fit the others; it is the option, and the line is what was found."""


def is_url(path: str) -> bool:
    """Returns whether a path is a URL."""
    return "://" in path


def suffix_of(path: PurePath) -> str | None:
    """Returns the suffix of a known format in lower case, `.jsonl` for `rows.jsonl.gz` too; else `None`."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in _COMPRESSED:
        suffixes.pop()
    return suffixes[-1] if suffixes and suffixes[-1] in BUILDERS else None


@dataclass
class Spot:
    """A place in a file: the number of a line, counted from 1, or words."""

    place: int | str | None = None


@contextmanager
def naming(file: str) -> Iterator[Spot]:
    """Names a file in errors, and the spot that its reader has reached."""
    spot = Spot()
    try:
        yield spot
    except UnreadableError:
        raise
    except Exception as error:  # decompressors have errors of their own
        text = shortened(" ".join(str(error).split()), 300)
        cause = text if type(error) in (ValueError, InvalidValueError) else f"{type(error).__name__}: {text}"
        if isinstance(error, UnicodeDecodeError):
            cause = f"it is not UTF-8, byte {error.object[error.start]:#x}: convert it, as iconv does"
        place = f"line {spot.place}" if isinstance(spot.place, int) else spot.place
        kind = (suffix_of(PurePath(file)) or PurePath(file).suffix)[1:]
        says = f"cannot be read as {kind} ({f'{place}: ' if place else ''}{cause}): repair it, or leave it out."
        raise UnreadableError(f"{file!r} {says}", option=file, found=place, expected=cause) from error
