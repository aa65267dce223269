"""The choice of the checkpoint to resume from."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from transformers.utils import logging

from mixer.checkpoint import checkpoint_files

logger = logging.get_logger(__name__)


@dataclass(frozen=True)
class Choice:
    """The checkpoint to resume from.

    Args:
        checkpoint: Its folder, or `None` if there is none.
        passed_over: The problem of each newer checkpoint, by its folder.
        ended: Whether the run that wrote it finished.
        error: Why the requested checkpoint cannot be used.
        inexact: The problem of the checkpoint, if it is used nevertheless.
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
        among: Names of the checkpoints that the other nodes can use too; `None` if nodes have no disks of their own.
        allow_inexact: See `find_problem`.
    """
    checkpoint_files.put_back(output_dir)
    passed_over: dict[str, str] = {}
    for checkpoint in checkpoint_files.list_checkpoints(output_dir):
        problem = _why_not(checkpoint, allow_inexact)
        if problem is None and among is not None and checkpoint.name not in among:
            problem = "another node does not have it, or not completely, on its own disk"
        if problem is None:
            return _chosen(str(checkpoint), passed_over, allow_inexact)
        passed_over[str(checkpoint)] = problem
    return Choice(None, passed_over)


def _chosen(checkpoint: str, passed_over: dict[str, str], allow_inexact: bool) -> Choice:
    marker = checkpoint_files.read_marker(Path(checkpoint)) or {}
    inexact = checkpoint_files.find_problem(Path(checkpoint)) if allow_inexact else None
    return Choice(checkpoint, passed_over, bool(marker.get("ended", False)), inexact=inexact)


def checkpoint_at(run: Path, step: int) -> Path:
    """Finds the checkpoint of a run at a step.

    Args:
        run: The run's output folder.
        step: The step.

    Raises:
        ValueError: If there is none that is complete and intact; with the steps that have one.
    """
    found = [checkpoint for checkpoint in checkpoint_files.list_checkpoints(run) if _why_not(checkpoint, False) is None]
    usable = {checkpoint_files.step_of(checkpoint): checkpoint for checkpoint in found}
    if step not in usable:
        there = f"at the steps {', '.join(map(str, sorted(usable)))}" if usable else "at no step"
        raise ValueError(f"at must be a step with a complete checkpoint: {run} has them {there}, got {step}.")
    return usable[step]


def usable_names(output_dir: Path, allow_inexact: bool = False) -> list[str]:
    """Lists the names of the checkpoints that a run can resume from."""
    checkpoint_files.put_back(output_dir)
    return [
        checkpoint.name
        for checkpoint in checkpoint_files.list_checkpoints(output_dir)
        if _why_not(checkpoint, allow_inexact) is None
    ]


def none_in_common(output_dir: Path, by_node: Mapping[int, Collection[str]]) -> str:
    """Returns the error for nodes without a common checkpoint: a disk was lost, or a node was replaced.

    Args:
        output_dir: The run's output folder, on this node.
        by_node: Names of the usable checkpoints of each node, by the rank that saves there.
    """
    has = "; ".join(f"rank {rank}'s node has {', '.join(sorted(names)) or 'none'}" for rank, names in by_node.items())
    return (
        f"No checkpoint in {output_dir} can be resumed from on every node: {has}. Copy one to the nodes that lack it, "
        f"or start over without resuming (`mixer train --resume never`), which replaces the existing ones."
    )


def _why_not(checkpoint: Path, allow_inexact: bool) -> str | None:
    problem = checkpoint_files.find_problem(checkpoint, allow_inexact)
    if problem is None and (checkpoint_files.read_marker(checkpoint) or {}).get("superseded", False):
        return "a run started over, or at an earlier step, after it was saved"
    return problem


def choose(
    output_dir: Path, requested: str | bool | None, among: Collection[str] | None = None, allow_inexact: bool = False
) -> Choice:
    """Chooses the checkpoint that was requested from `Trainer.train`.

    Args:
        output_dir: The run's output folder.
        requested: A checkpoint's folder, or `True` for the newest; `None` for the newest, if any.
        among: As for `newest_complete`.
        allow_inexact: See `find_problem`.

    Returns:
        The choice; its `error` is set if the request cannot be met.
    """
    if requested is None or isinstance(requested, bool):
        choice = newest_complete(output_dir, among, allow_inexact)
        if choice.checkpoint is not None or requested is None:
            return choice
        wrong = "; ".join(f"{path}: {problem}" for path, problem in choice.passed_over.items())
        reason = f": no checkpoint there can be resumed from ({wrong})" if wrong else ""
        return Choice(
            error=f"No valid checkpoint found in output directory ({output_dir}){reason}. To start over, call train() "
            "without resume_from_checkpoint; `mixer train --resume auto` does so if there is no checkpoint."
            + "".join(checkpoint_files.from_weights(Path(path)) for path in list(choice.passed_over)[:1])
        )
    checkpoint_files.put_back(Path(requested).parent)
    if (problem := checkpoint_files.find_problem(Path(requested), allow_inexact)) is None:
        return _chosen(requested, {}, allow_inexact)
    other = newest_complete(Path(requested).parent, among, allow_inexact).checkpoint
    hint = (
        "There is no other checkpoint beside it."
        + (checkpoint_files.from_weights(Path(requested)) or " Start over without resume_from_checkpoint.")
        if other is None
        else f"The newest checkpoint that can be resumed from is {other}."
    )
    # A folder that is no checkpoint gets the Trainer's own message, which scripts may look for.
    is_ours = (Path(requested) / checkpoint_files.MARKER_FILE).is_file()
    failed = f"Cannot resume from {requested}" if is_ours else f"Can't find a valid checkpoint at {requested}"
    return Choice(error=f"{failed}: {problem}. {hint}")


def agree(choice: Choice | None, gather: Callable[[Any], list[Any]]) -> Choice:
    """Makes all ranks use the choice of the ranks that save: rank 0, or one rank per node.

    Args:
        choice: The choice, on a rank that saves; `None` elsewhere.
        gather: Gathers bytes of every rank on all ranks.

    Returns:
        This rank's own choice, or that of the first rank.

    Raises:
        ValueError: On every rank, if the requested checkpoint cannot be used.
    """
    choices = gather(None if choice is None else asdict(choice))
    made = {rank: Choice(**own) for rank, own in enumerate(choices) if own is not None}
    for rank, other in made.items():
        if other.error is not None:
            raise ValueError(other.error if rank == 0 else f"Rank {rank}: {other.error}")
    return choice or made[0]


def warn_of_passed_over(choice: Choice) -> None:
    """Logs which newer checkpoints are passed over and why, and the problem of the one in use."""
    for path, problem in choice.passed_over.items():
        logger.warning("Checkpoint %s is passed over: %s.", path, problem)
    if choice.inexact is not None:
        logger.warning("Resumed inexactly from %s: %s.", choice.checkpoint, choice.inexact)
