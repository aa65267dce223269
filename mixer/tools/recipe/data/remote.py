"""Data behind URLs (`s3://`, `gs://`, `hf://`, `https://`), through fsspec: copied into the cache, or streamed."""

import copy
import hashlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import datasets
from fsspec.core import url_to_fs  # type: ignore[import-untyped]

from mixer.tools.recipe.data.local import is_pattern, load_files, load_local
from mixer.tools.recipe.data.reading import Reading
from mixer.tools.recipe.data.suffixes import is_url
from mixer.tools.recipe.storage_options import HIDDEN, STORAGE_OPTIONS, without_values
from mixer.utils.errors import require, wrong_value
from mixer.utils.nested import flat

_Options = Mapping[str, Any]


class _Found(NamedTuple):
    """What is behind a URL: its file system, the place in it, and for each file what changes with its content."""

    system: Any
    root: str
    files: dict[str, str]
    is_folder: bool


def check_urls(paths: Sequence[str], options: _Options | None) -> None:
    """Refuses URLs with credentials, and storage options that have no use or are those of a recipe's copy.

    Args:
        paths: The paths of one stream.
        options: Its storage options.

    Raises:
        ValueError: If there are some; shows no credentials.
    """
    require(bool(paths), "path", "a path, or a list of one or more", paths)
    urls = [path for path in paths if is_url(path)]
    for parts in map(urlsplit, urls):
        is_web = parts.scheme in ("http", "https")
        if ("@" in parts.netloc and (is_web or parts.password)) or (is_web and parts.query):
            shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
            raise wrong_value(
                "path",
                f"The URL {shown} has a password or a query (?...), and paths are written to the run's folder: leave "
                "them out, or move them to storage_options, as headers or params.",
                found=shown,
            )
    require(len(urls) in (0, len(paths)), "path", "URLs or paths on this machine, not both", paths)
    if options is not None and not urls:
        text = f"They are for URLs, such as s3://bucket/rows.jsonl, and path is {paths}."
        raise wrong_value("storage_options", text)
    if HIDDEN in flat(options).values():
        raise wrong_value(
            "storage_options",
            f"The copy of a recipe has no values of its storage_options ({_keys(options)}): give them anew, such "
            "as by the option --streams.NAME.data.storage_options.",
        )


def load_remote(urls: Sequence[str], splits: Sequence[str], reading: Reading) -> list[Any]:
    """Loads splits of data behind URLs; without streaming, from a copy in the cache.

    Args:
        urls: URLs of files, patterns of files, or a single folder.
        splits: Names of splits, or slices unless streaming.
        reading: How to read rows.

    Returns:
        One data set per split.

    Raises:
        ValueError: If the files cannot be listed or copied, with the keys of the options; or as `load_local`.
    """
    with _telling(reading):
        found = [_find(url, reading.storage_options) for url in urls]
    folders = [url for url, place in zip(urls, found, strict=True) if place.is_folder]
    if folders and (reading.streaming or len(urls) > 1):
        given = f": {folders[0]!r} is a folder: give its files{' while streaming' if reading.streaming else ''}"
        raise wrong_value("path", f"{given}, such as '{folders[0].rstrip('/')}/*.parquet'.", found=folders[0])
    if reading.streaming:
        files = [str(place.system.unstrip_protocol(name)) for place in found for name in place.files]
        return load_files(files, splits, reading)
    with _telling(reading):
        folder = _copied(found)
    try:
        if folders:
            return load_local(str(folder / _below(found[0].root)), splits, reading)
        return load_files([folder / _below(name) for place in found for name in place.files], splits, reading)
    except (ValueError, OSError) as error:  # in the words of the user, who knows no copy
        error.args = (str(error).replace(f"{folder}/", f"{urls[0].partition('://')[0]}://"),)
        raise


@contextmanager
def _telling(reading: Reading) -> Iterator[None]:
    options = reading.storage_options
    try:
        yield
    except Exception as error:  # each file system has errors of its own
        cause = without_values(f"{type(error).__name__}: {error}", {STORAGE_OPTIONS: options})
        keys = f"storage_options {_keys(options)}" if options else "no storage_options"
        raise wrong_value("path", f": {reading.path} cannot be read with {keys}: {cause}") from None


def _keys(options: _Options | None) -> str:
    return ", ".join(".".join(field) for field in flat(options))


def _find(url: str, options: _Options | None) -> _Found:
    system, root = url_to_fs(url, **copy.deepcopy(dict(options or {})))  # some libraries add to the options
    system.invalidate_cache()
    if is_pattern(url):
        found, is_folder = system.glob(root, detail=True), False
    else:
        info = system.info(root)
        is_folder = info["type"] == "directory"
        found = system.find(root, detail=True) if is_folder else {root: info}
    files = {name: str(info) for name, info in sorted(found.items()) if info["type"] == "file"}
    if not files:
        raise FileNotFoundError(f"there is no file at {url!r}")
    return _Found(system, root, files, is_folder)


def _copied(found: Sequence[_Found]) -> Path:
    """Copies files into a folder of the cache, unless it has them, as they are now."""
    identity = [(place.system.unstrip_protocol(place.root), sorted(place.files.items())) for place in found]
    digest = hashlib.blake2b(repr(identity).encode(), digest_size=16).hexdigest()
    folder = Path(datasets.config.HF_DATASETS_CACHE) / "adaptive_mixer" / "remote" / digest
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as made:
        copies = Path(made) / digest
        for place in found:
            place.system.get(list(place.files), [str(copies / _below(name)) for name in place.files])
        try:
            copies.rename(folder)
        except OSError:
            if not folder.is_dir():  # another process was faster
                raise
    return folder


def _below(name: str) -> str:
    """Returns the place of a file, or a folder, among the copies."""
    place = name.partition("://")[2] or name
    if ".." in place.split("/"):
        raise ValueError(f"{name!r} leads out of its folder")
    return place.strip("/")
