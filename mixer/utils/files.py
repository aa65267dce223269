"""Files: atomic writes, digests, and safe names."""

import contextlib
import errno
import hashlib
import json
import os
import re
import secrets
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from mixer.utils.errors import InvalidValueError
from mixer.utils.validation import load_json

_DIGEST_ENTRY = "crc32"
_MAX_BYTES = 64 * 2**20
# Device names of Windows, with any extension.
_RESERVED = re.compile(r"(?i)(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?")
_REFUSED = '<>:"/\\|?*%'
_MOST_BYTES = 180
_MOST_THREADS = 8
_NO_SYNC = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)  # of CIFS for folders, and of some in user space
_IS_SYNCED_LATER = ContextVar("is_synced_later", default=False)
warned_no_sync: set[str] = set()  # kinds that a file system does not sync

T = TypeVar("T")


def write_json(path: Path, content: Mapping[str, Any], sealed: bool = False) -> None:
    """Writes a JSON file atomically and durably.

    Args:
        path: File.
        content: Plain data; floats are stored exactly.
        sealed: Whether to add a digest of the content, by which `read_json` detects changes.
    """
    text = json.dumps(content, allow_nan=False)
    if sealed:
        text = json.dumps({**content, _DIGEST_ENTRY: zlib.crc32(text.encode())}, allow_nan=False)
    write_text(path, text)


