"""What a run says that could not write a file: what is safe all the same, and how it goes on."""

import errno
import shutil
from pathlib import Path

from mixer.trainer.checkpointing.choose import newest_complete
from mixer.utils.writing import WriteError


def write_error(what: str, error: Exception, folder: Path) -> WriteError:
    """Says what became of a run that could not write a file.

    Args:
        what: What could not be written.
        error: Why.
        folder: The output folder.

    Returns:
        The error that the run ends with.
    """
    try:
        free = f"{shutil.disk_usage(folder).free / 2**20:,.0f} MiB are free on its disk"
        checkpoint = newest_complete(folder).checkpoint
    except OSError as unreadable:
        free, checkpoint = f"the folder cannot be looked at ({unreadable})", None
    safe = (
        "There is no whole checkpoint to go on from: the run begins anew."
        if checkpoint is None
        else f"What was written before is whole: the run goes on from {checkpoint}, by --resume auto or "
        "train(resume_from_checkpoint=True), and trains what came after it once more."
    )
    number = getattr(error, "errno", None) or errno.EIO
    failed = f"{what} could not be written ({_described(error)}; {free})"
    explained = WriteError(number, f"{failed}. {safe} Make room, or see to what else it was, first")
    explained.says_what_is_safe = True
    return explained


def _described(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no words'}"
