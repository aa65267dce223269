"""What an error means that a rank meets while others are with it: whose it is, and who did not come."""

import contextlib
import re
import time
from collections.abc import Callable, Iterator
from functools import wraps
from typing import ParamSpec

import torch.distributed as dist
from torch.distributed.constants import default_pg_timeout

from mixer.distributed.collectives import RemoteError
from mixer.distributed.signals import RunInterrupted, RunTerminated
from mixer.loading.memory import MicroBatchMemoryError
from mixer.loading.step import DisagreementError
from mixer.trainer.notes import (
    Listener,
    has_waited,
    leave_note,
    note_waiting,
    read_note,
    remove_note,
    stay_until_heard,
    who_is_gone,
)
from mixer.utils.shortened import in_words

# These are raised on all ranks together, and say everything.
_TOLD = (RemoteError, DisagreementError, MicroBatchMemoryError, RunInterrupted, RunTerminated)
_SECONDS_TO_BE_TOLD = 1.0
_LATE = "timed out|timeout"  # gloo says the one of a rank that it waits for, the other once it has given one up
OUT_OF_MEMORY = "Out of memory: "

Arguments = ParamSpec("Arguments")


@contextlib.contextmanager
def among_others(where: Callable[[], str], timeout_seconds: Callable[[], float]) -> Iterator[None]:
    """Has an error of one rank say on all of them whose it is: `SystemExit` and `KeyboardInterrupt` among them.

    Args:
        where: Says what this rank is at.
        timeout_seconds: Says how long ranks wait for each other.

    Yields:
        Nothing.
    """
    remove_note()
    with Listener():
        try:
            yield
        except BaseException as error:
            rank, world_size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
            explanation = explained(error, where(), rank, world_size, timeout_seconds())
            if explanation is None:
                raise
            raise explanation from error


def made_among_others(init: Callable[Arguments, None]) -> Callable[Arguments, None]:
    """Makes a trainer's `__init__` one whose error on one rank is said on all.

    Args:
        init: The method.

    Returns:
        It, among others.
    """

    @wraps(init)
    def telling(*args: Arguments.args, **kwargs: Arguments.kwargs) -> None:
        made = vars(args[0])
        with among_others(
            lambda: "as the trainer was made",
            lambda: made["args"].ddp_timeout if "args" in made else default_pg_timeout.total_seconds(),
        ):
            init(*args, **kwargs)

    return telling


def explained(error: BaseException, where: str, rank: int, world_size: int, timeout_seconds: float) -> Exception | None:
    """Says what an error means on this rank, and leaves a note for the others if it is this rank's own.

    The others may wait for this rank in a collective. Once its process ends, they find the connection broken, and the
    note; a backend that aborts or waits on in that case (NCCL may) leaves them to the launcher.

    Args:
        error: What a run ended with on this rank.
        where: What the run was at.
        rank: This rank.
        world_size: Number of ranks.
        timeout_seconds: How long ranks wait for each other.

    Returns:
        The error of the rank that failed, or that one of them did not come in time; `None` where the error speaks for
        itself.
    """
    if world_size == 1 or isinstance(error, _TOLD):
        return None
    note = read_note()
    if note is not None and note.startswith(OUT_OF_MEMORY) and isinstance(error, RuntimeError):
        return MicroBatchMemoryError(note.removeprefix(OUT_OF_MEMORY))
    if not _is_of_a_connection(error):
        _tell(error, where, rank)
        return None
    if note is not None:
        stay_until_heard()
        return RemoteError(note)
    if not re.search(_LATE, str(error), re.IGNORECASE):
        return _of_those_gone(where)
    message = (
        f"Rank {rank} waited {timeout_seconds:g} seconds (ddp_timeout) for others {where}. {_late(rank, world_size)}: "
        "see in their logs, or by py-spy, what they are at. A larger training.ddp_timeout waits longer for ranks that "
        "are slow. The run goes on from its newest checkpoint."
    )
    leave_note(message)
    return TimeoutError(message)


def _tell(error: BaseException, where: str, rank: int) -> None:
    if read_note() is None:
        leave_note(f"rank {rank} failed {where}: {in_words(error)}")
    stay_until_heard()


def _of_those_gone(where: str) -> RemoteError | None:
    """Says which ranks ended without a word; `None` if all are there, and the connection broke between them."""
    gone = who_is_gone()
    if note := read_note():  # it has come meanwhile
        return RemoteError(note)
    if not gone:
        return None
    ranks = f"rank{'s' * (len(gone) > 1)} {', '.join(map(str, gone))}"
    message = (
        f"{ranks} ended without a word {where}: by os._exit, a SIGKILL (as when a machine has no memory left), or with "
        "the machine itself. The run goes on from its newest checkpoint."
    )
    leave_note(message)
    stay_until_heard()
    return RemoteError(message)


def _is_of_a_connection(error: BaseException) -> bool:
    """Whether an error is that of a collective in which another rank is missing, as far as its text says so."""
    of_torch = type(error) is RuntimeError or isinstance(error, dist.DistError)
    return of_torch and re.search(f"gloo|nccl|connection|socket|{_LATE}", str(error), re.IGNORECASE) is not None


def _late(rank: int, world_size: int) -> str:
    """Says which ranks do not wait themselves."""
    note_waiting(rank)
    time.sleep(_SECONDS_TO_BE_TOLD)
    ranks = [other for other in range(world_size) if other != rank and not has_waited(other)]
    if not ranks:
        return "All of them waited, too, and not for the same"
    return f"Of rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))} nothing was heard"
