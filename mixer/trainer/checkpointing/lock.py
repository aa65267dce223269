"""Keeps a second run out of an output folder, whose checkpoints and ledger it would write over."""

import contextlib
import errno
import json
import os
import socket
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

from transformers.utils import logging

logger = logging.get_logger(__name__)

LOCK_FILE = "_run.lock"  # pushes to the hub leave out what begins with a line

_HELD = (errno.EACCES, errno.EAGAIN)
_NOT_SUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


class FolderLock:
    """A lock on a folder, which the system lets go of when the process ends, however it does.

    It is a record lock: workers that are forked do not inherit it, so that it never outlives the run, and network file
    systems keep it for all machines.

    Args:
        folder: The folder; it is made.
    """

    _own: ClassVar[set[Path]] = set()  # of this process, against which record locks do not guard

    def __init__(self, folder: Path):
        self.folder = folder
        self._path = folder.resolve() / LOCK_FILE
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Takes the lock.

        Raises:
            ValueError: If another run has it; the run is named.
            OSError: If the folder cannot be written.
        """
        if self._path in self._own:
            raise ValueError(_in_use(self.folder, f"process {os.getpid()}, this one"))
        try:
            descriptor = self._opened()
        except OSError as error:
            raise OSError(
                error.errno,
                f"output_dir: the run cannot write to its folder ({error.strerror}). Make it writable, make room on "
                "its disk, or give another output_dir",
                str(self.folder),
            ) from error
        self._own.add(self._path)
        self._descriptor = descriptor

    def release(self) -> None:
        """Lets go of the lock, if this has it; its file goes too."""
        if self._descriptor is None:
            return
        with contextlib.suppress(OSError):
            self._path.unlink()
        os.close(self._descriptor)
        self._descriptor = None
        self._own.discard(self._path)

    def _opened(self) -> int:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                self._lock(descriptor)
                if _is_at(self._path, descriptor):  # else its holder has removed it just now
                    now = datetime.now(UTC).isoformat(timespec="seconds")
                    owner = {"pid": os.getpid(), "host": socket.gethostname(), "since": now}
                    os.ftruncate(descriptor, 0)
                    os.write(descriptor, json.dumps(owner).encode())
                    return descriptor
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)

    def _lock(self, descriptor: int) -> None:
        try:
            import fcntl
        except ImportError:  # no such locks on this system
            return
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _HELD:
                raise ValueError(_in_use(self.folder, _owner(descriptor))) from None
            if error.errno not in _NOT_SUPPORTED:
                raise
            logger.warning(
                "%s: its file system has no locks (%s). Make sure that no other run writes there.",
                self.folder,
                error.strerror,
            )


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _owner(descriptor: int) -> str:
    try:
        owner: dict[str, Any] = json.loads(os.pread(descriptor, 4096, 0))
        return f"process {int(owner['pid'])} on {owner['host']!s:.100}, since {owner['since']!s:.40}"
    except (ValueError, TypeError, KeyError):
        return "a process that has just begun"


def _in_use(folder: Path, owner: str) -> str:
    return (
        f"output_dir: {folder} is in use by another run ({owner}), which would be spoilt: wait for it or end it, or "
        f"give this one another output_dir. Nothing is left to clean up: the lock ({LOCK_FILE}) goes with that process."
    )
