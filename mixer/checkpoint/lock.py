"""A lock on the output folder: a second run would overwrite its checkpoints and ledger."""

import contextlib
import errno
import json
import logging
import os
import socket
import weakref
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar
from weakref import WeakValueDictionary

from mixer.utils.errors import InvalidValueError

logger = logging.getLogger(__name__)

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
        option: What the user named it by, for messages.
        file: Name of the file that is locked.
    """

    _own: ClassVar[set[Path]] = set()  # locks of this process: record locks do not guard against the process itself

    def __init__(self, folder: Path, option: str = "output_dir", file: str = LOCK_FILE):
        self.folder, self._option = folder, option
        self._path = folder.resolve() / file
        self._descriptor: int | None = None
        self._process = 0  # that holds it

    def acquire(self) -> None:
        """Takes the lock.

        Raises:
            ValueError: If another run holds it, with the process of that run.
            OSError: If the folder is not writable.
        """
        if self._path in self._own:
            raise self._in_use(f"process {os.getpid()}, this one")
        try:
            self._descriptor = self._opened()
        except OSError as error:
            raise OSError(
                error.errno,
                f"{self._option}: the run cannot write to its folder ({self._reason(error)}). Make it writable, make "
                f"room on its disk, or set another {self._option}",
                str(self.folder),
            ) from error
        self._own.add(self._path)
        self._process = os.getpid()

    def release(self) -> None:
        """Releases the lock, if held by this process, and removes its file."""
        if self._descriptor is None or self._process != os.getpid():
            return
        with contextlib.suppress(OSError):
            self._path.unlink()
        os.close(self._descriptor)
        self._descriptor = None
        self._own.discard(self._path)

    def was_left(self) -> bool:
        """Whether a process of this machine that held the lock has ended without releasing it, as after a kill."""
        if self._path in self._own:  # to close a file releases the locks that this process has on it
            return False
        try:
            import fcntl

            # A pipe in its place would block.
            with os.fdopen(os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | _NO_LINK), "rb") as file:
                fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return bool(json.loads(file.read(4096))["host"] == socket.gethostname())
        except (ImportError, OSError, ValueError, TypeError, KeyError):
            return False

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
                raise self._in_use(_owner(descriptor)) from None
            if error.errno not in _NOT_SUPPORTED:
                raise
            logger.warning(
                "%s: its file system has no locks (%s). Make sure that no other run writes there.",
                *(self.folder, error.strerror),
            )

    def _reason(self, error: OSError) -> str:
        return (
            f"{self._path.name} is a symbolic link, which no run creates"
            if error.errno == errno.ELOOP
            else str(error.strerror)
        )

    def _in_use(self, owner: str) -> ValueError:
        hint = (
            f"Wait for it or end it, or set another {self._option}. There is nothing to clean up: the lock "
            f"({self._path.name}) ends with that process."
        )
        return InvalidValueError(
            f"{self._option}: {self.folder} is in use by another run ({owner}). {hint}",
            option=self._option,
            expected="a folder that no other run uses",
            found=str(self.folder),
            hint=hint,
        )


class SharedLock:
    """The lock on a folder that many parts of a process use, one after the other, until none of them is left.

    Args:
        lock: The lock, which is held.
    """

    _held: ClassVar[WeakValueDictionary[Path, "SharedLock"]] = WeakValueDictionary()

    def __init__(self, lock: FolderLock):
        weakref.finalize(self, lock.release)

    @classmethod
    def of(cls, folder: Path, option: str, file: str) -> "SharedLock":
        """Takes the lock on a folder, or shares that of this process; see `FolderLock`.

        Raises:
            ValueError: If another process holds it, with that process.
            OSError: If the folder is not writable.
        """
        path = folder.resolve() / file
        shared = cls._held.get(path)
        if shared is None:
            lock = FolderLock(folder, option, file)
            lock.acquire()
            shared = cls._held[path] = cls(lock)
        return shared


def _owner(descriptor: int) -> str:
    try:
        owner: dict[str, Any] = json.loads(os.pread(descriptor, 4096, 0))
        return f"process {owner['pid']} on {owner['host']}, since {owner['since']}"
    except (ValueError, TypeError, KeyError):
        return "a process that has just started"
