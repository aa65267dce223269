"""From which checkpoint a run goes on: the newest that is whole, or the one that was asked for."""

from dataclasses import dataclass, field
from pathlib import Path

import torch.distributed as dist
from transformers.utils import logging

from mixer.checkpoint import find_problem, list_checkpoints, put_back, read_marker

logger = logging.get_logger(__name__)


@dataclass(frozen=True)
class Choice:
    """The checkpoint from which a run goes on.

    Args:
        checkpoint: Its folder, or `None` if there is none to go on from.
        passed_over: What was wrong with each newer one, by its folder.
        ended: Whether the run that wrote it came to its end.
        error: Why the choice that was asked for cannot be had.
    """

    checkpoint: str | None = None
    passed_over: dict[str, str] = field(default_factory=dict)
    ended: bool = False
    error: str | None = None


def newest_complete(output_dir: Path) -> Choice:
    """Finds the newest checkpoint that is complete and intact.

    Args:
        output_dir: The run's output folder.

    Returns:
        The choice; its `checkpoint` is `None` if there is none.
    """
    put_back(output_dir)
    passed_over: dict[str, str] = {}
    for checkpoint in list_checkpoints(output_dir):
        problem, marker = find_problem(checkpoint), read_marker(checkpoint) or {}
        if problem is None and marker.get("superseded", False):
            problem = "a run has begun anew, or at an earlier step, since it was saved"
        if problem is None:
            return Choice(str(checkpoint), passed_over, bool(marker.get("ended", False)))
        passed_over[str(checkpoint)] = problem
    return Choice(None, passed_over)


def choose(output_dir: Path, asked: str | bool) -> Choice:
    """Chooses as `Trainer.train` was told to.

    Args:
        output_dir: The run's output folder.
        asked: A checkpoint's folder, or `True` for the newest.

    Returns:
        The choice, its `error` set if what was asked for cannot be had.
    """
    if isinstance(asked, bool):
        choice = newest_complete(output_dir)
        if choice.checkpoint is not None:
            return choice
        wrong = "; ".join(f"{path}: {problem}" for path, problem in choice.passed_over.items())
        reason = f": none of those that are there can be resumed from ({wrong})" if wrong else ""
        return Choice(
            error=f"No valid checkpoint found in output directory ({output_dir}){reason}. To start anew, call train() "
            "without resume_from_checkpoint; `mixer train --resume auto` does so where there is none."
        )
    put_back(Path(asked).parent)
    problem = find_problem(Path(asked))
    if problem is None:
        return Choice(asked, ended=bool((read_marker(Path(asked)) or {}).get("ended", False)))
    other = newest_complete(Path(asked).parent).checkpoint
    way_out = (
        "There is no other checkpoint beside it to resume from: start anew without resume_from_checkpoint (from its "
        "weights, if those are whole)."
        if other is None
        else f"The newest checkpoint that can be resumed from is {other}."
    )
    return Choice(error=f"Cannot resume from {asked}: {problem}. {way_out}")


def agree(choice: Choice | None, world_size: int) -> Choice:
    """Makes the main process's choice that of all ranks.

    Args:
        choice: The choice, on the main process; `None` elsewhere.
        world_size: Number of ranks.

    Returns:
        The choice.

    Raises:
        ValueError: On every rank, if what was asked for cannot be had.
    """
    if world_size > 1:
        shared = [choice]
        dist.broadcast_object_list(shared, src=0)
        choice = shared[0]
    assert choice is not None, "the main process has chosen"  # noqa: S101
    if choice.error is not None:
        raise ValueError(choice.error)
    return choice


def warn_of_passed_over(choice: Choice) -> None:
    """Says which newer checkpoints are not used, and why.

    Args:
        choice: The choice.
    """
    for path, problem in choice.passed_over.items():
        logger.warning("Checkpoint %s is passed over: %s.", path, problem)
