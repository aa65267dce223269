"""Errors of a run that could not write a file: what is safe, and how to continue."""

import errno
import os
import shutil
from pathlib import Path
from typing import Any

from mixer.checkpoint.checkpoint_files import lasting
from mixer.checkpoint.choosing import newest_complete
from mixer.utils.files import WriteError
from mixer.utils.resume_hint import resume_hint


def write_error(what: str, error: Exception, folder: Path) -> WriteError:
    """Makes the error of a run that could not write a file: what is safe, and how to continue.

    Args:
        what: The file or part that could not be written.
        error: The cause.
        folder: The output folder.
    """
    try:
        room = _room(_existing(getattr(error, "filename", None) or folder))
        checkpoint = newest_complete(folder).checkpoint
    except OSError as unreadable:
        room, checkpoint = f"the folder cannot be read ({unreadable})", None
    safe = (
        "There is no complete checkpoint, so the run has to start over."
        if checkpoint is None
        else f"Earlier files are intact: the run resumes from {lasting(Path(checkpoint))} with {resume_hint()} and "
        "repeats the steps after it."
    )
    number = getattr(error, "errno", None) or errno.EIO
    is_content = isinstance(error, (TypeError, ValueError))  # what was to be written, not where
    failed = f"{what} could not be written ({_described(error)}{'' if is_content else f'; {room}'})"
    hint = "First fix the cause" if is_content else "First make room, or fix the cause"
    with_hint = WriteError(number, f"{failed}. {safe} {hint}")
    with_hint.says_what_is_safe = True
    return with_hint


def _existing(path: Any) -> Path:
    """Returns the folder of a file that could not be written, or the lowest above it that exists."""
    return next(parent for parent in (Path(os.fsdecode(path)), *Path(os.fsdecode(path)).parents) if parent.is_dir())


def _room(folder: Path) -> str:
    """Says what is free on the disk of a folder: it may be out of files while it has space."""
    status = os.statvfs(folder) if hasattr(os, "statvfs") else None
    if status is not None and status.f_files and not status.f_favail:
        return f"the disk of {folder} has no room for another file: all {status.f_files:,} inodes are taken"
    return f"{shutil.disk_usage(folder).free / 2**20:,.0f} MiB are free on the disk of {folder}"


def _described(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}"


def explain_write_error(error: Exception | None, folder: Path) -> Exception | None:
    """Adds what is safe to the error of a file that could not be written between steps.

    Args:
        error: Any error; those of other kinds and those that say it already stay as they are.
        folder: The output folder.
    """
    if not isinstance(error, WriteError) or error.says_what_is_safe:
        return error
    return write_error("A file of the run", error, folder)
