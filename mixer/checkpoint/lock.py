"""A lock on the output folder: a second run would overwrite its checkpoints and ledger."""

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

LOCK_FILE = "_run.lock"  # pushes to the Hub skip names that begin with an underscore

_NO_LINK = getattr(os, "O_NOFOLLOW", 0)  # in a folder of somebody else it may lead to any file
_HELD = (errno.EACCES, errno.EAGAIN)
_NOT_SUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


class FolderLock:
    """A lock on a folder, which the system releases when the process ends, however it ends.

    It is a record lock: forked workers do not inherit it, so it never outlives the run, and network file systems
    enforce it across machines.

    Args:
        folder: The folder; created if missing.
    """

    _own: ClassVar[set[Path]] = set()  # locks of this process: record locks do not guard against the process itself

    def __init__(self, folder: Path):
        self.folder = folder
        self._path = folder.resolve() / LOCK_FILE
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Takes the lock.

        Raises:
            ValueError: If another run holds it, with the process of that run.
            OSError: If the folder is not writable.
        """
        if self._path in self._own:
            raise ValueError(_in_use(self.folder, f"process {os.getpid()}, this one"))
        try:
            self._descriptor = self._opened()
        except OSError as error:
            raise OSError(
                error.errno,
                f"output_dir: the run cannot write to its folder ({_reason(error)}). Make it writable, make room on "
                "its disk, or set another output_dir",
                str(self.folder),
            ) from error
        self._own.add(self._path)

    def release(self) -> None:
        """Releases the lock, if held, and removes its file."""
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
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | _NO_LINK, 0o644)
            with contextlib.ExitStack() as stack, contextlib.suppress(FileNotFoundError):
                stack.callback(os.close, descriptor)
                self._lock(descriptor)
                if os.path.samestat(os.fstat(descriptor), self._path.stat()):  # else its holder has just removed it
                    now = datetime.now(UTC).isoformat(timespec="seconds")
                    owner = {"pid": os.getpid(), "host": socket.gethostname(), "since": now}
                    os.ftruncate(descriptor, 0)
                    os.write(descriptor, json.dumps(owner).encode())
                    stack.pop_all()
                    return descriptor

    def _lock(self, descriptor: int) -> None:
        try:
            import fcntl
        except ImportError:  # this system has no such locks
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
                *(self.folder, error.strerror),
            )


def _reason(error: OSError) -> str:
    return f"{LOCK_FILE} is a link, which no run makes" if error.errno == errno.ELOOP else str(error.strerror)


def _owner(descriptor: int) -> str:
    try:
        owner: dict[str, Any] = json.loads(os.pread(descriptor, 4096, 0))
        return f"process {owner['pid']} on {owner['host']}, since {owner['since']}"
    except (ValueError, TypeError, KeyError):
        return "a process that has just started"


def _in_use(folder: Path, owner: str) -> str:
    return (
        f"output_dir: {folder} is in use by another run ({owner}): wait for it or end it, or set another output_dir. "
        f"There is nothing to clean up: the lock ({LOCK_FILE}) ends with that process."
    )
