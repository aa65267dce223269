"""Which checkpoint a run resumes from, and what is safe when a file cannot be written."""

import errno
import json
import shutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from transformers.utils import logging

from mixer.trainer.checkpointing.files import MARKER_FILE, find_problem, list_checkpoints, put_back, read_marker
from mixer.utils.files import WriteError

logger = logging.get_logger(__name__)


@dataclass(frozen=True)
class Choice:
    """The checkpoint from which a run goes on.

    Args:
        checkpoint: Its folder, or `None` if there is none to go on from.
        passed_over: What was wrong with each newer one, by its folder.
        ended: Whether the run that wrote it came to its end.
        error: Why the choice that was asked for cannot be had.
        inexact: What is wrong with it, where it is taken all the same.
    """

    checkpoint: str | None = None
    passed_over: dict[str, str] = field(default_factory=dict)
    ended: bool = False
    error: str | None = None
    inexact: str | None = None


def newest_complete(output_dir: Path, among: Collection[str] | None = None, allow_inexact: bool = False) -> Choice:
    """Finds the newest checkpoint that is complete and intact.

    Args:
        output_dir: The run's output folder.
        among: Names of those that are so on the other nodes too; `None` where there are none with disks of their own.
        allow_inexact: See `find_problem`.

    Returns:
        The choice; its `checkpoint` is `None` if there is none.
    """
    put_back(output_dir)
    passed_over: dict[str, str] = {}
    for checkpoint in list_checkpoints(output_dir):
        problem = _why_not(checkpoint, allow_inexact)
        if problem is None and among is not None and checkpoint.name not in among:
            problem = "another node, on its own disk, does not have it or not the whole of it"
        if problem is None:
            return _chosen(str(checkpoint), passed_over, allow_inexact)
        passed_over[str(checkpoint)] = problem
    return Choice(None, passed_over)


def _chosen(checkpoint: str, passed_over: dict[str, str], allow_inexact: bool) -> Choice:
    marker, inexact = read_marker(Path(checkpoint)) or {}, None
    if allow_inexact:
        inexact = find_problem(Path(checkpoint))
    return Choice(checkpoint, passed_over, bool(marker.get("ended", False)), inexact=inexact)


def usable_names(output_dir: Path, allow_inexact: bool = False) -> list[str]:
    """Lists the checkpoints that a run can go on from.

    Args:
        output_dir: The run's output folder.
        allow_inexact: See `find_problem`.

    Returns:
        Their names.
    """
    put_back(output_dir)
    return [
        checkpoint.name for checkpoint in list_checkpoints(output_dir) if _why_not(checkpoint, allow_inexact) is None
    ]


def none_in_common(output_dir: Path, by_node: Mapping[int, Collection[str]]) -> str:
    """Says that some node has checkpoints and another none of them: a disk was lost, or another node came.

    Args:
        output_dir: The run's output folder, on this node.
        by_node: What each node has that a run could go on from, by the rank that saves there.

    Returns:
        The message.
    """
    has = "; ".join(f"rank {rank}'s node has {', '.join(sorted(names)) or 'none'}" for rank, names in by_node.items())
    return (
        f"No checkpoint in {output_dir} can be gone on from on every node: {has}. Copy one to the nodes that lack it, "
        "or start anew without resuming (`mixer train --resume never`), which replaces those that are there."
    )


def _why_not(checkpoint: Path, allow_inexact: bool) -> str | None:
    problem = find_problem(checkpoint, allow_inexact)
    if problem is None and (read_marker(checkpoint) or {}).get("superseded", False):
        return "a run has begun anew, or at an earlier step, since it was saved"
    return problem


def choose(
    output_dir: Path, asked: str | bool, among: Collection[str] | None = None, allow_inexact: bool = False
) -> Choice:
    """Chooses as `Trainer.train` was told to.

    Args:
        output_dir: The run's output folder.
        asked: A checkpoint's folder, or `True` for the newest.
        among: As for `newest_complete`.
        allow_inexact: See `find_problem`.

    Returns:
        The choice, its `error` set if what was asked for cannot be had.
    """
    if isinstance(asked, bool):
        choice = newest_complete(output_dir, among, allow_inexact)
        if choice.checkpoint is not None:
            return choice
        wrong = "; ".join(f"{path}: {problem}" for path, problem in choice.passed_over.items())
        reason = f": none of those that are there can be resumed from ({wrong})" if wrong else ""
        return Choice(
            error=f"No valid checkpoint found in output directory ({output_dir}){reason}. To start anew, call train() "
            "without resume_from_checkpoint; `mixer train --resume auto` does so where there is none."
        )
    put_back(Path(asked).parent)
    problem = find_problem(Path(asked), allow_inexact)
    if problem is None:
        return _chosen(asked, {}, allow_inexact)
    other = newest_complete(Path(asked).parent, among, allow_inexact).checkpoint
    way_out = (
        "There is no other checkpoint beside it to resume from: start anew without resume_from_checkpoint (from its "
        "weights, if those are whole)."
        if other is None
        else f"The newest checkpoint that can be resumed from is {other}."
    )
    # What is no checkpoint at all is told in the Trainer's words, by which scripts know it.
    is_ours = (Path(asked) / MARKER_FILE).is_file()
    failed = f"Cannot resume from {asked}" if is_ours else f"Can't find a valid checkpoint at {asked}"
    return Choice(error=f"{failed}: {problem}. {way_out}")


def agree(choice: Choice | None, gather: Callable[[bytes], list[bytes]]) -> Choice:
    """Makes the choice of those that save, one or one on each node, that of all ranks.

    Args:
        choice: The choice, on a rank that saves; `None` elsewhere.
        gather: Brings bytes of every rank to all.

    Returns:
        This rank's own choice, or that of the first.

    Raises:
        ValueError: On every rank, if what was asked for cannot be had.
    """
    texts = gather(json.dumps(None if choice is None else asdict(choice)).encode())
    made = {rank: Choice(**found) for rank, text in enumerate(texts) if (found := json.loads(text)) is not None}
    for rank, other in made.items():
        if other.error is not None:
            raise ValueError(other.error if rank == 0 else f"Rank {rank}: {other.error}")
    return choice or made[0]


def warn_of_passed_over(choice: Choice) -> None:
    """Says which newer checkpoints are not used, and why; and what is wrong with the one that is.

    Args:
        choice: The choice.
    """
    for path, problem in choice.passed_over.items():
        logger.warning("Checkpoint %s is passed over: %s.", path, problem)
    if choice.inexact is not None:
        logger.warning("Resumed inexactly from %s: %s.", choice.checkpoint, choice.inexact)


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
