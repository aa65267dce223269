"""Writing files of a run: what the system says of them is told from what it says of the user's files."""

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path


class WriteError(OSError):
    """A file of the run could not be written.

    Attributes:
        says_what_is_safe: Whether the message says what of the run is safe, and how it goes on.
    """

    says_what_is_safe = False


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Has errors of the system say that a file of the run could not be written.

    Args:
        path: The file that is written, or its folder.

    Yields:
        Nothing.

    Raises:
        WriteError: In place of an error of the system; it names the path.
    """
    try:
        yield
    except WriteError:
        raise
    except OSError as error:
        raise WriteError(error.errno or errno.EIO, error.strerror or str(error), str(path)) from error