def write_text(path: Path, text: str) -> None:
    """Writes a text file atomically and durably.

    Raises:
        OSError: If it cannot be written; the error names the file, and the previous content remains.
    """
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(8)}.tmp")  # ranks may write the same file of a cache
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with new_file(temporary) as file:
            file.write(text.encode())
        put_in_place(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


def read_json(path: Path) -> dict[str, Any]:
    """Reads a file of a checkpoint written by `write_json`.

    Raises:
        ValueError: If it is missing, torn, changed since it was written, or not a JSON object.
    """
    try:
        content = load_json(path)
    except (OSError, ValueError) as error:
        state = "torn" if path.is_file() else "missing"
        raise InvalidValueError(
            f"{path} is {state} ({error}). Resume from an earlier checkpoint.", option=path.name
        ) from None
    if not isinstance(content, dict):
        raise InvalidValueError(f"{path} is not a JSON object. Resume from an earlier checkpoint.", option=path.name)
    digest = content.pop(_DIGEST_ENTRY, None)
    if digest is not None and digest != zlib.crc32(json.dumps(content).encode()):
        text = f"{path} is damaged: its content is not what was written. Resume from an earlier checkpoint."
        raise InvalidValueError(text, option=path.name)
    return content


def other_version(file: str, version: Any, known: int) -> str:
    """Returns the message, without a full stop, that a later or an earlier version wrote a file.

    Args:
        file: Name of the file.
        version: Its format; anything but a number is that of an earlier version.
        known: Newest known format.
    """
    if not isinstance(version, int) or version <= known:
        return (
            f"{file} has format {version!r}, but this version reads {known}: an earlier version of adaptive-mixer "
            "wrote it. Use that version to read it or to resume, or load the model's weights and start a new run"
        )
    return (
        f"{file} has format {version!r}, but this version reads up to {known}: upgrade adaptive-mixer to the version "
        "that wrote it, or a later one"
    )


def local_path(written: str) -> str:
    """Fills in the home folder, `~`, and environment variables, `$DATA_DIR`, of a path on this machine.

    Args:
        written: The path as the user wrote it.

    Raises:
        InvalidValueError: If there is no such variable, and no such file either.
    """
    path = os.path.expanduser(os.path.expandvars(written))
    unset = re.search(r"\$\{?(\w+)", path)
    if unset and not Path(path).exists():
        name = unset.group(1)
        hint = f"Set it: {name}=FOLDER mixer train ..."
        text = f"{written!r} has the environment variable {name}, which is not set. {hint}"
        raise InvalidValueError.about("path", text, found=written, hint=hint)
    return path


def new_file(path: Path) -> BinaryIO:
    """Creates a file for writing and reading, which replaces what has its name.

    A link of that name is removed, not followed: in a folder of somebody else it may lead to any file.

    Args:
        path: The file, in a folder that exists.
    """
    path.unlink(missing_ok=True)
    return path.open("x+b")


def make_folder(path: Path) -> None:
    """Makes a folder for files of a run, if there is none.

    Args:
        path: The folder. Folders above it may be links: they are those that the user named.

    Raises:
        OSError: If it is a link, or holds one: what is written there would end up elsewhere.
    """
    path.mkdir(parents=True, exist_ok=True)
    for place in (path, *path.iterdir()):
        if place.is_symlink():
            reason = f"{place.name} is a link to {os.readlink(place)}, where a run does not write: remove the link"
            raise OSError(errno.ELOOP, reason, str(place))


def put_in_place(temporary: Path, path: Path) -> None:
    """Gives a file that is complete its name, durably.

    Args:
        temporary: The file.
        path: What it replaces, in the same folder.
    """
    if _IS_SYNCED_LATER.get():
        temporary.replace(path)
        return
    sync_to_disk(temporary)
    temporary.replace(path)
    sync_to_disk(path.parent)


@contextlib.contextmanager
def synced_later() -> Iterator[None]:
    """Puts files in place without a sync of each: what uses them syncs all at once, or can do without them."""
    token = _IS_SYNCED_LATER.set(True)
    try:
        yield
    finally:
        _IS_SYNCED_LATER.reset(token)


def sync_to_disk(path: Path) -> None:
    """Syncs a file's content, or a folder's entries, to disk; some file systems cannot, which is told once."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        sync_descriptor(descriptor, path)
    finally:
        os.close(descriptor)


def sync_descriptor(descriptor: int, path: Path) -> None:
    """Syncs an open file or folder to disk, as `sync_to_disk` does."""
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise
        is_folder = path.is_dir()
        warn_of_no_sync("folders" if is_folder else "files", error.strerror or str(error), path.parent)


def warn_of_no_sync(kind: str, reason: str, folder: Path) -> None:
    """Warns once that a file system does not sync files, or folders."""
    if kind in warned_no_sync:
        return
    warned_no_sync.add(kind)
    lost = "missing" if kind == "folders" else "damaged, which its digests show: then resume from an earlier one"
    warnings.warn(
        f"{folder}: its file system does not sync {kind} ({reason}). If the machine crashes, the last checkpoint may "
        f"be {lost}. A local disk, or another mount, syncs.",
        stacklevel=3,
    )


def at_once(work: Callable[[T], None], items: Iterable[T]) -> None:
    """Does work that waits for the disk for all items at once, which takes little longer than one.

    Args:
        work: What is done with an item; the first error is raised when all are done.
        items: The items.
    """
    with ThreadPoolExecutor(_MOST_THREADS) as pool:
        done = [pool.submit(work, item) for item in items]
    for item in done:
        item.result()


def digests_of(folder: Path, names: Iterable[str]) -> dict[str, int]:
    """Computes CRC-32 digests of files just written, by path, except those that would be slow to read back.

    Skips files above 64 MiB (a large model's), and those with several links: a buffer's rows on disk, which are linked
    into a checkpoint to avoid writing them.

    Args:
        folder: Folder of the files.
        names: Their paths in it.
    """
    digests = {}
    for name in names:
        status = (folder / name).stat()
        if status.st_size <= _MAX_BYTES and status.st_nlink == 1:
            digests[name] = _digest(folder / name)
    return digests


def find_damaged(folder: Path, digests: Mapping[str, int]) -> str | None:
    """Returns the path of a file that no longer matches its digest, or `None`; missing files are ignored.

    Args:
        folder: Folder of the files.
        digests: Result of `digests_of`.
    """
    existing = ((name, digest) for name, digest in digests.items() if (folder / name).is_file())
    return next((name for name, digest in existing if _digest(folder / name) != digest), None)


def _digest(path: Path) -> int:
    return zlib.crc32(path.read_bytes())


def folder_name(name: str) -> str:
    """Returns a folder name for any name: a single path component, valid on every file system.

    Args:
        name: The name.

    Returns:
        The name itself, if it is valid; else invalid characters as `%` and bytes, and long names truncated with a
        digest. Two names never share a folder.

    Example:
        >>> folder_name("01-math"), folder_name(".."), folder_name("a/b")
        ('01-math', '%2E%2E', 'a%2Fb')
    """
    edges = {len(name) - 1} if name.endswith((".", " ")) else set()
    if not name.strip(".") or _RESERVED.fullmatch(name):
        edges.add(0)
    valid = "".join(
        _escaped(character) if place in edges or character in _REFUSED or not character.isprintable() else character
        for place, character in enumerate(name)
    )
    if len(valid.encode()) <= _MOST_BYTES:
        return valid or "%"
    digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()
    return f"{valid.encode()[:_MOST_BYTES].decode('utf-8', 'ignore')}%{digest}"


def _escaped(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode("utf-8", "surrogatepass"))


class WriteError(OSError):
    """A file of the run could not be written.

    Attributes:
        says_what_is_safe: Whether the message states which parts of the run are safe, and how to resume.
    """

    says_what_is_safe = False


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raises a `WriteError` that names the path in place of a system error in the context."""
    try:
        yield
    except WriteError:
        raise
    except OSError as error:
        raise WriteError(error.errno or errno.EIO, error.strerror or str(error), str(path)) from error
